# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes an Epilog may end, told from /proc, and that it ends no other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import left

UID, JOB = 1001, 17
V1 = "3:devices:/slurm_n1/uid_1001/job_{job}/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n"
V2 = "0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n"
OUTSIDE = "0::/user.slice/user-1001.slice/user@1001.service/app.slice/run-1.service\n"
# Made by the user below a cgroup that systemd has given to it.
DISGUISED = "0::/user.slice/user-1001.slice/user@1001.service/system.slice/slurmstepd.scope/job_99/x\n"


@pytest.fixture
def process(tmp_path: Path):
    """Writes a process into a /proc of its own, and looks at it."""

    def make(pid: int, cgroup: str, *uids: int) -> left.Process:
        place = tmp_path / str(pid)
        place.mkdir()
        numbers = "\t".join(map(str, (*uids, *(uids[-1:] * (4 - len(uids))))))
        (place / "status").write_text(f"Name:\ttrain\x1b\nUmask:\t0022\nUid:\t{numbers}\n")
        (place / "stat").write_text(f"{pid} (a) b) S " + " ".join(["1"] * 18 + ["4242"] + ["0"] * 30))
        (place / "cgroup").write_text(cgroup)
        found = left.look(pid, str(tmp_path))
        assert found is not None
        return found

    return make


def test_a_process_is_known_by_its_users_its_start_and_the_job_of_its_cgroup(process) -> None:
    found = process(5, V1.format(job=17), 1001, 0)
    assert found.uids == {1001, 0}
    assert found.started == "4242"
    assert found.job == 17
    assert found.name.isprintable()
    assert process(6, V2.format(job=18), UID).job == 18
    assert process(7, OUTSIDE, UID).job is None


def test_a_process_that_is_gone_is_none(tmp_path: Path) -> None:
    assert left.look(1, str(tmp_path)) is None


def test_what_the_user_left_outside_of_every_job_may_be_ended(process) -> None:
    assert left.may_be_ended(process(5, OUTSIDE, UID), UID, JOB, other_job=False)
    assert left.may_be_ended(process(6, DISGUISED, UID), UID, JOB, other_job=False)


@pytest.mark.parametrize(
    ("cgroup", "uids", "uid", "other_job"),
    [
        (OUTSIDE, (1002,), UID, False),
        (OUTSIDE, (0,), UID, False),
        (OUTSIDE, (UID, 0), UID, False),
        (OUTSIDE, (0,), 0, False),
        (OUTSIDE, (UID,), UID, True),
        (V1.format(job=18), (UID,), UID, False),
        (V2.format(job=18), (UID,), UID, False),
    ],
    ids=["another user", "root", "setuid", "a job of root", "has another job", "of another job", "of another job, v2"],
)
def test_what_may_be_somebody_elses_may_not(process, cgroup, uids, uid, other_job) -> None:
    assert not left.may_be_ended(process(5, cgroup, *uids), uid, JOB, other_job)


def test_what_is_in_the_jobs_own_cgroup_may_be_ended_beside_another_job(process) -> None:
    assert left.may_be_ended(process(5, V2.format(job=JOB), UID), UID, JOB, other_job=True)


def test_another_job_of_the_user_is_seen_by_its_processes(process, tmp_path: Path) -> None:
    process(5, OUTSIDE, UID)
    process(6, V2.format(job=JOB), UID)
    process(7, V2.format(job=18), 1002)
    process(8, DISGUISED, UID)
    assert not left.has_other_job(UID, JOB, str(tmp_path))
    process(9, V1.format(job=18), UID)
    assert left.has_other_job(UID, JOB, str(tmp_path))


@contextlib.contextmanager
def sleeping(**options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is reaped as soon as it ends, as by the service manager."""
    started = subprocess.Popen(["sleep", "600"], **options)
    # Its name is set a moment after the program is.
    while (found := left.look(started.pid)) is not None and found.name != "sleep":
        time.sleep(0.01)
    reaper = threading.Thread(target=started.wait)
    reaper.start()
    yield started
    started.kill()
    reaper.join()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with sleeping() as started:
        yield started


def test_a_process_is_ended(sleeper) -> None:
    found = left.look(sleeper.pid)
    assert found is not None
    assert left.end([found]) == []
    assert sleeper.wait(60) == -signal.SIGKILL


def test_who_has_the_pid_of_a_process_that_is_gone_is_left_alone(sleeper) -> None:
    found = left.look(sleeper.pid)
    assert found is not None
    assert left.end([found._replace(started="1")]) == []
    assert sleeper.poll() is None


def test_a_process_that_is_gone_needs_no_end() -> None:
    over = subprocess.Popen(["true"])
    over.wait()
    gone = left.Process(over.pid, "true", frozenset({os.getuid()}), "1", None)
    assert left.end([gone]) == []
