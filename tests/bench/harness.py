# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing two ways of doing the same, in one run: paired, in alternating order, with a control.

A machine that is busy slows both sides of a pair, so the ratio within a pair counts and not the seconds. The control
compares a side with itself. How far that comes out from 1 is the machine's noise, and a result that is closer to its
goal than the noise is inconclusive.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".cache" / "bench"


@dataclass
class Sample:
    """One run: CPU seconds (user and system), the highest resident memory in MiB, and what came out of it."""

    cpu_s: float
    memory_mib: float
    outcome: str


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


def compare(
    what: str,
    pairs: Sequence[tuple[Sample, Sample]],
    goals: dict[str, float | None],
    controls: Sequence[tuple[Sample, Sample]] = (),
    less: Sample | None = None,
) -> list[Comparison]:
    """A row for CPU and one for memory. `less` is taken off both sides, such as what both need just to start."""
    found = []
    for key, quantity, unit in (("cpu_s", "CPU", "s"), ("memory_mib", "memory", "MiB")):
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


def table(name: str, rows: Sequence[Comparison]) -> Table:
    """The rows with their goals beside them."""
    shown = Table(title=name, title_justify="left")
    for column in ("what", "quantity", "baseline", "ours", "baseline ÷ ours (95 %)", "goal", "reached"):
        shown.add_column(column, justify="left" if column in ("what", "quantity") else "right")
    for row in rows:
        shown.add_row(
            row.what,
            row.quantity,
            f"{row.baseline:.2f} {row.unit}",
            f"{row.ours:.2f} {row.unit}",
            f"{row.ratio:.1f} ({row.low:.1f} to {row.high:.1f}, n={row.pairs})",
            f"≥ {row.goal:g}" if row.goal else "",
            row.verdict,
        )
    return shown


def report(name: str, rows: Sequence[Comparison]) -> None:
    """Print the table and keep the rows, with what they were measured on, in .cache/bench/NAME.jsonl."""
    Console(width=None if sys.stdout.isatty() else 160).print(table(name, rows))
    RESULTS.mkdir(parents=True, exist_ok=True)
    about = {
        "time": time.time(),
        "load": os.getloadavg(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "ansible_core": version("ansible-core"),
    }
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**asdict(row), "verdict": row.verdict, **about}) + "\n")
