# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU hours: from the events of the playbook baremetal.gpu.usage and the samples of Prometheus to one document."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.nvml_messages import slug
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.problems import problems_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.cluster import gpu_type
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import number, rows, text
from gpuops.run import events
from gpuops.status.usage_samples import Lease, Sample

SCHEMA = Path(__file__).with_name("usage.schema.json")
VERSION = 1
ACTION = "slurm_usage_info"
# By what hours are told apart, and the module's word for it: the group of a job is its account in Slurm.
BY = {"user": "user", "group": "account", "model": "model", "day": "day"}
# Codes of the module for what should be asked for in another way.
REFUSALS = ("wrong_days", "too_many_rows")
HOUR_S = 3600.0
# Where hours come from.
SLURM, PROMETHEUS = "slurm", "prometheus"

Document = dict[str, Any]
# The values of the keys that are asked for.
Key = tuple[str | None, ...]


class Reader:
    """Takes the events of the playbook, one by one.

    :ivar result: what the module returned; None where it did not.
    :ivar is_refused: whether it has refused what was asked for.
    """

    def __init__(self) -> None:
        self.result: dict[str, Any] | None = None
        self.is_refused = False
        self._failures: list[tuple[str, str]] = []

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult):
            return
        if event.task.action == ACTION and event.succeeded:
            self.result = dict(event.result)
        elif event.outcome in (progress.UNREACHABLE, progress.FAILED):
            self.is_refused = any(problem.code in REFUSALS for problem in event.problems)
            self._failures += progress_text.explain(event.host, event.outcome, dict(event.result))

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Why there is no result, each with its remedy."""
        return self._failures or [("Ansible reached no host of Slurm's controllers", "see what `gpuops status` finds")]


def periods(result: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Each day with its begin and its end, in Unix seconds."""
    return [
        (text(day.get("name")), int(number(day.get("begin")) or 0), int(number(day.get("end")) or 0))
        for day in rows(result.get("days"))
    ]


def of_leases(leases: Iterable[Lease], by: Sequence[str], days: Sequence[tuple[str, int, int]], zone: str) -> Document:
    """What `document` takes, from leases in Prometheus: the group of a pod is its namespace."""
    seconds: dict[Key, float] = {}
    jobs: dict[Key, set[str]] = {}
    every = set()
    for one in leases:
        values = {"user": one.user, "group": one.account, "model": _model(one.model), "day": one.day}
        key = tuple(values[name] for name in by)
        seconds[key] = seconds.get(key, 0.0) + one.seconds
        jobs.setdefault(key, set()).add(one.job)
        every.add(one.job)
    return {
        "days": [{"name": name, "begin": begin, "end": end} for name, begin, end in days],
        "time_zone": zone,
        "rows": [
            {**dict(zip((BY[name] for name in by), key, strict=True)), "gpu_seconds": total, "jobs": len(jobs[key])}
            for key, total in seconds.items()
        ],
        "jobs": len(every),
        "problems": [],
    }


def days_of(since: str, until: str, now: datetime.datetime) -> list[tuple[str, int, int]]:
    """The days from `since` to `until`, or to today, in the time zone of this machine, as `periods` has them.

    Raises ValueError for days that are none, or are still to come.
    """
    day, last = datetime.date.fromisoformat(since), min(datetime.date.fromisoformat(until or "9999-12-31"), now.date())
    if day > last:
        raise ValueError(f"no day from {since} to {until or 'today'} has begun yet")
    found = []
    while day <= last:
        begin, end = (
            int(datetime.datetime.combine(one, datetime.time()).timestamp())
            for one in (day, day + datetime.timedelta(1))
        )
        found.append((day.isoformat(), begin, min(end, int(now.timestamp()))))
        day += datetime.timedelta(1)
    return [one for one in found if one[2] > one[1]]


def document(
    result: Mapping[str, Any],
    by: Sequence[str],
    samples: Iterable[Sample] | None = None,
    problem: str = "",
    source: str = SLURM,
) -> Document:
    """The hours by their schema.

    :param samples: of Prometheus; None where it was not asked or has not answered.
    :param problem: why it has not answered.
    :param source: of the hours.
    """
    days = periods(result)
    known = _known(samples or (), by)
    found = [_row(row, by, known) for row in rows(result.get("rows"))]
    # Days in their order; who has had most comes first.
    found.sort(key=lambda row: (row.get("day") or "", -row["gpu_hours"], *(row[key] or "" for key in by)))
    return {
        "version": VERSION,
        "since": days[0][0] if days else None,
        "until": days[-1][0] if days else None,
        "begin": days[0][1] if days else None,
        "end": days[-1][2] if days else None,
        "time_zone": text(result.get("time_zone")) or None,
        "by": list(by),
        "source": source,
        "use": {"asked": samples is not None or bool(problem), "problem": problem or None},
        "rows": found,
        "total": _total(found, int(number(result.get("jobs")) or 0)),
        "problems": [{"cause": one.cause, "remedy": one.remedy} for one in problems_of(result)],
    }


def _known(samples: Iterable[Sample], by: Collection[str]) -> dict[Key, tuple[float, float]]:
    """Seconds that were measured, and those of them in which the GPU was unused, for each row."""
    found: dict[Key, tuple[float, float]] = {}
    for sample in samples:
        values = {"user": sample.user, "group": sample.account, "model": _model(sample.model), "day": sample.day}
        key = tuple(values[name] for name in by)
        measured, unused = found.get(key, (0.0, 0.0))
        found[key] = (measured + sample.measured_s, unused + sample.unused_s)
    return found


def _model(name: str) -> str | None:
    """The type in Slurm of a model as NVML names it."""
    return gpu_type(slug(name)) if name else None


def _row(row: Mapping[str, Any], by: Sequence[str], known: Mapping[Key, tuple[float, float]]) -> Document:
    key = tuple(text(row.get(BY[name])) or None for name in by)
    allocated = max(number(row.get("gpu_seconds")) or 0.0, 0.0)
    measured, unused = known.get(key, (0.0, 0.0))
    is_known = measured > 0
    return {
        **dict(zip(by, key, strict=True)),
        "jobs": max(int(number(row.get("jobs")) or 0), 0),
        "gpu_hours": _hours(allocated),
        "used_hours": _hours(measured - unused) if is_known else None,
        "unused_hours": _hours(unused) if is_known else None,
        "unknown_hours": _hours(max(allocated - measured, 0.0)),
    }


def _total(found: Sequence[Document], jobs: int) -> Document:
    def added(name: str) -> float | None:
        told = [row[name] for row in found if row[name] is not None]
        return round(sum(told), 4) if told or not found else None

    names = ("gpu_hours", "used_hours", "unused_hours", "unknown_hours")
    return {"jobs": jobs, **{name: added(name) for name in names}}


def _hours(seconds: float) -> float:
    return round(seconds / HOUR_S, 4)


def extra_vars(since: str, until: str, by: Sequence[str]) -> dict[str, Any]:
    """The variables of the playbook."""
    return {"usage_since": since, "usage_until": until, "usage_by": [BY[name] for name in by]}
