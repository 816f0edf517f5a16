# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of Kubernetes on machines of the lab: real programs, from repositories and a registry of the site alone."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.certificate_files import AUTHORITY
from gpuops.image.registry import Registry
from tests import debian_programs
from tests.lab.machines.state import Lab
from tests.repositories import kubernetes, oci
from tests.repositories.apt import Key
from tests.site.plays import INVENTORY, Play, lab, run_playbook, ssh

HEAD, GPU, OTHER = "kcp1", "kgpu1", "kgpu2"
MACHINES = {HEAD: "no-gpu", GPU: "a100-sxm4-40gb-x2", OTHER: "t4-x1"}
VERSION = "1.36.3"
GROUPS = {
    "kubernetes_control_planes": [HEAD],
    "kubernetes_nodes": [GPU, OTHER],
    "registries": [HEAD],
    "registry_clients": list(MACHINES),
}
# The machines have control groups of version 1, the swap and the small disk of their host, and may not lower the
# oom_score_adj of a process, nor set the size of the table of connections. A real site sets none of this.
SPECIAL: dict[str, Any] = {
    "kubernetes_common_kubelet": {
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "enforceNodeAllocatable": [],
        "cpuManagerPolicy": "none",
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
    },
    "kubernetes_control_plane_kube_proxy": {"conntrack": {"maxPerCore": 0, "min": 0}},
    "container_runtime_containerd_config": {
        "plugins": {
            "io.containerd.grpc.v1.cri": {
                "restrict_oom_score_adj": True,
                "containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": False}}}},
            }
        }
    },
    "gpu_preflight_refuse": [],
}
KEY = "Release.key"
# kubelet reads the kernel's log, and a machine of the lab has none.
KMSG = "c /dev/kmsg 0600 root root - 1:11\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Cluster:
    """The site: its inventory, and the repositories that its hosts take packages from."""

    def __init__(self, base: Path, url: str, key: Key) -> None:
        self.base = base
        self.groups = base / "groups.yml"
        self.groups.write_text(json.dumps({name: {"hosts": dict.fromkeys(rows)} for name, rows in GROUPS.items()}))
        of_key = {"key_url": f"{url}/{KEY}", "key_sha256": key.sha256}
        self.variables: dict[str, Any] = {
            **SPECIAL,
            "kubernetes_common_version": VERSION,
            "kubernetes_common_image_repository": f"{HEAD}:5000/kubernetes",
            "kubernetes_common_repo_url": f"{url}/kubernetes/v{VERSION.rpartition('.')[0]}/deb",
            **{f"kubernetes_common_repo_{name}": value for name, value in of_key.items()},
            "container_runtime_docker_repo_url": f"{url}/docker",
            "container_runtime_docker_repo_suites": ["/"],
            "container_runtime_docker_repo_components": [],
            **{f"container_runtime_docker_repo_{name}": value for name, value in of_key.items()},
            "registry_tls_path": str(base / "tls"),
            "registry_passwords_path": str(base / "passwords"),
            "registry_public": ["kubernetes"],
        }

    def run(self, playbook: str, options: str = "", **variables: Any) -> Play:
        return run_playbook(
            playbook,
            limit=",".join(MACHINES),
            extra_vars={**self.variables, **variables},
            options=f"-i {INVENTORY} -i {self.groups} {options}",
        )

    def converge(self, playbook: str, options: str = "", **variables: Any) -> Play:
        play = self.run(playbook, options, **variables)
        assert play.rc == 0, play.tail()
        return play

    def registry(self) -> Registry:
        """That of the site, by its address: only the machines know its name."""
        password = (self.base / "passwords" / "operator").read_text().strip()
        return Registry(f"{Lab().get(HEAD).address}:5000", self.base / "tls" / AUTHORITY, "operator", password)


@contextmanager
def cluster(base: Path) -> Iterator[Cluster]:
    """Machines with nothing but Debian, and beside them repositories and a registry with all that a cluster needs."""
    lab("up", *(word for name, gpus in MACHINES.items() for word in ("--machine", f"{name}:trixie:{gpus}")))
    for name in MACHINES:
        ssh(name, f"printf '{KMSG}' | sudo tee /etc/tmpfiles.d/kmsg.conf && sudo systemd-tmpfiles --create kmsg.conf")
    served = base / "served"
    served.mkdir()
    key = Key(base)
    kubernetes.publish(served, [VERSION], key)
    (served / KEY).write_bytes(key.public)
    with ThreadingHTTPServer((Lab().gateway, 0), partial(_Quiet, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = Cluster(base, f"http://{server.server_address[0]}:{server.server_address[1]}", key)
        made.converge("registry.yml")
        _shell(served / "images" / VERSION / "shell")
        kubernetes.push(served / "images" / VERSION, made.registry())
        yield made
        server.shutdown()
    key.close()


def _shell(directory: Path) -> None:
    """An image for pods of the tests: Debian's busybox under its names."""
    assert debian_programs.unpack("busybox-static") == ""
    (program,) = {path.resolve() for path in debian_programs.DIRECTORY.glob("**/bin/busybox")}
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    links = {f"/bin/{name}": "busybox" for name in names if name != "busybox"}
    layer = oci.layer({"/bin/busybox": program}, links)
    oci.write(directory, "1", [layer], {"Env": ["PATH=/bin"]})


def kubectl(words: str, given: str | None = None, check: bool = True) -> str:
    """What kubectl prints on the control plane."""
    return ssh(HEAD, f"sudo kubectl --kubeconfig /etc/kubernetes/admin.conf {words}", check=check, given=given)


def node(name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(kubectl(f"get node {name} -o json"))
    return found
