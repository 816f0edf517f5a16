# SPDX-License-Identifier: GPL-3.0-or-later
"""A control plane below a root of its own: etcd, its programs and kubeadm are real, from the cache of the lab.

What runs containers is a stand-in, which lets a program see what is mounted and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import etcd
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.containers import PROGRAMS
from tests.local_kubernetes import NotHere, program
from tests.local_zookeeper import free_port
from tests.unit.plugins.module_utils.kubernetes.agent_report import until

NAME, PEER, DATA = "head1", "https://10.0.0.1:2380", "/var/lib/etcd"
# As kubeadm 1.36.3 writes it, in part.
MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - command:
    - etcd
    - --advertise-client-urls=https://10.0.0.1:2379
    - --data-dir={data}
    - --initial-advertise-peer-urls={peer}
    - --initial-cluster={name}={peer}
    - --name={name}
    image: registry1:5000/kubernetes/etcd:3.6.8-0
    imagePullPolicy: IfNotPresent
    name: etcd
"""
# Certificates that end soon.
CLUSTER = """\
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
certificateValidityPeriod: 480h0m0s
"""


class Host:
    """:ivar pki: a directory in which the files of /etc/kubernetes are kept, since they take a while."""

    def __init__(self, root: Path, pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        try:
            self.programs = {name: program("etcd", name) for name in ("etcd", "etcdctl", "etcdutl")}
            self.programs["kubeadm"] = program("kubernetes", "kubeadm")
        except NotHere as why:
            pytest.skip(str(why))
        self.root, self.calls = root, list[list[str]]()
        self.manifests = root / "etc/kubernetes/manifests"
        if pki.exists():
            shutil.copytree(pki, root / "etc/kubernetes")
        self.manifests.mkdir(parents=True)
        for name in PROGRAMS:
            (self.manifests / f"{name}.yaml").write_text(f"{name}\n")
        (self.manifests / "etcd.yaml").write_text(MANIFEST.format(data=DATA, peer=PEER, name=NAME))
        (root / "cluster.yaml").write_text(CLUSTER)
        if not pki.exists():
            for phase in ("certs", "kubeconfig"):
                assert self.kubeadm("init", "phase", phase, "all", "--config=/cluster.yaml")[0] == 0
            shutil.copytree(root / "etc/kubernetes", pki, ignore=shutil.ignore_patterns("manifests"))
        self.started = dict.fromkeys(PROGRAMS, 0)
        self.is_kubelet_up = True
        self.endpoint, self.patch = "", monkeypatch
        self.process: subprocess.Popen[bytes] | None = None
        monkeypatch.setattr(etcd, "LOCK", str(root / "run/etcd.lock"))

    @property
    def data(self) -> Path:
        return self.root / DATA[1:]

    def kubeadm(self, *words: str) -> tuple[int, str, str]:
        """Of this root; a file that it is given is brought there."""
        given = []
        for word in words:
            name, _is, path = word.partition("=")
            if name == "--config" and Path(path).exists():
                shutil.copy(path, self.root / "given.yaml")
                word = "--config=/given.yaml"
            given.append(word)
        return self._real("kubeadm", [f"--rootfs={self.root}", *given])

    def _real(self, name: str, words: list[str]) -> tuple[int, str, str]:
        done = subprocess.run([self.programs[name], *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    # What the host runs ---------------------------------------------------------------------------------------------

    def run(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[0] == "kubeadm":
            return self.kubeadm(*argv[1:])
        if argv[0] == "kubectl":
            return 0, "ok", ""
        if argv[0] == "crictl" and "ps" in argv:
            name = argv[-1].removeprefix("--name=^").removesuffix("$")
            manifest = self.manifests / f"{name}.yaml"
            # Another container with each manifest.
            number = zlib.crc32(manifest.read_bytes()) if manifest.exists() else 0
            is_up = manifest.exists() or not self.is_kubelet_up
            return 0, f"{name}-{number}{self.started[name]}\n" if is_up else "", ""
        if argv[0] == "crictl" and "stop" in argv:
            for name in [one.rpartition("-")[0] for one in argv if one.rpartition("-")[0] in PROGRAMS]:
                self.started[name] += 1
            return 0, "", ""
        if argv[0] == "crictl":
            return 0, "", ""
        assert argv[:2] == ["ctr", "--namespace=k8s.io"]
        return self._container(argv[2:]) if argv[2] == "run" else (1, "", "not found")

    def _container(self, words: list[str]) -> tuple[int, str, str]:
        place = words.index("baremetal-gpu-etcd")
        mounts = [
            dict(part.split("=") for part in word[8:].split(",")) for word in words if word.startswith("--mount=")
        ]
        inside = words[place + 1 :]
        written = {inside[-1]} if "save" in inside else {word for word in inside if word.startswith("--data-dir=")}
        for word in inside[1:]:
            path = word.rpartition("=")[2]
            if path.startswith("/"):
                (mount,) = [one for one in mounts if path.startswith(f"{one['src']}/")]
                assert mount["src"] == mount["dst"]
                assert mount["options"] == ("rbind:rw" if word in written else "rbind:ro")
        # As containerd, which has more to say than the program.
        status, said, error = self._real(inside[0], inside[1:])
        return status, said, f'time="" level=warning msg="DEPRECATION"\n{error}\n'

    # etcd -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """On ports that nothing else has taken meanwhile."""
        while self.process is None:
            self.endpoint = f"https://127.0.0.1:{free_port()}"
            self.patch.setattr(etcd, "ENDPOINT", self.endpoint)
            process = self._started()
            until(lambda process=process: process.poll() is not None or self.etcdctl("endpoint", "health")[0] == 0)
            if process.poll() is None:
                self.process = process
            else:
                assert "address already in use" in (self.root / "log").read_text()

    def _started(self) -> subprocess.Popen[bytes]:
        pki, peer = self.root / "etc/kubernetes/pki/etcd", f"http://127.0.0.1:{free_port()}"
        words = [self.programs["etcd"], f"--data-dir={self.data}", "--unsafe-no-fsync", f"--name={NAME}"]
        words += [f"--listen-client-urls={self.endpoint}", f"--advertise-client-urls={self.endpoint}"]
        words += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={PEER}"]
        words += [f"--initial-cluster={NAME}={PEER}", "--client-cert-auth", f"--trusted-ca-file={pki}/ca.crt"]
        words += [f"--cert-file={pki}/server.crt", f"--key-file={pki}/server.key"]
        with (self.root / "log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def etcdctl(self, *words: str) -> tuple[int, str, str]:
        pki = self.root / "etc/kubernetes/pki/etcd"
        login = [f"--cacert={pki}/ca.crt", f"--cert={pki}/server.crt", f"--key={pki}/server.key"]
        return self._real("etcdctl", [f"--endpoints={self.endpoint}", *login, *words])

    def keys(self) -> list[str]:
        return self.etcdctl("get", "", "--prefix", "--keys-only")[1].split()


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory)) if directory.exists() else []
