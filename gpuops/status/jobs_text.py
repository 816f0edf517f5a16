# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs and free GPUs in words, from their document."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import KUBERNETES, MESOS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from gpuops.run.table import cut, table
from gpuops.status.text import STYLES

# Hosts of one job, and rows that are left of a list that does not fit on the screen.
HOSTS_SHOWN = 4
ROWS_AT_LEAST = 3
USER_AT_MOST, MODEL_AT_MOST, PLACE_AT_MOST = 12, 32, 24
NAME_AT_LEAST, WHY_AT_LEAST = 12, 38
WEEK_S = 6 * 86400

Row = Mapping[str, Any]
EMPTY: Line = [("plain", "")]


def lines(jobs: Row, width: int, height: int | None = None) -> list[Line]:
    """The jobs in words.

    :param height: as many lines as there may be. Then the ends of the lists are left out, of those that wait first.
    """
    running, waiting = len(jobs["running"]), len(jobs["waiting"])
    if height is None:
        return _lines(jobs, width, running, waiting)
    running, waiting = min(running, height), min(waiting, height)
    while len(found := _lines(jobs, width, running, waiting)) > height:
        if waiting > ROWS_AT_LEAST:
            waiting -= 1
        elif running > ROWS_AT_LEAST:
            running -= 1
        else:
            break
    return found


def _lines(jobs: Row, width: int, running: int, waiting: int) -> list[Line]:
    out = _head(jobs, width)
    for scheduler in jobs["schedulers"]:
        if scheduler["problem"]:
            out += progress_text.wrapped(f"{scheduler['name']}: ", scheduler["problem"]["cause"], width, "bad")
            if scheduler["problem"]["remedy"]:
                out += progress_text.wrapped("remedy: ", scheduler["problem"]["remedy"], width)
    for problem in jobs["unfenced"]:
        out += progress_text.wrapped("", problem["cause"], width, "bad")
        out += progress_text.wrapped("remedy: ", problem["remedy"], width)
    out += [EMPTY, *_free_lines(jobs["gpus"], width)] if jobs["gpus"] else []
    if jobs["held"]:
        out += [EMPTY, *_held_lines(jobs["held"], width)]
    if jobs["running"]:
        out += [EMPTY, *_running_lines(jobs["running"][:running], _words(jobs)[1], jobs["time"], width)]
        out += _more(len(jobs["running"]) - running)
    if jobs["waiting"]:
        out += [EMPTY, *_waiting_lines(jobs["waiting"][:waiting], _words(jobs)[1], jobs["time"], width)]
        unseen = 0 if jobs["user"] else jobs["waiting_total"] - len(jobs["waiting"])
        out += _more(len(jobs["waiting"]) - waiting + max(unseen, 0))
    if any(row["name"] == MESOS for row in jobs["schedulers"]):
        out += [EMPTY, *progress_text.wrapped("mesos: ", "only its frameworks know users and waiting jobs", width)]
    return out


def _more(count: int) -> list[Line]:
    return [[("faint", f"and {count} more")]] if count > 0 else []


def _head(jobs: Row, width: int) -> list[Line]:
    """Schedulers and time, and how many jobs there are, in one line where they fit."""
    schedulers: Line = []
    for row in jobs["schedulers"]:
        schedulers += [("plain", f"{row['name']} "), (STYLES[row["state"]], row["state"]), ("plain", " ")]
    schedulers.append(("faint", time.strftime("at %H:%M:%S", time.localtime(jobs["time"]))))
    runs, waits = jobs["running_total"], jobs["waiting_total"]
    thing, _part = _words(jobs)
    words = f"{runs} {f'{thing} runs' if runs == 1 else f'{thing}s run'}"
    if any(row["name"] != MESOS for row in jobs["schedulers"]):
        words += f", {waits} {'waits' if waits == 1 else 'wait'}"
    if jobs["user"]:
        words += f" ({cut(jobs['user'], USER_AT_MOST)}: {len(jobs['running'])} and {len(jobs['waiting'])})"
    if not any(row["problem"] is None for row in jobs["schedulers"]):
        return [schedulers]
    if len(progress_text.plain(schedulers)) + 2 + len(words) <= width:
        return [[*schedulers, ("plain", f"  {words}")]]
    return [schedulers, [("plain", words)]]


def _free_lines(gpus: Iterable[Row], width: int) -> list[Line]:
    cells = []
    for row in gpus:
        others = [(row["used"], "in use"), (row["held"], "out of service"), (row["closed"], "closed")]
        words = [f"{count} {what}" for count, what in others if count]
        if row["free"] != row["free_on_one_host"]:
            words.insert(0, f"{row['free_on_one_host']} on one host")
        model = (row["model"] or "model not known").removeprefix("NVIDIA ")
        cells.append((model, f"{row['free']} of {row['total']}", ", ".join(words)))
    return table(("GPUS", "FREE", ""), cells, width, indent="", cut_at=MODEL_AT_MOST)


def _held_lines(held: Iterable[Row], width: int) -> list[Line]:
    cells = [
        (row["host"], "?" if row["index"] is None else str(row["index"]), row["code"] or "the reason is not known")
        for row in held
    ]
    return table(("OUT OF SERVICE", "GPU", "WHY"), cells, width, indent="", styles=["changed"] * len(cells))


def _words(jobs: Row) -> tuple[str, str]:
    """What the schedulers of a site call a job, and a part of the cluster."""
    has_pods = all(row["name"] == KUBERNETES for row in jobs["schedulers"])
    return ("pod", "NAMESPACE") if has_pods else ("job", "PARTITION")


def _running_lines(running: Iterable[Row], part: str, now: float, width: int) -> list[Line]:
    """A line for each job, with further ones for its hosts and for what is to be noted of it."""
    cells: list[Sequence[str]] = []
    # Behind how many rows of the table notes belong.
    notes: dict[int, list[Line]] = {}
    for job in running:
        places = [(f"{place['host']} {indices(place['gpus'])}", place["host"]) for place in job["gpus"]]
        named = {host for _text, host in places}
        texts = [text for text, _host in places] + [f"{host} -" for host in job["hosts"] if host not in named]
        if len(texts) > HOSTS_SHOWN:
            texts = [*texts[: HOSTS_SHOWN - 1], f"and {len(texts) - HOSTS_SHOWN + 1} hosts more"]
        first, *further = texts or ["-"]
        since, until = moment(job["started"], now), _until(job, now)
        user = cut(job["user"] or "-", USER_AT_MOST)
        cells.append((job["id"], user, job["partition"] or "-", first, since, until, job["name"] or "-"))
        cells += [("", "", "", text, "", "", "") for text in further]
        notes[len(cells)] = [
            line for text, style in _notes(job) for line in progress_text.wrapped("    ", text, width, style)
        ]
    head = ("RUNS", "USER", part, "HOST AND GPUS", "SINCE", "UNTIL", "NAME")
    optional = (part, "SINCE", "UNTIL")
    rows = table(
        head, cells, width, indent="", optional=optional, last=NAME_AT_LEAST, wraps=False, cut_at=PLACE_AT_MOST
    )
    return [line for number, row in enumerate(rows) for line in (row, *notes.get(number, []))]


def _notes(job: Row) -> list[tuple[str, str]]:
    """What is to be said of a job, each with its style."""
    found = [
        (
            f"GPU {'?' if gpu['index'] is None else gpu['index']} of {place['host']} is out of order"
            + (f": {gpu['code']}" if gpu["code"] else ""),
            "bad",
        )
        for place in job["gpus"]
        for gpu in place["bad"]
    ]
    found += [
        (word.lower(), "changed") for word in (job["state"] or "").split("+") if word.upper() not in ("RUNNING", "")
    ]
    if job["gpus"] and job["processes"] == 0:
        found.append(("no process on its GPUs", "changed"))
    return found


def _until(job: Row, now: float) -> str:
    if job["ends"] is None and job["scheduler"] != MESOS:
        return "no limit"
    return moment(job["ends"], now)


def _waiting_lines(waiting: Iterable[Row], part: str, now: float, width: int) -> list[Line]:
    cells = [
        (
            job["id"],
            cut(job["user"] or "-", USER_AT_MOST),
            "-" if job["place"] is None else str(job["place"]),
            job["partition"] or "-",
            str(job["gpus"]),
            moment(job["submitted"], now),
            cut(job["name"] or "-", NAME_AT_LEAST),
            job["waits_for"] or job["reason"] or "the reason is not known",
        )
        for job in waiting
    ]
    head = ("WAITS", "USER", "PLACE", part, "GPUS", "SINCE", "NAME", "WHY")
    optional = (part, "SINCE", "NAME", "PLACE", "GPUS")
    return table(head, cells, width, indent="", optional=optional, last=WHY_AT_LEAST)


def indices(gpus: Iterable[Row]) -> str:
    """Indices of GPUs such as 0-3,6, with a question mark for each that is not known."""
    rows = list(gpus)
    known = sorted({gpu["index"] for gpu in rows if gpu["index"] is not None})
    if not known:
        return f"{len(rows)} of ?"
    starts = [known[0], *(after for before, after in pairwise(known) if after != before + 1)]
    ends = [*(before for before, after in pairwise(known) if after != before + 1), known[-1]]
    words = [str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True)]
    return ",".join([*words, *("?" for gpu in rows if gpu["index"] is None)])


def moment(seconds: float | None, now: float) -> str:
    """A moment in the local time: the hour today, the weekday in the week around, else the day."""
    if seconds is None:
        return "-"
    then = time.localtime(seconds)
    if then[:3] == time.localtime(now)[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if abs(seconds - now) < WEEK_S else "%Y-%m-%d", then)
