# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement: policies on the openb trace against published results, run time by nodes, and GPUs inside a node."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from rich.console import Console
from rich.table import Table

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import topology
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import links as placement_links
from tests.bench import openb
from tests.bench.harness import Comparison

OURS = "lasting"
PAPER = ("random", "dotprod", "clustering", "packing", "bestfit", "fgd")
# GPUs left over in percent at a load of 130 %: "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).
PUBLISHED = {"random": 12.62, "dotprod": 9.20, "clustering": 8.21, "packing": 7.94, "bestfit": 6.89, "fgd": 4.60}
VARIANTS = ("default", "no shared", "whole only")
SEEDS = 10
CHURN_STEPS = 4000
CHURN_SEEDS = 10
SIZES = (1, 2, 3, 4)

# NVLinks of a DGX-1 with V100s, by NVIDIA's "DGX-1 With Tesla V100 System Architecture" (hybrid cube mesh). GPUs 0-1,
# 2-3, 4-5 and 6-7 share a PCIe switch, 0-3 and 4-7 a socket.
NVLINKS = ("01122000", "10210200", "12020010", "21200001", "20000112", "02001021", "00101202", "00012120")
POINTS = dict(topology.LEVELS.values())

Picker = Callable[[placement_links.Scores, tuple[int, ...], int], "tuple[int, ...] | None"]


def dgx1v() -> placement_links.Scores:
    def pcie(one: int, other: int) -> int:
        return POINTS["sys"] if one // 4 != other // 4 else POINTS["pix"] if one // 2 == other // 2 else POINTS["phb"]

    return placement_links.matrix(
        [
            [
                None if one == other else topology.NVLINK_POINTS * int(NVLINKS[one][other]) + pcie(one, other)
                for other in range(8)
            ]
            for one in range(8)
        ]
    )


def lowest_index(_scores: placement_links.Scores, free: tuple[int, ...], count: int) -> tuple[int, ...]:
    return free[:count]


def single_best(scores: placement_links.Scores, free: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The set with the best total, and nothing else to decide."""
    return max(combinations(free, count), key=lambda gpus: placement_links.total(scores, gpus))


PICKERS: dict[str, Picker] = {
    "ours": placement_links.best_set,
    "single best set": single_best,
    "lowest index": lowest_index,
}


def drain(scores: placement_links.Scores, pick: Picker, count: int) -> tuple[float, int]:
    """Tasks of one size until the node is full: (mean of chosen over best possible of what was free, total)."""
    free, shares, together = tuple(range(len(scores))), [], 0
    while len(free) >= count:
        chosen = pick(scores, free, count) or ()
        points = placement_links.total(scores, chosen)
        shares.append(points / placement_links.total(scores, single_best(scores, free, count)))
        together += points
        free = tuple(gpu for gpu in free if gpu not in chosen)
    return statistics.mean(shares), together


def churn(scores: placement_links.Scores, pick: Picker, seed: int, steps: int) -> float:
    """Mean of chosen over what would be best on the empty node.

    Each step ends a task that runs, with a chance of 45 %, or starts one of 1 to 4 GPUs if so many are free.
    """
    dice, free = random.Random(seed), tuple(range(len(scores)))
    running: list[tuple[int, ...]] = []
    shares: list[float] = []
    for _step in range(steps):
        if running and dice.random() < 0.45:
            free = tuple(sorted(free + running.pop(dice.randrange(len(running)))))
            continue
        count = dice.choice(SIZES)
        if count > len(free):
            continue
        chosen = pick(scores, free, count) or ()
        if count > 1:
            best = placement_links.total(scores, single_best(scores, tuple(range(len(scores))), count))
            shares.append(placement_links.total(scores, chosen) / best)
        running.append(chosen)
        free = tuple(gpu for gpu in free if gpu not in chosen)
    return statistics.mean(shares)


def _show(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    """Print a table; what takes minutes is said before it."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"[dim]{title} …[/dim]")
    shown = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        shown.add_column(column, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def _links(steps: int, seeds: int) -> Iterator[tuple[str, ...]]:
    scores = dgx1v()
    for name, pick in PICKERS.items():
        drained = [drain(scores, pick, count) for count in (2, 4)]
        yield (
            name,
            *(f"{share:.3f} ({points})" for share, points in drained),
            f"{statistics.mean(churn(scores, pick, seed, steps) for seed in range(seeds)):.3f}",
        )


def _policies(
    trace: openb.Trace, names: tuple[str, ...], seeds: int, found: dict[str, openb.Outcome]
) -> Iterator[tuple[str, ...]]:
    for name in names:
        got = found[name] = openb.median(trace, name, seeds)
        told = f"{PUBLISHED[name]:.2f}" if name in PUBLISHED else ""
        yield name, f"{got.unallocated:.2f}", told, f"{got.big_placed:.3f}", f"{got.cpu_s:.1f}"


def _growth(trace: openb.Trace, factors: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    for factor in factors:
        got = openb.run(trace.times(factor), OURS, 0)
        per_pod = got.cpu_s / got.pods * 1e6
        yield f"{factor} times", f"{factor * len(trace.nodes):,}", f"{got.pods:,}", f"{got.cpu_s:.1f}", f"{per_pod:.0f}"


def _row(
    what: str, quantity: str, unit: str, baseline: float, ours: float, seeds: int, goal: float | None = 1.0
) -> Comparison:
    """A comparison whose goal is that ours is at least as good; the ratio is above 1 where it is better."""
    ratio = baseline / ours if ours else float("inf")
    if quantity.startswith("8-GPU"):
        ratio = ours / baseline if baseline else float("inf")
    return Comparison(what, quantity, unit, baseline, ours, ratio, ratio, ratio, seeds, goal)


def compared(found: Mapping[str, Mapping[str, openb.Outcome]], seeds: int) -> list[Comparison]:
    """Both figures of every policy and mix beside ours. Ours is to be as good as fgd, and as the best of the others."""
    rows = []
    for variant, outcomes in found.items():
        ours = outcomes[OURS]
        others = {name: got for name, got in outcomes.items() if name != OURS}
        least = min(others, key=lambda name: others[name].unallocated)
        most = max(others, key=lambda name: others[name].big_placed)
        for name, got in others.items():
            what = f"{variant}, against {name}"
            goals = [1.0 if name in ("fgd", best) else None for best in (least, most)]
            rows.append(_row(what, "left over", "%", got.unallocated, ours.unallocated, seeds, goals[0]))
            rows.append(_row(what, "8-GPU pods placed", "", got.big_placed, ours.big_placed, seeds, goals[1]))
    return rows


def run(quick: bool = False) -> list[Comparison]:
    steps, link_seeds = (400, 1) if quick else (CHURN_STEPS, CHURN_SEEDS)
    columns = ("GPUs are chosen by", "drain, k=2", "drain, k=4", f"churn, {steps} steps")
    _show("DGX-1V: points over best possible", columns, _links(steps, link_seeds))
    trace, seeds = openb.load(), 1 if quick else SEEDS
    found: dict[str, dict[str, openb.Outcome]] = {}
    for variant in VARIANTS:
        names = (OURS, "fgd") if quick else (*PAPER, "bundle", "spread", OURS)
        title = f"openb, {variant}: medians of {seeds} seeds at 130 % load"
        of_policies = (
            "policy",
            "GPUs left over, %",
            "published" if variant == "default" else "",
            "8-GPU pods placed",
            "CPU s",
        )
        rows = _policies(trace.variant(variant), names, seeds, found.setdefault(variant, {}))
        if variant != "default":
            rows = (tuple(("" if place == 2 else cell) for place, cell in enumerate(row)) for row in rows)
        _show(title, of_policies, rows)
    of_growth = ("", "nodes", "pods", "CPU s", "µs per pod")
    _show(f"openb, default, {OURS}: growth", of_growth, _growth(trace, (1,) if quick else (1, 4, 16)))
    ours = found["default"][OURS].unallocated
    published = _row("default, against fgd as published", "left over", "%", PUBLISHED["fgd"], ours, seeds)
    return [published, *compared(found, seeds)]
