# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of Kubernetes on machines of the lab: real programs, from repositories and a registry of the site alone."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tests.site.plays import INVENTORY, ROOT, Play, lab, run_playbook, ssh

HEAD, GPU, OTHER = "kcp1", "kgpu1", "kgpu2"
SHELL = f"{HEAD}:5000/kubernetes/shell:1"
MACHINES = {HEAD: "no-gpu", GPU: "a100-sxm4-40gb-x2", OTHER: "t4-x1"}
VERSION, NEXT = "1.36.3", "1.37.2"
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
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
    },
    "kubernetes_common_ignore_checks": ["SystemVerification"],
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
# A site's mirror does not move, and a run for one that has moved would change the machines.
PORT = 8437
LEFT_RUNNING = ROOT / ".cache" / "lab-kubernetes"
# kubelet reads the kernel's log, and a machine of the lab has none.
KMSG = "c /dev/kmsg 0600 root root - 1:11\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Cluster:
    """The site: its inventory and variables, and what its hosts take packages and images from.

    :param groups: of the inventory.
    :param more: further variables.
    :ivar base: where all of it is kept.
    :ivar inventory: of its hosts, with the variables, for ansible-playbook and gpuops.
    :ivar is_made: whether a run for the whole site has succeeded.
    """

    def __init__(
        self,
        base: Path,
        machines: Mapping[str, str] = MACHINES,
        groups: Mapping[str, Sequence[str]] = GROUPS,
        **more: Any,
    ) -> None:
        self.machines, self.site_groups, self.more = machines, groups, more
        self.base, self.served, self.inventory = base, base / "served", base / "inventory"
        self.is_made = False

    def publish(self, version: str = VERSION) -> None:
        """Make the vendors' repositories and the images of a version, once."""
        if not (self.served / version).exists():
            key, part = Key(self.base), self.base / "served.part"
            kubernetes.publish(part, [version], key)
            _shell(part / "images" / version / "shell")
            (part / KEY).write_bytes(key.public)
            key.close()
            self.served.mkdir(exist_ok=True)
            part.rename(self.served / version)

    def describe(self) -> None:
        """Write the inventory, the lab's own and what makes its machines this site."""
        values = self.inventory / "group_vars"
        values.mkdir(parents=True, exist_ok=True)
        for path in ("hosts.py", "group_vars/gpu_cluster.yml"):
            link = self.inventory / path
            link.unlink(missing_ok=True)
            link.symlink_to(INVENTORY / path)
        groups = {name: {"hosts": dict.fromkeys(rows)} for name, rows in self.site_groups.items()}
        (self.inventory / "groups.yml").write_text(json.dumps(groups))
        (values / "all.json").write_text(json.dumps(self.variables, indent=2))

    def of_version(self, version: str) -> dict[str, Any]:
        """The variables that say which Kubernetes there is to be."""
        url, key = self._origin(version)
        return {
            "kubernetes_common_version": version,
            "kubernetes_common_repo_url": f"{url}/kubernetes/v{version.rpartition('.')[0]}/deb",
            **{f"kubernetes_common_repo_{name}": value for name, value in key.items()},
        }

    def _origin(self, version: str) -> tuple[str, dict[str, str]]:
        url = f"http://{Lab().gateway}:{PORT}/{version}"
        sha256 = hashlib.sha256((self.served / version / KEY).read_bytes()).hexdigest()
        return url, {"key_url": f"{url}/{KEY}", "key_sha256": sha256}

    @property
    def variables(self) -> dict[str, Any]:
        url, key = self._origin(VERSION)
        return {
            **SPECIAL,
            **self.of_version(VERSION),
            "container_runtime_engine": "containerd",
            "kubernetes_common_image_repository": f"{HEAD}:5000/kubernetes",
            "container_runtime_docker_repo_url": f"{url}/docker",
            "container_runtime_docker_repo_suites": ["/"],
            "container_runtime_docker_repo_components": [],
            **{f"container_runtime_docker_repo_{name}": value for name, value in key.items()},
            "registry_tls_path": str(self.base / "tls"),
            "registry_passwords_path": str(self.base / "passwords"),
            "registry_public": ["kubernetes"],
            **self.more,
        }

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let the machines reach the repositories."""
        with ThreadingHTTPServer((Lab().gateway, PORT), partial(_Quiet, directory=str(self.served))) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()

    def push(self, version: str = VERSION) -> None:
        """Push the images to the site's registry, by its address: only the machines know its name."""
        password = (self.base / "passwords" / "operator").read_text().strip()
        registry = Registry(f"{Lab().get(HEAD).address}:5000", self.base / "tls" / AUTHORITY, "operator", password)
        kubernetes.push(self.served / version / "images" / version, registry)

    def run(self, playbook: str, options: str = "", *, hosts: Iterable[str] = (), **variables: Any) -> Play:
        return run_playbook(
            playbook,
            limit=",".join(hosts or self.machines),
            extra_vars=variables,
            options=f"-i {self.inventory} {options}",
        )

    def converge(self, playbook: str, options: str = "", **variables: Any) -> Play:
        play = self.run(playbook, options, **variables)
        assert play.rc == 0, play.tail()
        self.is_made |= playbook == "site.yml"
        return play


@contextmanager
def cluster(made: Cluster) -> Iterator[Cluster]:
    """Machines with nothing but Debian, and beside them repositories and a registry with all that a cluster needs."""
    made.base.mkdir(exist_ok=True)
    lab("up", *(word for name, gpus in made.machines.items() for word in ("--machine", f"{name}:trixie:{gpus}")))
    for name in made.machines:
        prepare(name)
    made.publish()
    made.describe()
    with made.serving():
        made.converge("registry.yml")
        made.push()
        yield made


def prepare(machine: str) -> None:
    """What a bare machine of the lab lacks for Kubernetes."""
    ssh(machine, "sudo tee /etc/tmpfiles.d/kmsg.conf && sudo systemd-tmpfiles --create kmsg.conf", given=KMSG)
    # The proxy of the lab's machines serves no such port.
    direct = f'Acquire::http::Proxy::{Lab().gateway} "DIRECT";\n'
    ssh(machine, "sudo tee /etc/apt/apt.conf.d/90mirror", given=direct)
    # All comes from the site: the host has the repositories, and a cache of Debian's.
    lab("egress", machine, "closed")


def _shell(directory: Path) -> None:
    """An image for pods of the tests: Debian's busybox under its names."""
    assert debian_programs.unpack("busybox-static") == ""
    (program,) = {path.resolve() for path in debian_programs.DIRECTORY.glob("**/bin/busybox")}
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    links = {f"/bin/{name}": "busybox" for name in names if name != "busybox"}
    layer = oci.layer({"/bin/busybox": program}, links)
    oci.write(directory, "1", [layer], {"Env": ["PATH=/bin"]})


def kubectl(words: str, given: str | None = None, check: bool = True, where: str = HEAD) -> str:
    """What kubectl prints on a control plane."""
    return ssh(where, f"sudo kubectl --kubeconfig /etc/kubernetes/admin.conf {words}", check=check, given=given)


def node(name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(kubectl(f"get node {name} -o json"))
    return found


def sleeping(gpus: int = 0) -> dict[str, Any]:
    """The spec of a pod that stays, and ends at once when it is told to."""
    container = {"name": "main", "image": SHELL, "command": ["/bin/sh", "-c", "exec sleep 100000"]}
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {"terminationGracePeriodSeconds": 1, "containers": [{**container, **limits}]}


def is_ready(thing: Mapping[str, Any]) -> bool:
    """Whether a node or a pod has the condition Ready."""
    conditions = thing.get("status", {}).get("conditions", ())
    return ("Ready", "True") in [(row["type"], row["status"]) for row in conditions]


def main() -> None:
    """The cluster, left running: `make lab-kubernetes`."""
    with cluster(Cluster(LEFT_RUNNING)) as made:
        words = ("-i", made.inventory, "--limit", ",".join(MACHINES))
        playbook = Path(sys.executable).with_name("ansible-playbook")
        done = subprocess.run([playbook, *words, ROOT / "playbooks" / "site.yml"], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    print(kubectl("get nodes -o wide"))
    print(f"Try: .venv/bin/gpuops status -i {made.inventory}")


if __name__ == "__main__":
    main()
