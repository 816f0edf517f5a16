# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody has: how full the home is, GPU hours, sessions and jobs. The program that works as root asks for the
first two; here are the words for all of them."""

from __future__ import annotations

import datetime
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.who import Look
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import usage
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

HOME_S, HOURS_S = 5.0, 15.0
# How many days of GPU hours are told.
DAYS = 30
JOBS_AT_MOST = 20
# How many hours one press of a button adds to a session.
MORE_HOURS = 4
# From which share of the quota on there is a warning.
NEARLY_FULL = 0.9
# The two attributes of CephFS; an empty line for one that there is not, as on every other file system.
READ = """
import os, sys
for name in ("ceph.dir.rbytes", "ceph.quota.max_bytes"):
    try:
        print(os.getxattr(sys.argv[1], name).decode())
    except OSError:
        print()
"""


class Told(NamedTuple):
    """A sentence, and whether it is a warning."""

    text: str
    warns: bool = False


# --- asked as root ---------------------------------------------------------------------------------------------------


def home(start: Sequence[str], path: str, run: Run) -> dict[str, Any]:
    """How many bytes a home has, and how many it may have; None for what nobody tells. It may hang.

    :param start: what a command begins with that runs as its user.
    """
    # A home that is mounted when somebody looks into it is mounted by the dot.
    status, out, _error = run([*start, "/usr/bin/python3", "-I", "-S", "-c", READ, f"{path}/."], None, HOME_S)
    lines = out.splitlines() if status == 0 else []
    used, quota = (int(line) if re.fullmatch("[0-9]{1,18}", line) else None for line in [*lines, "", ""][:2])
    return {"answers": status == 0, "used": used, "quota": quota}


def hours(user: str, run: Run, now: float) -> dict[str, Any]:
    """The GPU seconds of a user in the last days. Raises CallFailed and Refused."""
    first = datetime.date.fromtimestamp(now) - datetime.timedelta(DAYS - 1)
    found = usage.usage(Slurm(run, HOME_S), run, first.isoformat(), "", (), HOURS_S, lambda: now, user)
    return {"gpu_seconds": sum(row["gpu_seconds"] for row in found["rows"]), "jobs": found["jobs"]}


# --- in words --------------------------------------------------------------------------------------------------------

NO_ANSWER = Told("How full your home is, nobody knows at present: it does not answer.", True)
NO_HOURS = Told("Your GPU hours are not known at present.")


def told_of_home(row: Mapping[str, Any]) -> Told:
    """:param row: as `home` has it."""
    used, quota = row["used"], row["quota"]
    if not row["answers"]:
        return NO_ANSWER
    if used is None:
        return Told("")
    if not quota:
        return Told(f"Your home: {_gib(used)} GiB used, without a quota.")
    part = f"{_gib(used)} of {_gib(quota)} GiB used"
    if used < quota * NEARLY_FULL:
        return Told(f"Your home: {part}.")
    return Told(
        f"Your home is {'nearly full' if used < quota else 'full'}: {part}, {100 * used // quota} %. In a full home "
        "sessions start, but nothing can be saved. To do: remove what you do not need (`du -hd1 ~ | sort -h` in a "
        "terminal shows what is large), or ask the operators for more.",
        True,
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f}"


def told_of_hours(row: Mapping[str, Any]) -> Told:
    """:param row: as `hours` has it."""
    jobs = f"{row['jobs']} {'job' if row['jobs'] == 1 else 'jobs'}"
    return Told(f"Your GPU hours of the last {DAYS} days: {row['gpu_seconds'] / 3600:.1f}, in {jobs}.")


def told_of_jobs(look: Look, user: str) -> tuple[dict[str, str], list[str]]:
    """What of a user runs and waits: each session by its name, and other jobs with GPUs."""
    jobs = {str(job["id"]): job for job in look.found.get("jobs", []) if job["user"] == user}
    sessions, lines = {}, []
    for one in look.sessions.values():
        if one.user == user and one.state != session.ENDED:
            gpus = jobs.pop(str(one.job), {}).get("gpus", 0)
            name = f"The session {one.server}" if one.server else "A session"
            sessions[one.server] = _line(f"{name} (job {one.job})", gpus, one.node, one.ends, one.why)
    for number, job in jobs.items():
        if job["gpus"] and not job["holder"] and job["name"] != session.JOB:
            nodes = ", ".join(node["name"] for node in job["nodes"])
            lines.append(_line(f"{job['name']} (job {number})", job["gpus"], nodes, job["ends"], job["waits_for"]))
    more = len(lines) - JOBS_AT_MOST
    return sessions, [*lines[:JOBS_AT_MOST], *([f"and {more} more, which are in Who uses what"] if more > 0 else [])]


def more_hours(look: Look, user: str, most: int) -> dict[str, int]:
    """How many hours more each session of a user may have, by its name; without those that may have none.

    :param most: the hours that a session may have.
    """
    began = {str(job["id"]): job["started"] for job in look.found.get("jobs", []) if job["user"] == user}
    found = {}
    for one in look.sessions.values():
        start = began.get(str(one.job))
        if one.user == user and one.state == session.RUNS and one.ends and start:
            found[one.server] = min(most - math.ceil((one.ends - start) / 3600 - 0.02), MORE_HOURS)
    return {name: hours for name, hours in found.items() if hours > 0}


def _line(what: str, gpus: int, node: str, ends: float | None, why: str) -> str:
    has = f"{what}: {gpus} {'GPU' if gpus == 1 else 'GPUs'}"
    if not node:
        return f"{has}, waits: {why}"
    until = f" until {time.strftime('%Y-%m-%d %H:%M', time.localtime(ends))} at the latest" if ends else ""
    return f"{has} on {node}{until}"
