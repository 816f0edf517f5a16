# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement of the storage: what fails is named, and nothing else is."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL, NOT_APPLICABLE, NOT_TESTABLE, PASS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.storage import FIGURES, items

GIB = 2**30
MEASURED = {
    "directory": "/home/alice",
    "error": None,
    "is_fault": False,
    "space": {"path": "/home/alice", "total_bytes": 50 * GIB, "free_bytes": 40 * GIB},
    "write_mb_s": 900.0,
    "read_mb_s": 1100.0,
    "read_iops": 9000.0,
    "write_iops": 4000.0,
    "fsync_ms": 2.0,
}
LOCAL = {"path": "/", "total_bytes": 100 * GIB, "free_bytes": 50 * GIB}


@pytest.fixture
def hosts():
    row = {"storage": {"has_fio": True, "spaces": [dict(LOCAL)], "measured": dict(MEASURED)}}
    return {name: copy.deepcopy(row) for name in ("n1", "n2", "n3", "n4")}


@pytest.fixture
def services():
    homes = {name: {"size": 50 * GIB, "state": "complete"} for name in ("alice", "bob")}
    return {
        "stor1": {
            "ceph": {"cluster": {"health": {"status": "HEALTH_OK", "checks": {}}}, "problems": []},
            "homes": {"subvolumes": homes},
        }
    }


def failures(found):
    return {(item.host, item.subject, item.id) for item in found if item.outcome == FAIL}


def test_sound_storage_passes_every_item(hosts, services):
    found = items(hosts, services)
    assert {item.outcome for item in found} == {PASS}
    assert {item.id for item in found} >= {row[0] for row in FIGURES.values()} | {"storage.quota", "storage.health"}


def test_a_home_without_a_quota_is_named_and_nothing_else(hosts, services):
    services["stor1"]["homes"]["subvolumes"]["bob"]["size"] = 0
    found = items(hosts, services)
    assert failures(found) == {("stor1", "home bob", "storage.quota")}
    assert [item.remedy for item in found if item.outcome == FAIL] != [""]


def test_a_cluster_that_warns_is_named_with_what_it_says(hosts, services):
    problem = {"cause": "Ceph warns", "evidence": "OSD_DOWN: 1 osds down", "remedy": "look at osd.3"}
    services["stor1"]["ceph"]["problems"] = [problem]
    found = items(hosts, services)
    assert failures(found) == {("stor1", "", "storage.health")}
    assert [item.evidence for item in found if item.outcome == FAIL] == ["Ceph warns OSD_DOWN: 1 osds down"]


@pytest.mark.parametrize("key", FIGURES)
def test_a_host_that_is_much_slower_is_named_alone(hosts, services, key):
    hosts["n2"]["storage"]["measured"][key] *= 3.0 if key == "fsync_ms" else 0.3
    assert failures(items(hosts, services)) == {("n2", "", FIGURES[key][0])}


def test_a_file_system_that_is_full_is_named(hosts, services):
    hosts["n3"]["storage"]["spaces"][0]["free_bytes"] = GIB
    assert failures(items(hosts, services)) == {("n3", "/", "storage.space")}


def test_storage_that_fails_is_told_apart_from_what_was_not_tried(hosts, services):
    nothing = dict.fromkeys((*FIGURES, "space"))
    hosts["n1"]["storage"]["measured"].update(nothing, error="fio failed: Input/output error", is_fault=True)
    hosts["n2"]["storage"]["measured"].update(nothing, error="/srv belongs to root", is_fault=False)
    hosts["n3"]["storage"].update(has_fio=False, measured=None)
    hosts["n4"]["storage"]["measured"] = None
    found = items(hosts, services)
    assert failures(found) == {("n1", "/home/alice", "storage.works")}
    outcomes = {item.host: item.outcome for item in found if item.id == "storage.works"}
    assert outcomes == {"n1": FAIL, "n2": NOT_TESTABLE, "n3": NOT_TESTABLE, "n4": NOT_APPLICABLE}


def test_who_is_silent_or_lies_breaks_nothing(hosts, services):
    assert {item.outcome for item in items({"n1": {}}, {})} == {NOT_TESTABLE}
    for nonsense in (None, 7, "x", [7], {"measured": 7, "spaces": 7}, {"has_fio": True, "measured": {"error": 7}}):
        hosts["n2"] = {"storage": nonsense}
        services["stor2"] = {"ceph": nonsense, "homes": nonsense}
        assert {item.host for item in items(hosts, services) if item.outcome == FAIL} <= {"n2", "stor2"}
