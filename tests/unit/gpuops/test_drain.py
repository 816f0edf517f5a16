# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops drain and restore, as they are called, against a stand-in of Mesos on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuops.commands.drain import Taken
from gpuops.run.events import HostResult, Task
from tests.unit.gpuops.conftest import HERE, Bench
from tests.unit.reconcile.test_reconcile_playbooks import PlaySite


@pytest.fixture
def mesos(bench: Bench, tmp_path) -> Iterator[PlaySite]:
    """A cluster with one agent, n1; the site knows n1, and n2, whose agent never came."""
    (tmp_path / "cluster").mkdir()
    cluster = PlaySite(tmp_path / "cluster")
    about = {
        **HERE,
        "mesos_operator_masters": [cluster.cluster.url],
        "mesos_operator_ledger": str(tmp_path / "ledger.json"),
    }
    bench.hosts(n1=about, n2=about)
    yield cluster
    cluster.stop()


@pytest.mark.slow
def test_a_host_is_taken_out_and_brought_back(bench: Bench, mesos: PlaySite):
    done = bench.call("drain", "n1", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "n1: agent " in done.stdout
    assert "is active and would be drained" in done.stdout
    assert mesos.state() == "ACTIVE"

    done = bench.call("drain", "n1", "--timeout", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is drained; `gpuops restore` brings it back" in done.stdout
    assert "1 host in" in done.stdout, "the controller is no host of the run"
    assert mesos.state() == "DRAINED"
    assert "is drained already; `gpuops restore`" in bench.call("drain", "n1").stdout

    done = bench.call("restore", "n1", "--check")
    assert "is drained and would be brought back" in done.stdout
    assert mesos.state() == "DRAINED"
    done = bench.call("restore", "n1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["hosts"]["n1"]["action"] == "reactivate"
    assert mesos.state() == "ACTIVE"
    assert "takes tasks already" in bench.call("restore", "n1").stdout


@pytest.mark.slow
def test_what_somebody_else_drained_is_left_alone_until_it_is_taken_over(bench: Bench, mesos: PlaySite):
    agent = mesos.agent["id"]
    mesos.cluster.ask("/api/v1", {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": {"value": agent}}})
    done = bench.call("drain", "n1", "--timeout", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "and not from here: `gpuops restore` leaves it alone without --takeover" in done.stdout
    done = bench.call("restore", "n1")
    assert done.returncode == 2
    assert "not by us" in done.stdout
    assert "run `gpuops restore n1`" in done.stdout
    done = bench.call("restore", "n1", "--takeover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert mesos.state() == "ACTIVE"


@pytest.mark.slow
def test_one_host_without_an_agent_does_not_keep_the_other(bench: Bench, mesos: PlaySite):
    done = bench.call("drain", "all", "--timeout", "20", "--", "-e", "drain_serial=1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "✗ n2 failed in Drain the hosts" in done.stdout
    assert "no agent of this name is registered" in done.stdout
    assert "then run `gpuops drain n2`" in done.stdout
    assert mesos.state() == "DRAINED"


def test_a_name_that_is_no_host_changes_nothing(bench: Bench):
    bench.hosts(n1=HERE)
    for command in ("drain", "restore"):
        done = bench.call(command, "n1", "n7")
        assert done.returncode == 64
        assert f"gpuops {command}: " in done.stderr
        assert "no host matches 'n7'" in done.stderr
    assert not (bench.path / ".gpuops").exists()


def test_masters_that_are_not_given_are_asked_for(bench: Bench):
    bench.hosts(n1=HERE)
    done = bench.call("drain", "n1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "and mesos_operator_masters is" in done.stdout


def test_a_node_of_slurm_needs_a_controller(bench: Bench):
    groups = {"slurm_nodes": {"hosts": {"n1": HERE}}}
    bench.inventory.write_text(json.dumps({"all": {"children": groups}}))
    for command in ("drain", "restore"):
        done = bench.call(command, "n1")
        assert done.returncode == 2, done.stdout + done.stderr
        assert "no host is in the group slurm_controllers" in done.stdout
        assert "mesos" not in done.stdout


def node(wanted: str, action: str | None, owner: str | None, jobs: tuple[dict[str, Any], ...] = ()) -> HostResult:
    """What the module slurm_maintenance tells of n1."""
    out = {"reason": "a fan", "reason_by": "root", "reason_since": "2026-11-27T14:00:00", "owner": owner}
    result = {"wanted": wanted, "action": action, "ours": owner == "operator", "node": out, "jobs": jobs}
    return HostResult(host="n1", task=Task(action="slurm_maintenance"), result=result)


def lines(*results: HostResult, restore: bool = False, check: bool = False) -> list[str]:
    taken = Taken(restore)
    for one in results:
        taken.take(one)
    return taken.lines(restore, check)


def test_what_became_of_a_node_of_slurm_is_told():
    begun = node("drained", "drain", "operator", ({"id": 7, "user": "alice"},))
    assert lines(begun) == [
        "n1: its node of Slurm is drained, with jobs on it (7 of alice); `gpuops restore` brings it back"
    ]
    assert lines(begun, node("drained", None, "operator")) == [
        "n1: its node of Slurm is drained; `gpuops restore` brings it back"
    ]
    assert lines(begun, check=True) == ["n1: its node of Slurm would be drained, with jobs on it (7 of alice)"]
    assert "is drained already; `gpuops restore`" in lines(node("drained", None, "operator"))[0]
    (others,) = lines(node("drained", None, "other"))
    assert "taken out by root since 2026-11-27T14:00:00 with the reason 'a fan'" in others
    assert "leaves it alone without --takeover" in others


def test_what_a_restore_only_asks_is_not_told_as_done():
    asked = node("drained", None, "operator")
    assert lines(asked, restore=True) == []
    assert lines(asked, node("active", "resume", None), restore=True) == ["n1: its node of Slurm takes jobs again"]
    assert lines(node("active", None, None), restore=True) == ["n1: its node of Slurm takes jobs already"]
    (given_back,) = lines(node("active", "hand_back", "reconciler"), restore=True)
    assert "stays drained by the reconciler" in given_back
