# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing two ways of doing the same, in one run: paired, in alternating order, with a control.

A machine that is busy slows both sides of a pair, so the ratio within a pair counts and not the seconds. The control
compares a side with itself. How far that comes out from 1 is the machine's noise, and a result that is closer to its
goal than the noise is inconclusive.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".cache" / "bench"


class NotHere(SystemExit):
    """Something that a benchmark needs is not here; the text says what to do."""


@dataclass
class Sample:
    """One run: CPU seconds (user and system), the highest resident memory in MiB, what came out of it, and, where it
    was measured, how long it took."""

    cpu_s: float
    memory_mib: float
    outcome: str
    wall_s: float = 0.0

    @classmethod
    def median(cls, samples: Sequence[Sample]) -> Sample:
        """What is taken off others: the median of each quantity."""
        cpu_s, memory_mib, wall_s = (
            statistics.median(getattr(sample, quantity) for sample in samples)
            for quantity in ("cpu_s", "memory_mib", "wall_s")
        )
        return cls(cpu_s, memory_mib, "", wall_s)


@dataclass
class Comparison:
    """A row of the table: the baseline's quantity divided by ours, pair by pair, and the ratio that is the goal."""

    what: str
    quantity: str
    unit: str
    baseline: float
    ours: float
    ratio: float
    low: float
    high: float
    pairs: int
    goal: float | None = None
    control: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """Whether the goal is reached, whatever the noise: how far the control is from 1."""
        if self.goal is None:
            return ""
        noise = max(self.control[1], 1 / self.control[0]) if self.control else 1.0
        if self.low / noise >= self.goal:
            return "yes"
        return "no" if self.high * noise < self.goal else "inconclusive"


@dataclass
class Figure:
    """A row of the table for what has a goal of its own and no baseline: less is better."""

    what: str
    quantity: str
    unit: str
    value: float
    worst: float
    samples: int
    goal: float | None = None

    @classmethod
    def of(cls, what: str, quantity: str, unit: str, values: Sequence[float], goal: float | None = None) -> Figure:
        """The median and the maximum of what was measured several times."""
        return cls(what, quantity, unit, statistics.median(values), max(values), len(values), goal)

    @property
    def verdict(self) -> str:
        """By the worst that was seen."""
        if self.goal is None:
            return ""
        return "yes" if self.worst <= self.goal else "no"


Row = Comparison | Figure


def child(*arguments: str | Path, environment: dict[str, str] | None = None) -> Sample:
    """Run `python -m` with arguments; its last line is a Sample as JSON, which it has taken of itself."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


Run = Callable[[], Sample]


def paired(first: Run, second: Run, pairs: int, warm_up: Sequence[Run] = ()) -> list[tuple[Sample, Sample]]:
    """Pairs of samples, first and second taking turns at going first. Warm-ups are not recorded."""
    for run in warm_up:
        run()
    found = []
    for number in range(pairs):
        if number % 2:
            after = second()
            found.append((first(), after))
        else:
            found.append((first(), second()))
    return found


def interval(ratios: Sequence[float], rounds: int = 2000) -> tuple[float, float, float]:
    """Median of ratios with a bootstrap interval of 95 %; with fewer than five, the lowest and the highest."""
    middle = statistics.median(ratios)
    if len(ratios) < 5:
        return middle, min(ratios), max(ratios)
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _round in range(rounds))
    return middle, medians[int(rounds * 0.025)], medians[int(rounds * 0.975)]


CPU, MEMORY, WALL = ("cpu_s", "CPU", "s"), ("memory_mib", "memory", "MiB"), ("wall_s", "wall", "s")


def compare(
    what: str,
    pairs: Sequence[tuple[Sample, Sample]],
    goals: Mapping[str, float | None],
    controls: Sequence[tuple[Sample, Sample]] = (),
    less: Sample | None = None,
    quantities: Sequence[tuple[str, str, str]] = (CPU, MEMORY),
) -> list[Comparison]:
    """A row for each quantity. `less` is taken off both sides, such as what both need just to start."""
    found = []
    for key, quantity, unit in quantities:
        off = getattr(less, key) if less else 0.0
        values = [(getattr(a, key) - off, getattr(b, key) - off) for a, b in pairs]
        ratio, low, high = interval([a / b for a, b in values])
        control = interval([getattr(a, key) / getattr(b, key) for a, b in controls])[1:] if controls else None
        found.append(
            Comparison(
                what,
                quantity,
                unit,
                statistics.median(a for a, _b in values),
                statistics.median(b for _a, b in values),
                ratio,
                low,
                high,
                len(pairs),
                goals.get(key),
                control,
            )
        )
    return found


def _number(value: float) -> str:
    """Three digits that count, and no fewer in front of the point."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def _ratio(value: float) -> str:
    """One digit behind the point, and below 1 two digits that count."""
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of COLUMNS."""
    if isinstance(row, Figure):
        return (
            row.what,
            row.quantity,
            f"{_number(row.value)} {row.unit}".rstrip(),
            f"{_number(row.worst)} {row.unit}".rstrip(),
            f"{row.samples}",
            f"≤ {row.goal:g} {row.unit}".rstrip() if row.goal is not None else "",
            row.verdict,
        )
    return (
        row.what,
        row.quantity,
        f"{_number(row.baseline)} {row.unit}",
        f"{_number(row.ours)} {row.unit}",
        f"{_ratio(row.ratio)} ({_ratio(row.low)} to {_ratio(row.high)}, n={row.pairs})",
        f"≥ {row.goal:g}" if row.goal else "",
        row.verdict,
    )


COLUMNS: dict[type, tuple[str, ...]] = {
    Comparison: ("what", "quantity", "baseline", "ours", "baseline ÷ ours (95 %)", "goal", "reached"),
    Figure: ("what", "quantity", "median", "maximum", "samples", "goal", "reached"),
}


def kinds(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """The rows in tables: the columns and the rows of each."""
    for kind, columns in COLUMNS.items():
        found = [row for row in rows if isinstance(row, kind)]
        if found:
            yield columns, found


def tables(name: str, rows: Sequence[Row]) -> Iterator[Table]:
    """The rows with their goals beside them."""
    for columns, found in kinds(rows):
        shown = Table(title=name, title_justify="left")
        for column in columns:
            shown.add_column(column, justify="left" if column in ("what", "quantity") else "right")
        for row in found:
            shown.add_row(*cells(row))
        yield shown


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20)) if memory else None,
        "kernel": platform.release().split("-")[0],
        "system": platform.freedesktop_os_release().get("PRETTY_NAME"),
        "python": platform.python_version(),
        "ansible_core": version("ansible-core"),
    }


def report(name: str, rows: Sequence[Row], keep: bool = True) -> None:
    """Print the tables, and keep what the page of all benchmarks shows of them in .cache/bench/NAME.json."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    for shown in tables(name, rows):
        console.print(shown)
    if not keep or not rows:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {
        "time": time.time(),
        "load": os.getloadavg(),
        "machine": machine(),
        "tables": [{"columns": columns, "rows": [cells(row) for row in found]} for columns, found in kinds(rows)],
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
