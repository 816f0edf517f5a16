# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_runtime with real Docker, on Debian 13 and Debian 12. The tests run in order on one lab."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.roles.conftest import DEBIAN_12, DEBIAN_13, MACHINES, Role, lab, ssh

pytestmark = pytest.mark.lab

DAEMON_JSON = "/etc/docker/daemon.json"
# What an operator had there before, in their own order and layout.
OPERATORS = {"labels": ["site=a"], "default-ulimits": {"nofile": {"Name": "nofile", "Hard": 4096, "Soft": 1024}}}
WANTED: dict[str, Any] = {
    "container_runtime_validate": "never",
    "container_runtime_nvidia": "none",
    "container_runtime_docker_live_restore": True,
    "container_runtime_docker_log_driver": "json-file",
    "container_runtime_docker_log_options": {"max-size": "50m"},
    "container_runtime_docker_config": {"labels": ["role=gpu"]},
}


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    return Role("container_runtime", MACHINES)


def daemon_json(machine: str) -> dict[str, Any]:
    return json.loads(ssh(machine, f"cat {DAEMON_JSON}"))


def write(machine: str, path: str, text: str, mode: str = "0644") -> None:
    ssh(
        machine,
        f"sudo mkdir -p $(dirname {path}); sudo tee {path} >/dev/null <<'END'\n{text}\nEND\nsudo chmod {mode} {path}",
    )


def started(machine: str) -> str:
    """PID and start of the running dockerd."""
    return ssh(machine, "systemctl show docker.service -p MainPID -p ExecMainStartTimestampMonotonic --value")


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


def test_docker_runs_and_the_operators_settings_stay(role: Role) -> None:
    play = role.converge({**WANTED, "container_runtime_validate": "on_change"})
    assert "container_runtime : Run a container and try its limits" in play.stdout
    for machine in MACHINES:
        found = daemon_json(machine)
        assert list(found)[:2] == list(OPERATORS)
        assert found["default-ulimits"] == OPERATORS["default-ulimits"]
        assert found["labels"] == ["site=a", "role=gpu"]
        assert found["log-opts"] == {"max-size": "50m"}
        info = json.loads(ssh(machine, "sudo docker info --format '{{json .}}'"))
        assert info["LiveRestoreEnabled"] is True
        assert sorted(info["Labels"]) == ["role=gpu", "site=a"]
        assert ssh(machine, "systemctl is-enabled docker.service").strip() == "enabled"
        # The container that proved the limits is gone, its image too.
        assert info["Containers"] == 0
        assert info["Images"] == 0


def test_a_second_run_changes_nothing_and_restarts_nothing(role: Role) -> None:
    before = {machine: started(machine) for machine in MACHINES}
    for machine in MACHINES:
        lab("traffic", machine, "--reset")
    role.is_converged(WANTED)
    assert {machine: started(machine) for machine in MACHINES} == before
    for machine in MACHINES:
        traffic = json.loads(lab("traffic", machine))
        assert (traffic["apt"]["packets"], traffic["forwarded"]["packets"]) == (0, 0)


def test_a_container_lives_on_where_a_reload_is_enough(role: Role) -> None:
    before = {machine: started(machine) for machine in MACHINES}
    mirror = {"container_runtime_docker_registry_mirrors": ["https://mirror.example.com"]}
    role.converge({**WANTED, **mirror})
    assert {machine: started(machine) for machine in MACHINES} == before
    for machine in MACHINES:
        mirrors = ssh(machine, "sudo docker info --format '{{json .RegistryConfig.Mirrors}}'")
        assert json.loads(mirrors) == ["https://mirror.example.com/"]
    # No longer wanted: taken out again, because it was ours.
    role.converge(WANTED)
    assert "registry-mirrors" not in daemon_json(DEBIAN_13)


def test_a_run_cut_before_the_restart_is_completed_by_the_next(role: Role) -> None:
    """The first thing named systemctl that the module finds kills it instead of restarting Docker."""
    trap = "/usr/local/sbin/systemctl"
    text = '#!/bin/sh\ncase "$1" in restart) kill -9 $PPID ;; *) exec /usr/bin/systemctl "$@" ;; esac'
    write(DEBIAN_13, trap, text, mode="0755")
    before = started(DEBIAN_13)
    changed = {**WANTED, "container_runtime_docker_log_options": {"max-size": "60m"}}
    play = role.run(changed, only=DEBIAN_13)
    assert play.rc != 0, "the trap did not close"
    assert daemon_json(DEBIAN_13)["log-opts"] == {"max-size": "60m"}
    assert started(DEBIAN_13) == before
    ssh(DEBIAN_13, f"sudo rm {trap}")
    play = role.converge(changed, only=DEBIAN_13)
    assert any("Merge the settings" in task for task in play.changed_tasks[DEBIAN_13])
    assert started(DEBIAN_13) != before
    role.is_converged(changed, only=DEBIAN_13)


def test_a_setting_that_docker_refuses(role: Role) -> None:
    """Docker 26 says so when it is asked; Docker 20 does not start, and gets its earlier file back."""
    role.converge(WANTED)
    before = {machine: daemon_json(machine) for machine in MACHINES}
    since = started(DEBIAN_13)
    play = role.run({**WANTED, "container_runtime_docker_config": {"no-such-setting": 1}})
    assert "would not be valid with the wanted values and is left as it is" in " ".join(play.failures[DEBIAN_13])
    assert "no-such-setting" in " ".join(play.failures[DEBIAN_13])
    assert started(DEBIAN_13) == since
    assert "runs with the earlier file again" in " ".join(play.failures[DEBIAN_12])
    assert "no-such-setting" in " ".join(play.failures[DEBIAN_12])
    assert {machine: daemon_json(machine) for machine in MACHINES} == before
    assert ssh(DEBIAN_12, "systemctl is-active docker.service").strip() == "active"
    role.is_converged(WANTED)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
