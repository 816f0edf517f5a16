# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a node of Slurm out of service for an operator and give it back, without undoing what somebody else has done.

Slurm keeps the reason of a drain, and the reason tells whose the drain is:

    gpuops drain: WHY                    an operator's
    gpuops drain: WHY; before: REASON    an operator's, of a node that the reconciler had drained before
    gpuops: WHY                          the reconciler's
    anything else                        somebody else's, whom nobody undoes here

The reconciler resumes what has its own mark alone, so it leaves a node that an operator works on. Users' jobs are
waited for and never cancelled. Jobs of the partition `gpuops` keep GPUs from users and are not waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import (
    FENCE_MARK,
    OPERATOR_MARK,
    REASON_AT_MOST,
    Job,
    Slurm,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.state import SCONTROL, closed

CONF = "/etc/slurm/slurm.conf"
OPERATOR, RECONCILER, OTHER = "operator", "reconciler", "other"
BEFORE = "; before: "
WHY_AT_MOST = 120
SHOWN_JOBS = 10
POLL_S = 2.0
# Between the start of slurmd's process and what slurmd itself calls its start, and for the parts of seconds.
START_S = 2.0

Row = Mapping[str, Any]


def owner(row: Row) -> str | None:
    """Who has taken a node out: OPERATOR, RECONCILER or OTHER; None where nobody has."""
    if not row["drained"]:
        # slurmctld itself sets nodes down that do not answer, which is nobody's doing.
        is_set_down = row["down"] and row["reason_by"] not in ("", "slurm")
        return OTHER if is_set_down else None
    if row["reason"].startswith(OPERATOR_MARK):
        return OPERATOR
    return RECONCILER if row["reason"].startswith(FENCE_MARK) else OTHER


def drain_reason(why: str, row: Row) -> str:
    """The reason of an operator's drain, with the reconciler's behind it where the node was drained for that."""
    told = OPERATOR_MARK + one_line(why, WHY_AT_MOST).replace(BEFORE, "; ")
    return one_line(f"{told}{BEFORE}{row['reason']}" if owner(row) == RECONCILER else told, REASON_AT_MOST)


def reason_before(reason: str) -> str:
    """The reconciler's reason behind an operator's; empty without one."""
    before = reason.partition(BEFORE)[2]
    return before if before.startswith(FENCE_MARK) else ""


def shown(row: Row) -> str:
    """A node in one line: whether it takes jobs, and why not."""
    if owner(row) is None and row["down"]:
        return f"{row['name']}: down, {row['reason']}\n"
    if owner(row) is None:
        return f"{row['name']}: {row['state'] if closed(row['state']) else 'takes jobs'}\n"
    return f"{row['name']}: {'drained' if row['drained'] else 'down'}, {row['reason'] or 'without a reason'}\n"


def whose(row: Row) -> str:
    """A sentence's part: what a node is, by whom, since when and why."""
    by = f" by {row['reason_by']}" if row["reason_by"] else ""
    since = f" since {row['reason_since']}" if row["reason_since"] else ""
    reason = f"with the reason '{one_line(row['reason'], REASON_AT_MOST)}'" if row["reason"] else "without a reason"
    return f"{'drained' if row['drained'] else 'set down'}{by}{since} {reason}"


def is_set_up() -> bool:
    """Whether this host has Slurm's commands and the configuration of a cluster."""
    return os.path.exists(SCONTROL) and os.path.exists(CONF)


def find(slurm: Slurm, node: str) -> dict[str, Any]:
    """The node as slurmctld has it. Raises Refused for one that it has not, and CallFailed where it does not answer."""
    if not is_set_up():
        raise Refused(
            f"there is no scontrol with a {CONF} on the host that was asked for {one_line(node, 100)}",
            "run `gpuops up --tags slurm`, or name the host of slurmctld",
            code="no_slurm",
            subject=node,
        )
    row = slurm.nodes().get(node)
    if row is None:
        raise Refused(
            f"slurmctld has no node {one_line(node, 100)}",
            "check the name, and that the host is in the inventory's group of Slurm's nodes",
            code="no_node",
            subject=node,
        )
    return row


def drain(slurm: Slurm, row: Row, why: str, check_mode: bool) -> dict[str, Any]:
    """Let no new job start on the node: {changed, action, row: the node afterwards}.

    A node that somebody else has drained stays as it is, with the reason; so does an earlier drain of an operator's.
    """
    if owner(row) in (OPERATOR, OTHER):
        return {"changed": False, "action": None, "row": row}
    reason = drain_reason(why, row)
    after = {**row, "drained": True, "reason": reason}
    if check_mode:
        return {"changed": True, "action": "drain", "row": after}
    slurm.drain(row["name"], reason)
    after = find(slurm, row["name"])
    if owner(after) != OPERATOR:
        raise Refused(
            f"the node was ordered to drain, but slurmctld has it as {after['state']}",
            "see 'scontrol show node' and 'sudo journalctl -u slurmctld', then run again",
            code="not_drained",
            subject=row["name"],
        )
    return {"changed": True, "action": "drain", "row": after}


def wait_empty(
    slurm: Slurm,
    node: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until no job of a user's is on the drained node.

    Raises Refused with the jobs when the time is over, or as soon as somebody has the node take jobs again; CallFailed
    where slurmctld does not answer at the end of the time.
    """
    end = clock() + timeout_s
    while True:
        try:
            jobs = slurm.jobs_on(node)
            row = find(slurm, node)
        except CallFailed:
            # It may be restarted meanwhile.
            if clock() >= end:
                raise
        else:
            if owner(row) is None:
                raise Refused(
                    "another operator opened the node for jobs during the wait",
                    "find out who, then drain it again; nothing else was changed",
                    code="resumed_meanwhile",
                    subject=node,
                )
            if not jobs:
                return
            if clock() >= end:
                raise _jobs_left(slurm, node, jobs)
        sleep(min(POLL_S, max(end - clock(), 0.05)))


def _jobs_left(slurm: Slurm, node: str, jobs: Sequence[Job]) -> Refused:
    ids = " ".join(str(job.id) for job in jobs[:SHOWN_JOBS])
    return Refused(
        f"the node is drained, and users' jobs are still on it: {named(jobs, devices(slurm, node), time.time())}",
        f"wait longer, or have their users end them ('scancel {ids}'), then run again. The node takes no new job until "
        "it is restored; nothing else was changed",
        code="jobs_left",
        subject=node,
    )


def restore(slurm: Slurm, row: Row, foreign: str, slurmd_started: float | None, check_mode: bool) -> dict[str, Any]:
    """Let jobs start on the node again: {changed, action, row: the node afterwards}.

    :param foreign: for a node that somebody else has taken out: `left` leaves it, `refused` raises, `taken` resumes it.
    :param slurmd_started: when the slurmd that runs on the node was started, in Unix seconds by the clock of the node.
        The node is not resumed before that one has registered.

    A node that the reconciler had drained before the operator did is given back to it, drained as it was. Raises
    Refused, and CallFailed.
    """
    name, by = row["name"], owner(row)
    if by is None or (by != OPERATOR and foreign == "left"):
        return {"changed": False, "action": None, "row": row}
    if by != OPERATOR and foreign == "refused":
        raise Refused(
            f"the node is {whose(row)}, and not from here, so it stays as it is",
            "ask who did it; if it may be undone, run again with takeover",
            code="drained_by_others",
            subject=name,
        )
    before = reason_before(row["reason"]) if by == OPERATOR and foreign != "taken" else ""
    if before:
        if not check_mode:
            slurm.drain(name, before)
        after = {**row, "reason": before} if check_mode else find(slurm, name)
        return {"changed": True, "action": "hand_back", "row": after}
    registered(row, slurmd_started)
    if check_mode:
        return {"changed": True, "action": "resume", "row": {**row, "drained": False, "down": False, "reason": ""}}
    slurm.resume(name)
    after = find(slurm, name)
    if owner(after) is not None:
        raise Refused(
            f"the node was ordered to take jobs again, but is {whose(after)}",
            "see 'sudo journalctl -u slurmctld', fix the cause, then run again",
            code="not_resumed",
            subject=name,
        )
    return {"changed": True, "action": "resume", "row": after}


def registered(row: Row, slurmd_started: float | None) -> None:
    """Raises Refused for a node that has not registered with all that slurm.conf claims."""
    name = row["name"]
    if row["registers_less"]:
        raise Refused(
            "the node has registered with less than slurm.conf claims, so it stays drained",
            "compare 'gpuops status' with the node's GPUs and see 'sudo journalctl -u slurmctld'; if a GPU was "
            "removed for good, run `gpuops up --tags slurm`, else repair it and run again",
            code="registers_less",
            subject=name,
            evidence=f"{row['state']} Gres={row['gres']} {one_line(row['reason'], REASON_AT_MOST)}",
        )
    is_behind = slurmd_started is not None and row["slurmd_started"] < slurmd_started - START_S
    if is_behind or not row["answers"]:
        raise Refused(
            f"slurmd has not registered with slurmctld{' since it was started' if is_behind else ''}, so the "
            "node stays drained",
            f"see 'sudo journalctl -u slurmd' on {name}, then run again",
            code="not_registered",
            subject=name,
            evidence=row["state"],
        )


def devices(slurm: Slurm, node: str) -> list[str]:
    """The device files of a node's GPUs by position."""
    return [f"/dev/nvidia{minor}" for minor in slurm.gres().known(node)]


def named(jobs: Sequence[Job], gpus: Sequence[str], now: float) -> str:
    """Jobs with their users, GPUs and time limits, for people."""
    listed = [_named(job, gpus, now) for job in jobs[:SHOWN_JOBS]]
    more = len(jobs) - len(listed)
    return "; ".join([*listed, *([f"and {more} more"] if more > 0 else [])])


def _named(job: Job, gpus: Sequence[str], now: float) -> str:
    if job.positions is None:
        has = "GPUs that slurmctld does not tell"
    else:
        names = [gpus[place] if place < len(gpus) else f"GPU {place}" for place in job.positions]
        has = ", ".join(names) or "no GPU"
    if job.limit_min is None:
        limit = "no time limit"
    else:
        limit = f"time limit {duration(job.limit_min * 60)}"
        if job.ends:
            limit += f", at most {duration(max(job.ends - now, 0))} to go"
    return f"job {job.id} of {job.user} ({has}; {limit})"


def duration(seconds: float) -> str:
    """Seconds as Slurm writes a time: [days-]hours:minutes:seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{rest:02}"


def as_rows(jobs: Iterable[Job], gpus: Sequence[str]) -> list[dict[str, Any]]:
    """Jobs for programs: {id, user, state, gpus, limit_min, ends}."""
    return [
        {
            **{key: getattr(job, key) for key in ("id", "user", "state", "limit_min", "ends")},
            "gpus": None
            if job.positions is None
            else [gpus[place] if place < len(gpus) else f"GPU {place}" for place in job.positions],
        }
        for job in jobs
    ]
