# SPDX-License-Identifier: GPL-3.0-or-later
"""An image of the catalogue in Docker, in Podman and in a notebook of Marathon; saved, and brought to another machine.

Mesos and Marathon are the stand-ins, which have Docker run what is in an image. gpu1 and cpu1 are Debian 13, gpu2 is
Debian 12. The tests run in order on one lab.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles import mesos_cluster
from tests.roles.mesos_cluster import MACHINES
from tests.site.catalogue import gpuops_image, notebook
from tests.site.plays import INVENTORY, Play, lab, run_playbook, ssh, until

MISSING = [name for name in ("buildah", "skopeo", "mmdebstrap") if not shutil.which(name)]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"building images needs {', '.join(MISSING)}"),
]

REGISTRY, GPUS, OLDER = "cpu1", "gpu1", "gpu2"
# What the simulated nvidia-smi needs beside what the CDI specification has.
STAND_INS = "/usr/lib/baremetal-gpu-simulators"
WHERE = "/usr/local/lib/python3.13/dist-packages/mine.py"
WRITE = f"echo 'VERSION = 7' > {WHERE}"
VERSIONS = "import mine, importlib.metadata as m; print(mine.VERSION, len(list(m.distributions())))"


class Site:
    """The machines of `make lab-node` with a scheduler, and a registry on the one without GPUs."""

    def __init__(self, base: Path) -> None:
        self.mesos = mesos_cluster.Site(base, {})
        self.mesos.groups()
        self.address = f"{self.mesos.addresses[REGISTRY]}:5000"
        self.variables = {**self.mesos.settings, "cuda_versions": []}
        self.inventory = base / "site"
        self.inventory.mkdir()
        for path in (*INVENTORY.iterdir(), base / "scheduler.yml"):
            if not path.name.startswith("."):
                (self.inventory / path.name).symlink_to(path)
        groups: dict[str, Any] = {
            "registries": {"hosts": {REGISTRY: {"container_runtime_engine": "podman"}}},
            "registry_clients": {"hosts": {name: {} for name in MACHINES}},
            "all": {
                "vars": {
                    "registry_name": self.address.partition(":")[0],
                    "registry_users": [{"name": "alice"}],
                    "registry_public": ["catalogue"],
                    "registry_min_free": "100M",
                }
            },
        }
        (self.inventory / "registry.yml").write_text(json.dumps(groups))

    def passes(self, playbook: str, **variables: Any) -> Play:
        play = run_playbook(
            playbook,
            limit=",".join(MACHINES),
            extra_vars={**self.variables, **variables},
            options=f"-i {self.inventory}",
        )
        assert play.rc == 0, play.tail()
        return play

    def on_site(self, *words: str) -> str:
        return gpuops_image(*words, "-i", str(self.inventory))

    def catalogue(self) -> str:
        """The image by its digest, as the catalogue has it."""
        return notebook(self.inventory, self.address)

    def saves(self, host: str, container: str, image: str) -> str:
        """The saved image, by its digest."""
        saved = self.on_site("save", host, container, image).strip().splitlines()[-1]
        assert re.fullmatch(rf"{re.escape(self.address)}/{image}@sha256:[0-9a-f]{{64}}", saved)
        return saved


@pytest.fixture(scope="module")
def site(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # A registry of an earlier run has an authority that is gone.
    ssh(REGISTRY, "sudo rm -rf /etc/baremetal-gpu/registry")
    found = Site(tmp_path_factory.mktemp("engines"))
    found.passes("site.yml")
    gpuops_image("build", "notebook")
    found.on_site("push", "notebook")
    yield found
    lab("reset", *MACHINES)


def test_docker_gives_an_image_the_gpu_that_was_asked_for_and_no_other(site: Site) -> None:
    run = f"sudo docker run --rm --volume {STAND_INS}:{STAND_INS}:ro"
    image = site.catalogue()
    assert ssh(GPUS, f"{run} --device nvidia.com/gpu=0 {image} nvidia-smi -L").count("GPU ") == 1
    assert ssh(GPUS, f"{run} --device nvidia.com/gpu=all {image} nvidia-smi -L").count("GPU ") == 2
    assert "nvidia0" not in ssh(GPUS, f"{run} {image} ls /dev")


def test_every_engine_runs_it_as_a_user(site: Site) -> None:
    for host, engine in ((GPUS, "docker"), (OLDER, "docker"), (REGISTRY, "podman")):
        # What an engine says while it fetches is on the other stream.
        assert ssh(host, f"sudo {engine} run --rm {site.catalogue()} id -un").strip() == "user"


def test_a_notebook_of_marathon_is_saved_and_is_the_same_on_another_machine(site: Site, tmp_path: Path) -> None:
    for host in (GPUS, OLDER):
        ssh(host, "id alice >/dev/null 2>&1 || sudo useradd --uid 2001 --create-home alice")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    site.passes(
        "apps/notebook.yml",
        marathon_apps_notebook_user="alice",
        marathon_apps_notebook_ssh_keys=[(tmp_path / "key.pub").read_text().strip()],
        marathon_apps_notebook_image="notebook",
        marathon_apps_notebook_model="a100-sxm4-40gb",
        marathon_apps_notebook_cpus=0.5,
        marathon_apps_notebook_mem=1024,
    )
    (task,) = site.mesos.ask(REGISTRY, 8080, "/v2/apps//notebooks/alice", "http:operator")["app"]["tasks"]
    container = f"mesos-{task['id']}"
    port = task["ports"][0]
    login = (
        f"ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes -o LogLevel=ERROR "
        f"-i {tmp_path / 'key'} -p {port} alice@{site.mesos.addresses[GPUS]}"
    )

    def inside(command: str) -> str:
        words = [*login.split(), command]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout

    assert inside("id -un").strip() == "alice"
    assert inside("id -u").strip() == "2001"
    assert inside("nvidia-smi -L").count("GPU ") == 1
    asks = "curl -s --unix-socket ~/.local/share/baremetal-gpu/notebook/notebook.sock http://localhost/api"
    # The machine itself has no JupyterLab.
    assert ssh(GPUS, "command -v jupyter", check=False) == ""
    until(lambda: "version" in ssh_as_alice(asks), 120, lambda: ssh(GPUS, f"sudo docker logs {container} 2>&1"))
    ssh(GPUS, f"sudo docker exec {container} sh -c {shlex.quote(WRITE)}")
    here = ssh(GPUS, f"sudo docker exec {container} python3 -c {shlex.quote(VERSIONS)}")
    saved = site.saves(GPUS, container, "alice/lectures")
    site.passes("apps/notebook.yml", marathon_apps_notebook_user="alice", marathon_apps_state="absent")
    assert container not in ssh(GPUS, "sudo docker ps --all --format '{{.Names}}'")
    site.on_site("restore", "alice/lectures", OLDER)
    # The machine has no login: what it runs is what was brought.
    run = f"sudo docker run --rm {saved} python3 -c {shlex.quote(VERSIONS)}"
    assert ssh(OLDER, run) == here
    assert here.split()[0] == "7"


def ssh_as_alice(command: str) -> str:
    ssh(GPUS, "command -v curl >/dev/null || { sudo apt-get update -qq; sudo apt-get install -y -qq curl; }")
    return ssh(GPUS, f"sudo -u alice -i sh -c {shlex.quote(command)}", check=False)


def test_a_session_of_podman_is_saved_and_runs_in_docker(site: Site) -> None:
    ssh(REGISTRY, f"sudo podman run --detach --name mine {site.catalogue()} sleep infinity")
    ssh(REGISTRY, f"sudo podman exec --user root mine sh -c {shlex.quote(WRITE)}")
    here = ssh(REGISTRY, f"sudo podman exec mine python3 -c {shlex.quote(VERSIONS)}")
    saved = site.saves(REGISTRY, "mine", "alice/podman")
    ssh(REGISTRY, "sudo podman rm --force --time 1 mine")
    site.on_site("restore", "alice/podman", GPUS, REGISTRY)
    words = f"run --rm {saved} python3 -c {shlex.quote(VERSIONS)}"
    assert ssh(GPUS, f"sudo docker {words}") == here
    assert ssh(REGISTRY, f"sudo podman {words}") == here
    assert here.split()[0] == "7"
