# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU hours as a table and as CSV, from their document."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from gpuops.run.table import cut

HOURS = ("gpu_hours", "used_hours", "unused_hours", "unknown_hours")
TITLES = ("GPU HOURS", "USED", "UNUSED", "UNKNOWN")
UNKNOWN = "unknown"
SOURCES = {"slurm": "the accounting of Slurm", "prometheus": "the leases of pods in Prometheus"}
NAME_AT_MOST, NAME_AT_LEAST = 32, 8
GAP = 2
# What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t")

Row = Mapping[str, Any]
EMPTY: Line = [("plain", "")]


def lines(usage: Row, width: int) -> list[Line]:
    """The hours as a table, with the total below it."""
    total = usage["total"]
    zone = f" {usage['time_zone']}" if usage["time_zone"] else ""
    days = usage["since"] if usage["since"] == usage["until"] else f"{usage['since']} to {usage['until']}"
    out: list[Line] = [[("faint", f"{days}{zone}, from {SOURCES[usage['source']]}")], EMPTY]
    if not usage["rows"]:
        out.append([("plain", "no job had GPUs in this time")])
    else:
        out += [*_table(usage["rows"], usage["by"], width), EMPTY]
        shown = "".join(
            f", {hours(total[name])} {word}"
            for name, word in (("used_hours", "used"), ("unused_hours", "unused"), ("unknown_hours", "unknown"))
            if total[name] is not None
        )
        jobs = f"{total['jobs']:,} {'job' if total['jobs'] == 1 else 'jobs'}"
        out += progress_text.wrapped("total: ", f"{jobs}, {hours(total['gpu_hours'])} GPU hours{shown}", width)
    if not usage["use"]["asked"]:
        note = "give --prometheus URL to tell used from unused hours"
        out += progress_text.wrapped("note: ", note, width)
    if usage["use"]["problem"]:
        out += progress_text.wrapped("use: ", usage["use"]["problem"], width, "bad")
    for problem in usage["problems"]:
        out += progress_text.wrapped("cause: ", problem["cause"], width, "bad")
        out += progress_text.wrapped("remedy: ", problem["remedy"], width)
    return out


def _table(rows: Sequence[Row], by: Sequence[str], width: int) -> list[Line]:
    """Names that are long are cut, and numbers are not. Jobs are left out where not everything fits."""
    names = {key.upper(): [row[key] or UNKNOWN for row in rows] for key in by}
    numbers = {"JOBS": [f"{row['jobs']:,}" for row in rows]}
    numbers |= {title: [hours(row[name]) for row in rows] for title, name in zip(TITLES, HOURS, strict=True)}
    sizes = {title: max(map(len, (title, *column))) for title, column in (names | numbers).items()}
    for title in names:
        sizes[title] = min(sizes[title], NAME_AT_MOST)

    def room() -> int:
        return width - sum(sizes.values()) - GAP * (len(sizes) - 1)

    if room() < 0:
        del sizes["JOBS"], numbers["JOBS"]
    while room() < 0 and (longest := max(names, key=lambda title: sizes[title])) and sizes[longest] > NAME_AT_LEAST:
        sizes[longest] -= 1

    def line(place: int) -> str:
        cells = [cut(names[title][place], sizes[title]).ljust(sizes[title]) for title in names]
        # Digits stand below digits of the same worth.
        cells += [numbers[title][place].rjust(sizes[title]) for title in numbers]
        return (" " * GAP).join(cells)

    head = [cut(title, sizes[title]).ljust(sizes[title]) for title in names]
    head += [title.rjust(sizes[title]) for title in numbers]
    return [[("faint", (" " * GAP).join(head))], *([("plain", line(place))] for place in range(len(rows)))]


def hours(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def as_csv(usage: Row) -> str:
    """A line for each row, below a line of names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*usage["by"], "jobs", *HOURS])
    for row in usage["rows"]:
        names = [_harmless(row[key] or UNKNOWN) for key in usage["by"]]
        writer.writerow([*names, row["jobs"], *(UNKNOWN if row[name] is None else row[name] for name in HOURS)])
    return out.getvalue()


def _harmless(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
