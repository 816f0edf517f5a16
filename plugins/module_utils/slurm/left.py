# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that a job has left on its GPUs, and which of them may be ended.

slurmd ends what is in the cgroup of a job. What a user has started beside it, by systemd or in a container engine,
stays. A process is ended only where all its user ids are those of the job's user, who is not root, and where it cannot
belong to another job of that user: it is in the cgroup of this job, or the user has no other job on the node.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

WAIT_S = 2.0
# slurmd's own cgroups. A user can make one with such a name only below another, so the way to it counts from the top.
_JOB = (
    r"(?m)^\d+:[^:]*:/(?:system\.slice/(?:[\w.-]+_)?slurmstepd\.scope|slurm(?:_[\w.-]+)?/uid_\d+)/job_(\d{1,10})(?:/|$)"
)


class Process(NamedTuple):
    """A process. `uids` are all of its user ids; `job` is that of the cgroup it is in, None outside of any."""

    pid: int
    name: str
    uids: frozenset[int]
    started: str
    job: int | None


def look(pid: int, proc: str = "/proc") -> Process | None:
    """None where there is no such process."""
    status = read_text(f"{proc}/{pid}/status", 8192)
    uids = re.search(r"^Uid:((?:\s+\d+)+)$", status, re.MULTILINE)
    fields = read_text(f"{proc}/{pid}/stat", 8192).rpartition(")")[2].split()
    if uids is None or len(fields) < 20:
        return None
    name = re.search(r"^Name:\t(.*)$", status, re.MULTILINE)
    job = re.search(_JOB, read_text(f"{proc}/{pid}/cgroup", 16384))
    return Process(
        pid,
        one_line(name[1], 32) if name else "",
        frozenset(map(int, uids[1].split())),
        fields[19],
        int(job[1]) if job else None,
    )


def has_other_job(uid: int, job: int, proc: str = "/proc") -> bool:
    """Whether a user has processes of another job on the node."""
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    rows = (look(pid, proc) for pid in pids)
    return any(row is not None and uid in row.uids and row.job not in (None, job) for row in rows)


def may_be_ended(process: Process, uid: int, job: int, other_job: bool) -> bool:
    if uid == 0 or process.uids != {uid}:
        return False
    return process.job == job or (process.job is None and not other_job)


def end(processes: Sequence[Process], proc: str = "/proc", wait_s: float = WAIT_S) -> list[Process]:
    """Ends processes, and answers those that are still there. What has got the PID of another meanwhile is left."""
    waiting: dict[int, Process] = {}
    stay = []
    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            except OSError:
                # A kernel without it, where a PID could be another's by now.
                stay.append(process)
                continue
            if look(process.pid, proc) != process:
                os.close(descriptor)
                continue
            waiting[descriptor] = process
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        deadline = time.monotonic() + wait_s
        gone: set[int] = set()
        while len(gone) < len(waiting) and time.monotonic() < deadline:
            left = [one for one in waiting if one not in gone]
            gone |= set(select.select(left, [], [], max(0.0, deadline - time.monotonic()))[0])
        return [*stay, *(process for descriptor, process in waiting.items() if descriptor not in gone)]
    finally:
        for descriptor in waiting:
            os.close(descriptor)
