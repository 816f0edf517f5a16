# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement of what jobs of Slurm told."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL, NOT_APPLICABLE, NOT_TESTABLE, PASS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.scheduler import REMEDIES, items

JOBS = {
    "node": "n1",
    "state": "IDLE",
    "reason": "",
    "in_service": True,
    "drained": False,
    "owner": None,
    "why": "",
    "kinds": {kind: {"ok": True, "text": "well"} for kind in REMEDIES},
}


JOBS["kinds"]["collective"]["gb_s"] = 230.0
SERVICES = {"head": {"collectives": {"nodes": ["n1", "n2", "n3"], "ok": True, "text": "well", "gb_s": 20.0}}}


@pytest.fixture
def hosts():
    return {name: {"jobs": copy.deepcopy(JOBS)} for name in ("n1", "n2", "n3")}


def failures(found):
    return {(item.host, item.id) for item in found if item.outcome == FAIL}


def test_sound_nodes_pass(hosts):
    found = items(hosts, SERVICES)
    assert {item.outcome for item in found} == {PASS}
    assert len(found) == 3 * (2 + len(REMEDIES)) + 1


@pytest.mark.parametrize("kind", REMEDIES)
def test_a_kind_of_job_that_fails_is_named_with_a_remedy(hosts, kind):
    hosts["n2"]["jobs"]["kinds"][kind] = {"ok": False, "text": "ended with 1"}
    found = items(hosts, SERVICES)
    assert failures(found) == {("n2", f"scheduler.{kind}")}
    (item,) = [item for item in found if item.outcome == FAIL]
    assert item.remedy
    assert item.evidence == "ended with 1"


def test_a_drain_of_somebody_fails_and_our_own_is_not_testable(hosts):
    taken = {"state": "IDLE+DRAIN", "drained": True, "why": "the node takes no jobs", "kinds": {}}
    hosts["n1"]["jobs"].update(taken, owner="operator", reason="gpuops drain: maintenance")
    hosts["n2"]["jobs"].update(taken, owner="other", reason="broken")
    found = items(hosts, SERVICES)
    assert failures(found) == {("n2", "scheduler.state")}
    (ours,) = [item for item in found if item.host == "n1" and item.id == "scheduler.state"]
    assert ours.outcome == NOT_TESTABLE
    assert "gpuops restore n1" in ours.remedy


def test_who_is_no_node_and_who_did_not_answer():
    found = items({"n1": {"jobs": None}, "n2": {}, "n3": {"jobs": None, "why": "slurmctld does not answer"}}, {})
    assert [item.outcome for item in found] == [NOT_APPLICABLE, NOT_TESTABLE, NOT_TESTABLE]


def test_a_host_that_lies_breaks_nothing(hosts):
    for nonsense in (7, "x", [7], {"kinds": 7}, {"kinds": {"gpu": 7}}, {"kinds": {"gpu": {"ok": "yes"}}}):
        hosts["n2"] = {"jobs": nonsense}
        assert {item.host for item in items(hosts, SERVICES) if item.outcome == FAIL} <= {"n2"}


def test_a_node_whose_gpus_together_are_slow_is_named(hosts):
    hosts["n2"]["jobs"]["kinds"]["collective"]["gb_s"] = 190.0
    assert failures(items(hosts, SERVICES)) == {("n2", "scheduler.fleet")}


def test_an_all_reduce_between_nodes_that_fails_or_could_not_be_tried(hosts):
    failed = {"head": {"collectives": {"nodes": ["n1", "n2"], "ok": False, "text": "it hung"}}}
    assert failures(items(hosts, failed)) == {("head", "scheduler.collectives")}
    untried = {"head": {"collectives": {"nodes": [], "ok": None, "text": "no torch"}}}
    assert [item.outcome for item in items(hosts, untried) if item.host == "head"] == [NOT_TESTABLE]
