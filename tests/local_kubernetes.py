# SPDX-License-Identifier: GPL-3.0-or-later
"""A real API server of Kubernetes and its etcd as processes on loopback, from the cache of the lab.

It has the authorizers and the admission plugins of a cluster that kubeadm makes, no kubelet, and of the controllers
those that a test starts. It is used as the stand-in is (tests/simulators/kube_api.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered, Api, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import MANAGER, Kubectl
from tests.lab.machines.state import CACHE_ROOT
from tests.local_zookeeper import free_port
from tests.unit.plugins.module_utils.kubernetes.agent_report import certificate, client

ADMIN = "admin/system:masters"
# On a machine with other work, too.
START_S, CALL_S = 600.0, 60.0
KINDS = ("/api/v1/nodes", "/api/v1/pods", "/api/v1/configmaps", "/apis/coordination.k8s.io/v1/leases")


class NotHere(Exception):
    """There is no API server to be had on this machine; the text says why."""


def until(wanted: Callable[[], Any]) -> Any:
    """What controllers bring about, on a machine with other work, too."""
    end = time.monotonic() + START_S
    while not (found := wanted()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def program(kind: str, name: str) -> str:
    found = sorted((CACHE_ROOT / "kubernetes").glob(f"{kind}-*/{name}"))
    if not found:
        raise NotHere(f"there is no {name} in {CACHE_ROOT}/kubernetes: make lab-kubernetes builds it")
    return str(found[0])


class LocalKubernetes:
    """`users` may call with certificates of theirs, `manifests` say what they may do.

    :ivar data: the directory of etcd, which is kept if it was given.
    """

    def __init__(
        self,
        users: Iterable[str] = (),
        manifests: Iterable[Mapping[str, Any]] = (),
        data: Path | None = None,
        **flags: str,
    ) -> None:
        server, etcd = program("kubernetes", "kube-apiserver"), program("etcd", "etcd")
        self.base = Path(tempfile.mkdtemp(prefix="kubernetes-"))
        self.data = data or self.base / "etcd"
        own, key = certificate(self.base)
        authorities = self.base / "clients.pem"
        authorities.write_text("".join(certificate(self.base, user)[0].read_text() for user in (ADMIN, *users)))
        at, peer, port = (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}", free_port())
        self.url, self.etcd = f"https://127.0.0.1:{port}", at
        store = [etcd, f"--data-dir={self.data}", f"--listen-client-urls={at}", f"--advertise-client-urls={at}"]
        store += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        store += [f"--initial-cluster=default={peer}", "--unsafe-no-fsync"]
        serves = {
            "etcd-servers": at,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "tls-cert-file": own,
            "tls-private-key-file": key,
            "client-ca-file": authorities,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "disable-admission-plugins": "ServiceAccount",
            "allow-privileged": "true",
            "service-cluster-ip-range": "10.96.0.0/24",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": own,
            "service-account-signing-key-file": key,
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        self.log = self.base / "log"
        with self.log.open("wb") as log:
            words = [server, *(f"--{name}={value}" for name, value in serves.items())]
            self.processes = [
                subprocess.Popen(one, stdout=log, stderr=log, start_new_session=True) for one in (store, words)
            ]
        self.admin = Api(Settings(self.url, str(own), str(client(self.base, ADMIN)), CALL_S))
        try:
            self._wait()
            for one in manifests:
                self._create(one)
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(CallFailed):
                # RBAC's own objects come a moment after the server.
                self.admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node")
                self.admin.get("/api/v1/namespaces/default")
                return
            if time.monotonic() > end or any(one.poll() is not None for one in self.processes):
                raise RuntimeError(f"the API server does not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def control(self, *controllers: str) -> None:
        """Run these controllers, too."""
        flags = [f"--kubeconfig={self.kubeconfig()}", "--leader-elect=false", "--secure-port=0"]
        words = [program("kubernetes", "kube-controller-manager"), *flags, f"--controllers={','.join(controllers)}"]
        with self.log.open("ab") as log:
            self.processes.append(subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True))

    def kubeconfig(self) -> Path:
        (own, key), ca = certificate(self.base, ADMIN), certificate(self.base)[0]
        cluster = {"server": self.url, "certificate-authority": str(ca)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "users": [{"name": "c", "user": {"client-certificate": str(own), "client-key": str(key)}}],
        }
        path = self.base / "kubeconfig.json"
        path.write_text(json.dumps(content))
        return path

    def kubectl(self, manager: str = MANAGER) -> Kubectl:
        """The real one, as an administrator."""
        path, config = program("kubernetes", "kubectl"), str(self.kubeconfig())
        return Kubectl(lambda argv, stdin, limit: run([path, *argv[1:]], stdin, limit), CALL_S, config, manager)

    def _create(self, manifest: Mapping[str, Any]) -> None:
        kind, namespace = manifest["kind"], manifest["metadata"].get("namespace")
        group = "/api/v1" if manifest["apiVersion"] == "v1" else f"/apis/{manifest['apiVersion']}"
        where = f"/namespaces/{namespace}" if namespace else ""
        self.admin.create(f"{group}{where}/{kind.lower()}s", manifest)

    def caller(self, user: str) -> Api:
        return Api(Settings(self.url, str(certificate(self.base)[0]), str(client(self.base, user)), CALL_S))

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object, or write over it, as an administrator."""
        name = path.rpartition("/")[2]
        made = {**body, "metadata": {"name": name, **body.get("metadata", {})}}
        try:
            found = self.admin.get(path)
        except Answered:
            return self.admin.create(path.rpartition("/")[0], made)
        made["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        return self.admin.replace(path, made)

    def reset(self) -> None:
        """Without the objects of the test before."""
        for kind in KINDS:
            for one in self.admin.get(kind)["items"]:
                about = one["metadata"]
                where = f"/namespaces/{about['namespace']}" if about.get("namespace") else ""
                root, _slash, resource = kind.rpartition("/")
                with contextlib.suppress(Answered):
                    grace = "?gracePeriodSeconds=0" if resource == "pods" else ""
                    self.admin.delete(f"{root}{where}/{resource}/{about['name']}{grace}")

    def close(self) -> None:
        for one in reversed(self.processes):
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        shutil.rmtree(self.base)
