# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_runtime on machines that have no Docker yet, which have none afterwards either."""

from __future__ import annotations

import json

import pytest

from tests.roles.conftest import DEBIAN_13, MACHINES, Role, lab, ssh
from tests.roles.docker_host import DAEMON_JSON, OPERATORS, WANTED, write

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    return Role("container_runtime", MACHINES)


def changes(machine: str) -> str:
    """What differs from the bare machine, but for logs and the like that any login changes."""
    return "\n".join(line for line in lab("changes", machine).splitlines() if " /var/log/" not in line)


def test_a_malformed_file_stops_the_host_before_anything_is_changed(role: Role) -> None:
    for machine in MACHINES:
        write(machine, DAEMON_JSON, '{\n  "labels": ["site=a"],\n}')
    before = {machine: changes(machine) for machine in MACHINES}
    play = role.run(WANTED)
    for machine in MACHINES:
        message = " ".join(play.failures[machine])
        assert f"{DAEMON_JSON} is not a valid JSON file and is left untouched: line " in message
        assert "Correct or remove the file" in message
        assert changes(machine) == before[machine]
    assert "dockerd" not in ssh(DEBIAN_13, "ls /usr/sbin /usr/bin")


def test_check_mode_announces_everything_and_changes_nothing(role: Role) -> None:
    for machine in MACHINES:
        write(machine, DAEMON_JSON, json.dumps(OPERATORS))
    before = {machine: changes(machine) for machine in MACHINES}
    play = role.run(WANTED, options="--check --diff")
    assert play.rc == 0, play.tail()
    for machine in MACHINES:
        assert changes(machine) == before[machine]
        plan = "\n".join(line for (host, _stage), lines in play.drifts.items() if host == machine for line in lines)
        assert "install package docker.io" in plan
        assert any("Merge the settings" in task for task in play.changed_tasks[machine])
    assert '"max-size": "50m"' in play.stdout
