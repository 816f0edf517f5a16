# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody has, in words: how full the home is, GPU hours, sessions and jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.own import DAYS
from baremetal_gpu_portal.who import Look

JOBS_AT_MOST = 20
# How many hours one press of a button adds to a session.
MORE_HOURS = 4
# From which share of the quota on there is a warning.
NEARLY_FULL = 0.9


class Told(NamedTuple):
    """A sentence, and whether it is a warning."""

    text: str
    warns: bool = False


NO_ANSWER = Told("The usage of your home is unknown at present: it does not answer.", True)
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
