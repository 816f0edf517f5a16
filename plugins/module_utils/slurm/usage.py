# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU hours from Slurm's accounting, by user, account, GPU model and day.

A record is an allocation: a job that was queued again has one for each of its runs. Its GPUs count from its start to
its end, as far as that is in the days that are asked for. Days are those of this host's time zone.
"""

from __future__ import annotations

import bisect
import calendar
import datetime
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import NOT_FOUND, Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, USER, Slurm

SACCT = "/usr/bin/sacct"
FIELDS = ("JobIDRaw", "User", "Account", "Partition", "Start", "End", "NodeList", "AllocTRES")
BY = ("user", "account", "model", "day")
DAYS_AT_MOST = 400
ROWS_AT_MOST = 20000
NAME_AT_MOST = 100
NODES_AT_MOST = 20000
JOBS_NAMED = 5
# A job that began so lately may have begun after slurmctld was asked.
YOUNG_S = 60.0
_GPUS = re.compile(r"gres/gpu(?::([A-Za-z0-9._-]{1,64}))?=(\d{1,6})")
# What sacct prints where there is no time.
_NO_TIME = ("", "None", "Unknown")


@dataclass(frozen=True)
class Record:
    """An allocation. Times in Unix seconds; `end` is None where the accounting has none."""

    job: int
    user: str
    account: str
    partition: str
    start: float
    end: float | None
    nodes: str
    tres: str

    @property
    def is_holder(self) -> bool:
        """Whether it kept a GPU out of service for the reconciler. Users cannot submit to that partition."""
        return self.user == USER and self.partition == PARTITION


@dataclass(frozen=True)
class Day:
    """A day, or the part of it that is over. Times in Unix seconds."""

    name: str
    begin: int
    end: int


def days(first_day: str, last_day: str, now: float) -> list[Day]:
    """The days from one to another, both included. A day may have 23 or 25 hours. Raises Refused."""
    first = _date(first_day)
    last = _date(last_day) if last_day else max(first, datetime.date.fromtimestamp(now))
    if last < first:
        raise Refused(f"{last} is before {first}", "give the first day first", code="wrong_days")
    if (last - first).days >= DAYS_AT_MOST:
        raise Refused(
            f"from {first} to {last} are more than {DAYS_AT_MOST} days", "ask for fewer days", code="wrong_days"
        )
    found = []
    for number in range((last - first).days + 1):
        day = first + datetime.timedelta(number)
        begin, end = _midnight(day), min(_midnight(day + datetime.timedelta(1)), int(now))
        if begin < end:
            found.append(Day(day.isoformat(), begin, end))
    if not found:
        raise Refused(f"{first} has not begun", "ask for a day that has", code="wrong_days")
    return found


def _date(text: str) -> datetime.date:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        try:
            found = datetime.date.fromisoformat(text)
        except ValueError:
            pass
        else:
            if 2000 <= found.year < 2100:
                return found
    raise Refused(f"{one_line(text, 40)!r} is not a valid day", "write it as 2026-11-30", code="wrong_days")


def _midnight(day: datetime.date) -> int:
    return int(time.mktime((day.year, day.month, day.day, 0, 0, 0, 0, 0, -1)))


# --- what sacct prints -----------------------------------------------------------------------------------------------


def read(run: Run, begin: int, end: int, timeout_s: float, user: str = "") -> str:
    """The allocations of a time as sacct prints them, with times in UTC, of one user or of all. Raises Refused."""
    argv = [
        # Local times come twice when the clocks are set back.
        "/usr/bin/env",
        "TZ=UTC",
        "SLURM_TIME_FORMAT=standard",
        SACCT,
        f"--user={user}" if user else "--allusers",
        "--allocations",
        "--duplicates",
        "--parsable2",
        "--noheader",
        "--noconvert",
        f"--starttime={_utc(begin)}",
        f"--endtime={_utc(end)}",
        f"--format={','.join(FIELDS)}",
    ]
    status, out, error = run(argv, None, timeout_s)
    if not status:
        return out
    why = one_line(error or out, 300) or f"exit status {status}"
    if status == NOT_FOUND:
        raise Refused(
            "Slurm's commands are not installed there",
            "run `gpuops up --tags slurm`",
            code="not_installed",
            evidence=why,
        )
    if "accounting storage is disabled" in why:
        raise Refused(
            "Slurm has no accounting, so it is unknown who had which GPUs",
            "add a host to the group slurm_databases and run `gpuops up --tags slurm`; hours count from then on",
            code="no_accounting",
            evidence=why,
        )
    raise Refused(
        "sacct does not answer",
        "see `systemctl status slurmdbd` on its host; for a long time ask for fewer days",
        code="no_answer",
        evidence=why,
    )


def _utc(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


def records(text: str) -> tuple[list[Record], list[str]]:
    """The allocations that had begun and had GPUs, and the lines that nobody can read."""
    found, unreadable = [], []
    for line in text.splitlines():
        try:
            record = _record(line)
        except ValueError:
            unreadable.append(one_line(line, 200))
            continue
        if record is not None:
            found.append(record)
    return found, unreadable


def _record(line: str) -> Record | None:
    """None for one that has not begun, such as a job that was cancelled before, and for one without GPUs."""
    # No field has a bar in it; a name that had one would shift the others.
    job, user, account, partition, start, end, nodes, tres = line.split("|")
    begun = _moment(start)
    if begun is None or "gres/gpu" not in tres:
        return None
    if not re.fullmatch(r"\d{1,10}", job):
        raise ValueError(job)
    user, account, partition = (one_line(name, NAME_AT_MOST) for name in (user, account, partition))
    found = Record(int(job), user, account, partition, begun, _moment(end), nodes, tres)
    return found if sum(counts(tres).values()) else None


def _moment(text: str) -> float | None:
    if text in _NO_TIME:
        return None
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


def counts(tres: str) -> dict[str | None, int]:
    """GPUs by their type; None for those whose type the accounting does not tell. Raises ValueError."""
    total = 0
    typed: dict[str, int] = {}
    for part in tres.split(","):
        if not part.startswith("gres/gpu=") and not part.startswith("gres/gpu:"):
            continue
        row = _GPUS.fullmatch(part)
        if row is None:
            raise ValueError(part)
        if row[1]:
            typed[row[1]] = int(row[2])
        else:
            total = int(row[2])
    found: dict[str | None, int] = {name: count for name, count in typed.items() if count}
    # gres/gpu counts those with a type, too.
    rest = total - sum(typed.values())
    return {**found, None: rest} if rest > 0 else found


def node_names(text: str) -> list[str]:
    """The nodes in a list such as a[1-3,5]b,login. Raises ValueError for what is none."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        names = [""]
        for plain, inside in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            ends = [plain] if plain else list(_padded(inside))
            if len(names) * len(ends) + len(found) > NODES_AT_MOST:
                raise ValueError("too many nodes")
            names = [name + end for name in names for end in ends]
        found += names
    return found


def _padded(text: str) -> Iterator[str]:
    for part in text.split(","):
        span = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if span is None or int(span[2] or span[1]) - int(span[1]) >= NODES_AT_MOST:
            raise ValueError("no nodes")
        for number in range(int(span[1]), int(span[2] or span[1]) + 1):
            yield f"{number:0{len(span[1])}}"


# --- who had what ----------------------------------------------------------------------------------------------------


class Models:
    """The types of GPUs that nodes have, for allocations of which the accounting has only a number."""

    def __init__(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        self._types = {name: _types(str(row.get("gres") or "")) for name, row in nodes.items()}
        self._known: dict[str, str | None] = {}

    def of(self, nodes: str) -> str | None:
        """The type of all GPUs of these nodes; None where they have several, and where one is not known."""
        if nodes not in self._known:
            self._known[nodes] = self._only(nodes)
        return self._known[nodes]

    def _only(self, nodes: str) -> str | None:
        try:
            found = {one for name in node_names(nodes) for one in self._types.get(name, {None})}
        except ValueError:
            return None
        return found.pop() if len(found) == 1 else None


def _types(gres: str) -> set[str | None]:
    words = (re.fullmatch(r"gpu(?::([A-Za-z][^:(]{0,63}))?(?::\d+)?(?:\(.*)?", one) for one in state.gpus(gres))
    return {word[1] if word else None for word in words}


def ended(found: Iterable[Record], known: Collection[int], now: float) -> tuple[list[Record], list[int]]:
    """Allocations that all have an end, and the jobs that have none though slurmctld does not know them.

    :param known: the jobs that slurmctld knew at `now`.
    """
    by_job: dict[int, list[Record]] = {}
    for record in found:
        by_job.setdefault(record.job, []).append(record)
    whole, lost = [], []
    for job, runs in by_job.items():
        runs.sort(key=lambda one: (one.start, one.end or now))
        for number, record in enumerate(runs):
            # A job has one allocation at a time, and a record that comes twice counts once.
            last = number + 1 == len(runs)
            limit = now if last else runs[number + 1].start
            if record.end is None and last and job not in known and record.start < now - YOUNG_S:
                lost.append(job)
            else:
                whole.append(replace(record, end=limit if record.end is None else min(record.end, limit)))
    return whole, sorted(lost)


def hours(
    found: Iterable[Record], over: Sequence[Day], models: Models, by: Collection[str]
) -> tuple[list[dict[str, Any]], int]:
    """The GPU seconds of the allocations, by what `by` names, and the number of jobs. Raises Refused.

    A row has those of BY that are asked for, `gpu_seconds`, and `jobs`: a job counts in every row that it is in.
    """
    keys = [key for key in BY if key in by]
    ends = [day.end for day in over]
    seconds: dict[tuple[str | None, ...], float] = {}
    jobs: dict[tuple[str | None, ...], set[int]] = {}
    for record in found:
        for day in over[bisect.bisect_right(ends, record.start) :]:
            length = min(record.end or 0.0, day.end) - max(record.start, day.begin)
            if length <= 0:
                break
            for told, count in counts(record.tres).items():
                model = told or models.of(record.nodes)
                values = {"user": record.user, "account": record.account, "model": model, "day": day.name}
                row = tuple(values[key] for key in keys)
                seconds[row] = seconds.get(row, 0.0) + count * length
                jobs.setdefault(row, set()).add(record.job)
        if len(seconds) > ROWS_AT_MOST:
            raise Refused(
                f"that makes more than {ROWS_AT_MOST} rows", "ask for fewer days, or by less", code="too_many_rows"
            )
    rows = [
        {**dict(zip(keys, row)), "gpu_seconds": int(seconds[row]), "jobs": len(jobs[row])}
        for row in sorted(seconds, key=lambda row: [value or "" for value in row])
    ]
    return rows, len(set().union(*jobs.values()))


def usage(
    slurm: Slurm,
    run: Run,
    first_day: str,
    last_day: str,
    by: Collection[str],
    timeout_s: float,
    clock: Callable[[], float] = time.time,
    user: str = "",
) -> dict[str, Any]:
    """The document: days, rows and problems, of one user or of all. Raises CallFailed and Refused."""
    asked = clock()
    over = days(first_day, last_day, asked)
    known = slurm.ids()
    models = Models(slurm.nodes())
    found, unreadable = records(read(run, over[0].begin, over[-1].end, timeout_s, user))
    # A GPU that the reconciler keeps out of service is nobody's.
    whole, lost = ended((one for one in found if not one.is_holder), known, float(int(asked)))
    rows, jobs = hours(whole, over, models, by)
    return {
        "days": [{"name": day.name, "begin": day.begin, "end": day.end} for day in over],
        "time_zone": one_line(time.strftime("%Z", time.localtime(over[-1].end)), NAME_AT_MOST),
        "rows": rows,
        "jobs": jobs,
        "problems": [one.as_dict() for one in _problems(unreadable, lost)],
    }


def _problems(unreadable: Sequence[str], lost: Sequence[int]) -> Iterator[Problem]:
    if unreadable:
        yield Problem(
            "unreadable_records",
            "sacct",
            f"{len(unreadable)} lines of sacct cannot be read, so their hours are missing",
            unreadable[0],
            "see what `sacct --parsable2` prints there",
        )
    if lost:
        named = ", ".join(map(str, lost[:JOBS_NAMED])) + (" and others" if len(lost) > JOBS_NAMED else "")
        yield Problem(
            "runaway_jobs",
            "slurmdbd",
            f"{len(lost)} jobs do not run and have no end in the accounting, so their hours are missing: {named}",
            "",
            "run `sudo sacctmgr show runawayjobs` on the controller, which offers to end them",
        )
