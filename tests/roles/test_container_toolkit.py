# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's Container Toolkit beside a Docker that runs. The tests run in order on one lab."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.roles.conftest import DEBIAN_13, MACHINES, Role, ssh
from tests.roles.docker_host import DAEMON_JSON, OPERATORS, WANTED, daemon_json, started, write

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def role(repositories: dict[str, str]) -> Role:
    """Machines on which Docker runs with an operator's settings."""
    for machine in MACHINES:
        write(machine, DAEMON_JSON, json.dumps(OPERATORS))
    role = Role("container_runtime", MACHINES)
    role.converge(WANTED)
    return role


def toolkit(repositories: dict[str, str], version: str) -> dict[str, Any]:
    """NVIDIA Container Toolkit; without CDI, because this lab has no driver."""
    return {
        **WANTED,
        "container_runtime_nvidia": "auto",
        "container_runtime_docker_cdi": False,
        "container_runtime_toolkit_repo_url": repositories["toolkit"],
        "container_runtime_toolkit_repo_key_url": repositories["key"],
        "container_runtime_toolkit_repo_key_sha256": repositories["sha256"],
        "container_runtime_toolkit_version": version,
    }


def test_a_key_that_is_not_the_one_that_was_checked(role: Role, repositories: dict[str, str]) -> None:
    wanted = {**toolkit(repositories, "1.17.7-1"), "container_runtime_toolkit_repo_key_sha256": "0" * 64}
    play = role.run(wanted, only=DEBIAN_13)
    assert "checksum" in " ".join(play.failures[DEBIAN_13])
    assert "0" * 64 in " ".join(play.failures[DEBIAN_13])
    assert "nvidia-container-toolkit" not in ssh(DEBIAN_13, "dpkg-query -W -f '${Package}\\n'")


def test_the_toolkit_at_one_version_and_then_at_another(role: Role, repositories: dict[str, str]) -> None:
    before = {machine: started(machine) for machine in MACHINES}
    role.converge(toolkit(repositories, "1.17.7-1"))
    role.is_converged(toolkit(repositories, "1.17.7-1"))
    for machine in MACHINES:
        assert started(machine) == before[machine], "a reload is enough for a further runtime"
        held = ssh(machine, "apt-mark showhold").split()
        assert {"nvidia-container-toolkit", "nvidia-container-toolkit-base"} <= set(held)
        assert daemon_json(machine)["runtimes"] == {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
        config = ssh(machine, "cat /etc/nvidia-container-runtime/config.toml")
        assert "\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n" in config
        assert "#swarm-resource" in config, "the file's comments are gone"
        runtimes = json.loads(ssh(machine, "sudo docker info --format '{{json .Runtimes}}'"))
        assert "nvidia" in runtimes
    role.converge(toolkit(repositories, "1.17.8-1"), only=DEBIAN_13)
    versions = ssh(DEBIAN_13, "dpkg-query -W -f '${Version}\\n' nvidia-container-toolkit libnvidia-container1")
    assert versions.split() == ["1.17.8-1", "1.17.8-1"]


def test_absent_takes_out_what_was_put_in(role: Role, repositories: dict[str, str]) -> None:
    wanted = {**toolkit(repositories, "1.17.7-1"), "container_runtime_state": "absent"}
    role.converge(wanted)
    for machine in MACHINES:
        assert daemon_json(machine) == OPERATORS
        assert "baremetal" not in ssh(machine, "ls /etc/apt/sources.list.d")
        # The packages stay unless they are named to go.
        assert "Server Version" in ssh(machine, "sudo docker info 2>/dev/null")
    role.is_converged(wanted)
    role.converge({**wanted, "container_runtime_remove_packages": True}, only=DEBIAN_13)
    assert "docker" not in ssh(DEBIAN_13, "dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' | grep ^ii")
    assert "overlay2" in ssh(DEBIAN_13, "sudo ls /var/lib/docker"), "data must never be deleted"
