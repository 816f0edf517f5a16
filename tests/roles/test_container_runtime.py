# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_runtime with real Docker, on Debian 13 and Debian 12. The tests run in order on one lab."""

from __future__ import annotations

import json

import pytest

from tests.roles.conftest import DEBIAN_12, DEBIAN_13, MACHINES, Role, lab, ssh
from tests.roles.docker_host import DAEMON_JSON, OPERATORS, WANTED, daemon_json, started, write

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    return Role("container_runtime", MACHINES)


def test_docker_runs_and_the_operators_settings_stay(role: Role) -> None:
    for machine in MACHINES:
        write(machine, DAEMON_JSON, json.dumps(OPERATORS))
    play = role.converge({**WANTED, "container_runtime_validate": "on_change"})
    assert "container_runtime : Run a container and test its limits" in play.stdout
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


@pytest.mark.slow
def test_docker_is_started_where_systemd_has_given_it_up(role: Role) -> None:
    # With make test-full other files have reset the machines by now: the slow tests come after all others.
    role.converge(WANTED, only=DEBIAN_13)
    patience = "/etc/systemd/system/docker.service.d/90-test.conf"
    write(DEBIAN_13, patience, "[Unit]\nStartLimitIntervalSec=30min\nStartLimitBurst=2\n")
    ssh(DEBIAN_13, "sudo systemctl daemon-reload; while sudo systemctl restart docker.service 2>/dev/null; do :; done")
    assert ssh(DEBIAN_13, "systemctl is-failed docker.service").strip() == "failed"
    play = role.converge(WANTED, only=DEBIAN_13)
    assert ssh(DEBIAN_13, "systemctl is-active docker.service").strip() == "active"
    plan = [line for (host, _stage), lines in play.drifts.items() if host == DEBIAN_13 for line in lines]
    assert plan == ["start unit docker.service (is failed)"]
    ssh(DEBIAN_13, f"sudo rm {patience} && sudo systemctl daemon-reload")
    role.is_converged(WANTED, only=DEBIAN_13)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_package_that_was_cut_while_it_was_unpacked_is_unpacked_anew(role: Role) -> None:
    """What a power cut leaves in the records of dpkg; its own --configure passes it over."""
    changed = {**WANTED, "container_runtime_docker_log_options": {"max-size": "60m"}}
    torn = "/^Package: containerd$/{n;s/install ok installed/install reinstreq half-installed/}"
    ssh(DEBIAN_13, f"sudo sed -i '{torn}' /var/lib/dpkg/status")
    state = "dpkg-query --show --showformat='${Status}' containerd"
    assert ssh(DEBIAN_13, state) == "install reinstreq half-installed"
    role.converge(changed, only=DEBIAN_13)
    assert ssh(DEBIAN_13, state) == "install ok installed"
    role.is_converged(changed, only=DEBIAN_13)


@pytest.mark.slow
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
