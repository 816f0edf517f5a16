# SPDX-License-Identifier: GPL-3.0-or-later
"""How full a home is, GPU hours, and what of somebody runs. The answers of Slurm are made up."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import own
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import ENDED, RUNS, WAITS, Session
from baremetal_gpu_portal import form_page, summary
from baremetal_gpu_portal.who import Look

GIB = 1 << 30


def answer(used: Any, quota: Any = None, answers: bool = True) -> dict[str, Any]:
    return {"answers": answers, "used": used, "quota": quota}


# --- the home --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cephfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose attributes are those of a home on CephFS, as far as a test sets them."""
    monkeypatch.setattr(own, "READ", own.READ.replace('"ceph.', '"user.ceph.'))
    return tmp_path


def test_the_attributes_of_cephfs_are_read(cephfs: Path) -> None:
    os.setxattr(cephfs, "user.ceph.dir.rbytes", b"42")
    assert own.home([], str(cephfs), host_run.run) == answer(42)
    os.setxattr(cephfs, "user.ceph.quota.max_bytes", b"50")
    assert own.home([], str(cephfs), host_run.run) == answer(42, 50)


@pytest.mark.parametrize("value", [b"", b"-1", b"many", b"9" * 30, b"\xff"])
def test_an_attribute_that_is_no_number_is_not_known(cephfs: Path, value: bytes) -> None:
    os.setxattr(cephfs, "user.ceph.dir.rbytes", value)
    assert own.home([], str(cephfs), host_run.run)["used"] is None


def test_of_another_file_system_nothing_is_known_and_nothing_is_shown(tmp_path: Path) -> None:
    found = own.home([], str(tmp_path), host_run.run)
    assert found == answer(None)
    assert form_page.home(summary.told_of_home(found)) == ""


def test_a_home_that_hangs_is_waited_for_as_long_as_that_takes_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "READ", "import time; time.sleep(600)")
    monkeypatch.setattr(own, "HOME_S", 0.5)
    found = own.home([], "/", host_run.run)
    assert found == answer(None, answers=False)
    assert summary.told_of_home(found) == summary.NO_ANSWER


@pytest.mark.parametrize(
    ("used", "quota", "text", "warns"),
    [
        (42 * GIB, 50 * GIB, "Your home: 42.0 of 50.0 GiB used.", False),
        (44 * GIB, 0, "Your home: 44.0 GiB used, without a quota.", False),
        (45 * GIB, 50 * GIB, "Your home is nearly full: 45.0 of 50.0 GiB used, 90 %.", True),
        (50 * GIB, 50 * GIB, "Your home is full: 50.0 of 50.0 GiB used, 100 %.", True),
        (51 * GIB, 50 * GIB, "Your home is full: 51.0 of 50.0 GiB used, 102 %.", True),
    ],
)
def test_it_is_told_in_words_and_from_nine_tenths_on_with_what_to_do(
    used: int, quota: int, text: str, warns: bool
) -> None:
    told = summary.told_of_home(answer(used, quota))
    assert told.text.startswith(text)
    assert told.warns == warns == ("To do: remove what you do not need" in told.text)


def test_the_form_shows_it_as_text() -> None:
    assert form_page.home(summary.Told("Your home: <b>")) == '<p id="portal-home">Your home: &lt;b&gt;</p>\n'
    assert form_page.home(summary.Told("full", True)) == '<p id="portal-home" class="alert alert-warning">full</p>\n'


# --- GPU hours -------------------------------------------------------------------------------------------------------


class Commands:
    """In the place of Slurm's commands: one job of two GPUs that ran for three hours, ten days ago."""

    def __init__(self, error: str = "") -> None:
        self.error, self.sacct = error, ""

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if "/usr/bin/sacct" in argv:
            self.sacct = " ".join(argv)
            start = time.time() - 10 * 86400
            times = "|".join(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(one)) for one in (start, start + 3 * 3600))
            line = f"7|alice|all|all|{times}|n1|cpu=4,gres/gpu=2"
            return (1, "", self.error) if self.error else (0, f"{line}\n", "")
        return 0, "", ""


def test_the_hours_are_those_of_the_user_alone() -> None:
    run = Commands()
    found = own.hours("alice", run, time.time())
    assert summary.told_of_hours(found).text == "Your GPU hours of the last 30 days: 6.0, in 1 job."
    assert "--user=alice" in run.sacct
    assert "--allusers" not in run.sacct


def test_without_accounting_the_reason_is_told() -> None:
    with pytest.raises(Refused, match="Slurm has no accounting"):
        own.hours("alice", Commands("sacct: error: Slurm accounting storage is disabled"), time.time())


# --- what runs -------------------------------------------------------------------------------------------------------


def job(number: str, name: str, user: str = "alice", gpus: int = 1, **more: Any) -> dict[str, Any]:
    row = {"id": number, "name": name, "user": user, "gpus": gpus, "ends": None, "waits_for": "", "holder": False}
    return {**row, "nodes": [{"name": "gpu1", "minors": [0]}], **more}


def test_sessions_and_jobs_with_gpus_of_one_user_are_told() -> None:
    sessions = [
        Session(1, "alice", RUNS, node="gpu1", ends=1.8e9),
        Session(2, "alice", WAITS, "no node has room", server="train"),
        Session(3, "alice", ENDED),
        Session(4, "bob", RUNS, node="gpu2"),
    ]
    jobs = [
        job("1", "portal-session", gpus=2),
        job("2", "portal-session", nodes=[]),
        job("3", "portal-session"),
        job("5", "sweep", nodes=[], waits_for="your quota"),
        job("6", "copies", gpus=0),
        job("7", "other", "bob"),
    ]
    found = summary.told_of_jobs(Look(0.0, {"jobs": jobs}, {one.job: one for one in sessions}, ""), "alice")
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(1.8e9))
    assert found == (
        {
            "": f"A session (job 1): 2 GPUs on gpu1 until {ends} at the latest",
            "train": "The session train (job 2): 1 GPU, waits: no node has room",
        },
        ["sweep (job 5): 1 GPU, waits: your quota"],
    )


def test_of_very_many_the_first_are_told_and_how_many_more_there_are() -> None:
    jobs = [job(str(number), "sweep") for number in range(summary.JOBS_AT_MOST + 5)]
    _sessions, found = summary.told_of_jobs(Look(0.0, {"jobs": jobs}, {}, ""), "alice")
    assert len(found) == summary.JOBS_AT_MOST + 1
    assert found[-1] == "and 5 more, which are in Who uses what"


def test_a_session_may_be_extended_by_what_is_left_of_the_limit() -> None:
    at = 1.8e9
    hours = {"": 8, "train": 22, "long": 24}
    sessions = [
        Session(number, "alice", RUNS, ends=at + 3600 * each, server=name)
        for number, (name, each) in enumerate(hours.items())
    ]
    sessions.append(Session(8, "bob", RUNS, ends=at + 3600, server="other"))
    jobs = [{"id": str(one.job), "user": one.user, "started": at} for one in sessions]
    found = summary.more_hours(Look(0.0, {"jobs": jobs}, {one.job: one for one in sessions}, ""), "alice", 24)
    assert found == {"": summary.MORE_HOURS, "train": 2}
