# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml on the lab's machines, seen from outside: what it announces, what it brings, what a second run does.

The tests of this file run in order on one lab: bare machines first, finished ones after. The first run, the second and
the questions to the finished machines are those of the Molecule scenario `node`, step by step; what tests find out
besides happens between its steps.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.molecule_scenario import Scenario
from tests.site.plays import ROOT, Play, lab, run_playbook, run_scenario, services, ssh

pytestmark = pytest.mark.lab

# What the scenario gives to its runs: without the CUDA toolkit.
WITHOUT_TOOLKIT = yaml.safe_load((ROOT / "molecule/node/inventory/group_vars/all.yml").read_text())
GPU_MACHINES = ("gpu1", "gpu2")
MACHINES = (*GPU_MACHINES, "cpu1")


@pytest.fixture(scope="module")
def molecule(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Play]:
    """One command of Molecule for the scenario `node`, on the lab of these tests."""
    return functools.partial(run_scenario, Scenario("node"), directory=tmp_path_factory.mktemp("molecule"))


@pytest.fixture(scope="module")
def announced(bare_lab: None) -> Play:
    """What --check --diff says about bare machines."""
    before = {machine: lab("changes", machine) for machine in MACHINES}
    play = run_playbook("site.yml", options="--check --diff", extra_vars=WITHOUT_TOOLKIT)
    after = {machine: lab("changes", machine) for machine in MACHINES}
    assert after == before, "check mode changed files on a machine"
    return play


@pytest.fixture(scope="module")
def finished(announced: Play, molecule: Callable[[str], Play]) -> Play:
    """site.yml for real, once, on the machines that were only checked before."""
    return molecule("converge")


@pytest.fixture(scope="module")
def second(finished: Play, molecule: Callable[[str], Play]) -> dict[str, Any]:
    """site.yml again on finished machines, with their services and traffic before and after."""
    assert finished.rc == 0, finished.tail()
    running = {machine: services(machine) for machine in MACHINES}
    for machine in MACHINES:
        lab("traffic", machine, "--reset")
    play = molecule("idempotence")
    return {
        "play": play,
        "before": running,
        "after": {machine: services(machine) for machine in MACHINES},
        "traffic": {machine: json.loads(lab("traffic", machine)) for machine in MACHINES},
    }


def test_check_mode_passes_on_bare_machines(announced: Play) -> None:
    assert announced.rc == 0, announced.tail()


def test_site_is_green_on_all_machines(finished: Play) -> None:
    assert finished.rc == 0, finished.tail()
    assert finished.failures == {}


def test_check_mode_announced_what_the_run_then_did(announced: Play, finished: Play) -> None:
    assert finished.drifts, "no stage reported a plan"
    different = {}
    for (machine, stage), did in finished.drifts.items():
        planned = announced.drifts.get((machine, stage), [])
        # What an earlier stage of the run did is no longer to do; check mode announces it for both.
        earlier = {line for (other, _stage), lines in finished.drifts.items() if other == machine for line in lines}
        still = [line for line in planned if line in did or line not in earlier]
        if without_candidates(still) != without_candidates(did):
            different[machine, stage] = (planned, did)
    assert different == {}


def without_candidates(plan: list[str]) -> list[str]:
    """A plan without the versions that apt would take: a bare host has no package lists to tell them from.

    Nor with what a proof is due for, which is given for the first of these lines.
    """
    lines = [re.sub(r"^(install package \S+) \S+ \(", r"\1 (", line) for line in plan]
    return [re.sub(r"^(prove [^(]+) \(.*", r"\1", line) for line in lines]


def test_the_agent_runs_where_there_are_gpus_and_reports_that_they_are_well(finished: Play) -> None:
    for machine in GPU_MACHINES:
        local = json.loads(
            ssh(machine, "sudo systemctl is-active --quiet baremetal-gpu-agent && /etc/ansible/facts.d/gpu.fact")
        )
        assert local["health"]["verdict"] == "ok", (machine, local["health"])
        assert local["stale"] is False
        assert [device["uuid"] for device in local["devices"]] == ssh(
            machine, "cat /proc/driver/nvidia/gpus/*/information | sed -n 's/^GPU UUID:[[:space:]]*//p'"
        ).split()
    assert ssh("cpu1", "systemctl cat baremetal-gpu-agent || true; ls /usr/local/bin").strip() == ""


def finds_nothing_to_do(play: Play) -> None:
    assert play.rc == 0, play.tail()
    assert {machine: play.changed(machine) for machine in MACHINES} == dict.fromkeys(MACHINES, 0), play.changed_tasks


def test_second_run_changes_nothing(second: dict[str, Any]) -> None:
    finds_nothing_to_do(second["play"])


def test_second_run_restarts_no_service(second: dict[str, Any]) -> None:
    assert "docker.service" in second["before"]["gpu1"]
    assert all("baremetal-gpu-agent.service" in second["before"][machine] for machine in GPU_MACHINES)
    assert second["after"] == second["before"]


def test_finished_hosts_make_no_network_request(second: dict[str, Any]) -> None:
    sent = {
        machine: sum(row["packets"] for row in counters.values()) for machine, counters in second["traffic"].items()
    }
    assert sent == dict.fromkeys(MACHINES, 0), second["traffic"]


def test_check_mode_on_finished_machines_announces_nothing(second: dict[str, Any]) -> None:
    finds_nothing_to_do(run_playbook("site.yml", options="--check --diff", extra_vars=WITHOUT_TOOLKIT))


def test_finished_driver_and_engine_cost_one_execution_together(second: dict[str, Any]) -> None:
    play = run_playbook(ROOT / "tests" / "site" / "node_stages.yml", extra_vars=WITHOUT_TOOLKIT, count_executions=True)
    assert play.rc == 0, play.tail()
    empty = run_playbook(ROOT / "tests" / "site" / "facts_only.yml", extra_vars=WITHOUT_TOOLKIT, count_executions=True)
    hosts = set(play.executions)
    assert len(hosts) == len(GPU_MACHINES)
    # One of them has something to tell its operator on every run, which costs no more.
    cost = {host: play.executions[host] - empty.executions[host] for host in hosts}
    assert cost == dict.fromkeys(hosts, 1)


def test_the_auditor_agrees(second: dict[str, Any], molecule: Callable[[str], Play]) -> None:
    """Testinfra asks the hosts with their own tools, and knows nothing of the collection."""
    play = molecule("verify")
    assert play.rc == 0, play.tail()
    passed = re.search(r"(\d+) passed", play.stdout)
    assert passed is not None, play.tail(3000)
    assert int(passed[1]) >= 3 * len(MACHINES)


def test_a_boot_leaves_nothing_to_do(second: dict[str, Any]) -> None:
    """What the first run loaded by hand is what a boot loads, so containers keep the device nodes that they had."""
    nodes = {machine: ssh(machine, "ls -1 /dev/nvidia*") for machine in GPU_MACHINES}
    lab("power-cut", *MACHINES)
    lab("up")
    assert {machine: ssh(machine, "ls -1 /dev/nvidia*") for machine in GPU_MACHINES} == nodes
    finds_nothing_to_do(run_playbook("site.yml", extra_vars=WITHOUT_TOOLKIT))
