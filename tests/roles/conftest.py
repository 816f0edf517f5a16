# SPDX-License-Identifier: GPL-3.0-or-later
"""One role at a time on the lab's machines, and the repositories that stand in for NVIDIA's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.repositories.__main__ import build
from tests.repositories.serve import Server
from tests.roles.ceph_site import EVERYBODY, Site, memory
from tests.site.plays import INVENTORY, ROOT, Play, lab, run_playbook, ssh

PLAY = Path(__file__).with_name("play.yml")
DEBIAN_13, DEBIAN_12 = "gpu1", "gpu2"
MACHINES = (DEBIAN_13, DEBIAN_12)


class Role:
    """A role on bare machines, one after another state of its variables."""

    def __init__(self, name: str, machines: tuple[str, ...]) -> None:
        self.name = name
        self.machines = machines

    def run(self, variables: dict[str, Any] | None = None, *, only: str = "", options: str = "", **more: Any) -> Play:
        return run_playbook(
            PLAY,
            limit=only or ",".join(self.machines),
            extra_vars={"tested_role": self.name, **(variables or {})},
            options=options,
            **more,
        )

    def converge(self, variables: dict[str, Any] | None = None, *, only: str = "") -> Play:
        """Run it for real; it must pass."""
        play = self.run(variables, only=only)
        assert play.rc == 0, play.tail()
        return play

    def is_converged(self, variables: dict[str, Any] | None = None, *, only: str = "") -> Play:
        """Run it again; it must change nothing."""
        play = self.converge(variables, only=only)
        changed = {machine: play.changed_tasks.get(machine, []) for machine in self.machines}
        assert not any(changed.values()), changed
        return play


@pytest.fixture(scope="module")
def bare() -> None:
    lab("reset", *MACHINES)


@pytest.fixture(scope="module")
def repositories(bare: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of the stand-in repositories and of their key, reached by the machines without the apt cache."""
    directory = tmp_path_factory.mktemp("repositories")
    sha256 = build(directory)
    address = host_address()
    with Server(directory, address) as server:
        for machine in MACHINES:
            line = f'Acquire::http::Proxy::{address} "DIRECT";'
            ssh(machine, f"echo '{line}' | sudo tee /etc/apt/apt.conf.d/99stand-in-repository")
        yield {
            "toolkit": f"{server.url}/toolkit",
            "cuda": f"{server.url}/cuda",
            "driver": f"{server.url}/driver/",
            "debian": f"{server.url}/debian/",
            "key": f"{server.url}/cuda/key.asc",
            "sha256": sha256,
        }


@pytest.fixture(scope="module")
def driven_machine(repositories: dict[str, str]) -> str:
    """The machine with Debian 13, with a driver and its device files."""
    driver = {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_branch": 570,
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_repo_url": repositories["driver"],
        "nvidia_driver_repo_key_url": repositories["key"],
        "nvidia_driver_repo_key_sha256": repositories["sha256"],
    }
    Role("nvidia_driver", (DEBIAN_13,)).converge(driver)
    Role("gpu_device_nodes", (DEBIAN_13,)).converge()
    return DEBIAN_13


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The storage cluster; it stays for the files of tests that come next and need it, too."""
    site = Site()
    took = site.make()
    if took:
        said = f"\nstorage from bare machines to the clients' gate: {took:.0f} s; resident memory: {memory(EVERYBODY)}"
        request.config.get_terminal_writer().line(said)
    yield site
    items = request.session.items
    mine = [place for place, item in enumerate(items) if item.path == request.path]
    later = items[max(mine) + 1 :]
    if not any("site" in getattr(item, "fixturenames", ()) for item in later) and not os.environ.get("GPUOPS_KEEP_LAB"):
        site.down()


def host_address() -> str:
    """The address of this host as the machines see it."""
    route = ssh(DEBIAN_13, "ip -json -4 route show default")
    return str(json.loads(route)[0]["gateway"])


__all__ = ["DEBIAN_12", "DEBIAN_13", "INVENTORY", "MACHINES", "ROOT", "Role", "lab", "ssh"]
