# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate passes clusters that work, and says of every other what is missing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import readiness as ceph_readiness

CAPTURED = json.loads(Path(__file__).with_name("readiness_captured.json").read_text())
RELEASES = [key for key in CAPTURED if key != "about"]


def expected(answers: dict[str, Any]) -> dict[str, Any]:
    return {
        "fsid": answers["status"]["fsid"],
        "mons": answers["status"]["quorum_names"],
        "mgrs": 3,
        "osds": [row["osd"] for row in answers["osd"]["osds"]],
        "filesystems": ["cephfs"],
        "standbys": 1,
        "health": True,
        "ignored": ["MON_DISK_LOW"],
    }


@pytest.mark.parametrize("release", RELEASES)
def test_a_cluster_that_works_passes(release):
    answers = CAPTURED[release]
    assert ceph_readiness.problems(ceph_readiness.summary(answers), expected(answers)) == []


def ranks(answers: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in answers["fs"]["filesystems"][0]["mdsmap"]["info"].values() if row["rank"] >= 0]


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a monitor is missing": (lambda a: a["status"]["quorum_names"].pop(), "not in the quorum"),
    "it is another cluster": (lambda a: a["status"].update(fsid="other"), "it is the cluster other"),
    "no mgr is active": (lambda a: a["mgr"].update(available=False), "no mgr is active"),
    "a standby mgr is missing": (lambda a: a["mgr"]["standbys"].pop(), "2 of 3 mgrs"),
    "an OSD is down": (lambda a: a["osd"]["osds"][0].update(up=0), "is down"),
    "an OSD is out": (lambda a: a["osd"]["osds"][0].update({"in": 0}), "is out"),
    "an OSD is gone": (lambda a: a["osd"]["osds"].pop(), "not known"),
    "an OSD is too many": (
        lambda a: a["osd"]["osds"].append({"osd": 99, "up": 1, "in": 1, "uuid": "x"}),
        "osd.99 is in the map",
    ),
    "a placement group is degraded": (
        lambda a: a["status"]["pgmap"]["pgs_by_state"].append({"state_name": "active+undersized", "count": 2}),
        "2 placement groups are active+undersized",
    ),
    "a rank replays": (lambda a: ranks(a)[0].update(state="up:replay"), "up:replay"),
    "the file system is missing": (lambda a: a["fs"]["filesystems"].clear(), "no file system cephfs"),
    "no MDS stands by": (lambda a: a["fs"]["standbys"].clear(), "0 of 1 MDS"),
    "a warning": (
        lambda a: a["status"]["health"]["checks"].update(OSD_NEARFULL={"summary": {"message": "1 nearfull osd"}}),
        "OSD_NEARFULL: 1 nearfull osd",
    ),
    "a module does not load": (
        lambda a: next(row for row in a["mgr"]["available_modules"] if row["name"] == "volumes").update(
            can_run=False, error_string="Traceback\nImportError: PyO3 modules do not yet support subinterpreters"
        ),
        "volumes does not load: ImportError: PyO3",
    ),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", FAULTS)
def test_each_fault_is_told_and_nothing_else(release, case):
    fault, words = FAULTS[case]
    wanted, answers = expected(CAPTURED[release]), copy.deepcopy(CAPTURED[release])
    wanted = copy.deepcopy(wanted)
    fault(answers)
    (problem,) = ceph_readiness.problems(ceph_readiness.summary(answers), wanted)
    assert words in problem.cause
    assert problem.remedy


@pytest.mark.parametrize("release", RELEASES)
def test_a_muted_warning_and_a_crash_of_the_past_do_not_count_and_scrubbing_is_clean(release):
    wanted, answers = expected(CAPTURED[release]), copy.deepcopy(CAPTURED[release])
    answers["status"]["health"]["checks"]["RECENT_CRASH"] = {"summary": {"message": "1 daemons have recently crashed"}}
    answers["status"]["health"]["checks"]["X"] = {"summary": {"message": "x"}, "muted": True}
    answers["status"]["pgmap"]["pgs_by_state"].append({"state_name": "active+clean+scrubbing", "count": 1})
    assert ceph_readiness.problems(ceph_readiness.summary(answers), wanted) == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_warning_of_ceph_is_told_and_does_not_count_where_warnings_do_not(release):
    wanted, answers = copy.deepcopy(expected(CAPTURED[release])), copy.deepcopy(CAPTURED[release])
    wanted |= {"warnings": False, "ignored": []}
    answers["status"]["health"]["checks"] = {
        "MON_DISK_LOW": {"severity": "HEALTH_WARN", "summary": {"message": "mon a is low on available space"}},
        "MON_CLOCK_SKEW": {"severity": "HEALTH_WARN", "summary": {"message": "clock skew detected on mon.b"}},
        "OSD_FULL": {"severity": "HEALTH_ERR", "summary": {"message": "1 full osd(s)"}},
    }
    current = ceph_readiness.summary(answers)
    # What the roles see to counts, and so does whatever is no warning.
    assert {row.subject for row in ceph_readiness.problems(current, wanted)} == {"MON_CLOCK_SKEW", "OSD_FULL"}
    (told,) = ceph_readiness.warnings(current, wanted)
    assert "mon a is low on available space" in told
    assert "df -h /var/lib/ceph" in told
    assert len(ceph_readiness.problems(current, {**wanted, "warnings": True})) == 3


def test_only_what_is_expected_is_asked_for():
    asked = []

    class Recorder:
        def json(self, *words: str) -> Any:
            asked.append(words[0])
            return {}

    ceph_readiness.gather(Recorder(), {"mons": ["a"], "osds": None})  # type: ignore[arg-type]  # it only has `json`
    assert asked == ["status"]
