# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much of a node's free GPUs the usual tasks cannot use: its fragmentation, in thousandths of a GPU.

The measure of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et
al., USENIX ATC 2023): for each usual kind of task, what of the free GPUs is of no use to it, weighted by how frequent
the kind is. `Lasting` adds a second look that the paper does not have: it asks not whether one more task of the kind
fits, but how far the node's CPU would go if it were filled with them. Where tasks share GPUs, those that take many
count for more there than those that take a part of one: by number alone, nobody would keep whole nodes for them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

GPU = 1000
# A kind's weight in the second look is its frequency times this power of the GPUs that it takes.
SIZE_POWER = 0.55
# States of nodes whose fragmentation is kept: some tens of MiB.
REMEMBERED = 200_000


class Kind(NamedTuple):
    """A kind of task: CPU in thousandths, number of GPUs, thousandths of each GPU."""

    cpu: int
    gpus: int
    milli: int


def typical(counts: Mapping[Kind, float], share: float = 1.0) -> dict[Kind, float]:
    """The most frequent kinds that make up `share` of all, with frequencies that add up to 1."""
    wanted, found = share * sum(counts.values()), 0.0
    kept: dict[Kind, float] = {}
    for kind, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        if found >= wanted:
            break
        kept[kind] = count
        found += count
    return {kind: count / found for kind, count in kept.items()}


class _Group:
    """The kinds with the same wish for GPUs, by CPU: sums of frequencies up to each."""

    def __init__(self, gpus: int, milli: int, kinds: Iterable[tuple[int, float]]) -> None:
        rows = sorted(kinds)
        self.gpus, self.milli = gpus, milli
        self.cpus = [cpu for cpu, _frequency in rows]
        self.upto = [0.0, *accumulate(frequency for _cpu, frequency in rows)]
        # Sums of frequency over CPU, for what a node's CPU feeds if it is filled with a kind.
        self.per_cpu = [0.0, *accumulate(frequency / max(cpu, 1) for cpu, frequency in rows)]
        self.weight = self.upto[-1]

    def large_enough(self, free: tuple[int, ...]) -> int:
        """How much is free on the GPUs that are large enough; 0 if they are too few."""
        gpus = [milli for milli in free if milli >= self.milli]
        return sum(gpus) if len(gpus) >= self.gpus else 0


def _groups(kinds: Mapping[Kind, float]) -> list[_Group]:
    found: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for kind, frequency in kinds.items():
        if kind.gpus:
            found[kind.gpus, kind.milli].append((kind.cpu, frequency))
    return [_Group(gpus, milli, rows) for (gpus, milli), rows in found.items()]


class Fragmentation:
    """The paper's measure, over the kinds that make up 95 % of the tasks. Results are remembered."""

    def __init__(self, counts: Mapping[Kind, float]) -> None:
        kinds = typical(counts, 0.95)
        self._groups = _groups(kinds)
        # To a task that needs no GPU every free GPU is of no use, wherever it is.
        self._without = sum(frequency for kind, frequency in kinds.items() if not kind.gpus)
        self._levels = sorted({kind.cpu for kind in kinds})
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}

    def of(self, cpu: int, free: tuple[int, ...]) -> float:
        """The fragmentation of a node with so much free CPU and so much free on each GPU."""
        # Nothing changes between two wishes for CPU.
        key = (bisect_right(self._levels, cpu), free)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._work_out(cpu, free)
        return known

    def _work_out(self, cpu: int, free: tuple[int, ...]) -> float:
        everything = sum(free)
        useless = self._without * everything
        for group in self._groups:
            useful = group.large_enough(free)
            useless += group.weight * everything - group.upto[bisect_right(group.cpus, cpu)] * useful
        return useless


def _by_size(counts: Mapping[Kind, float]) -> Mapping[Kind, float]:
    """The kinds with more weight for those that take more GPUs, if GPUs are usually shared.

    Where they are not, small tasks fill what is left of nodes in use, and whole nodes stay without that.
    """
    if not any(kind.gpus and kind.milli < GPU for kind in typical(counts, 0.95)):
        return counts
    return {
        kind: count * (max(kind.gpus * kind.milli, 1) / GPU) ** SIZE_POWER if kind.gpus else count
        for kind, count in counts.items()
    }


class Lasting:
    """The paper's measure plus the same over all kinds, with GPUs counted only as far as the CPU feeds them."""

    def __init__(self, counts: Mapping[Kind, float]) -> None:
        self._now = Fragmentation(counts)
        self._groups = _groups(typical(_by_size(counts)))
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}
        self._useful: dict[tuple[int, ...], list[tuple[_Group, int]]] = {}

    def of(self, cpu: int, free: tuple[int, ...]) -> float:
        """The sum of both views of a node with so much free CPU and so much free on each GPU."""
        key = (cpu, free)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._now.of(cpu, free) + self._until_full(cpu, free)
        return known

    def _until_full(self, cpu: int, free: tuple[int, ...]) -> float:
        groups = self._useful.get(free)
        if groups is None:
            groups = self._useful[free] = [(group, group.large_enough(free)) for group in self._groups]
        everything = sum(free)
        useless = 0.0
        for group, useful in groups:
            useless += group.weight * everything
            if not useful:
                continue
            # A kind can use min(useful, cpu / kind.cpu * its GPUs): those that need little CPU use all.
            size = group.gpus * group.milli
            fits = bisect_right(group.cpus, cpu)
            fed = min(bisect_left(group.cpus, cpu * size / useful), fits)
            useless -= group.upto[fed] * useful + (group.per_cpu[fits] - group.per_cpu[fed]) * cpu * size
        return useless


def counted(kinds: Iterable[Kind]) -> Counter[Kind]:
    """How often each kind occurs; a whole GPU is a thousand thousandths, and a task without GPUs has none."""
    return Counter(kind if kind.gpus else kind._replace(milli=0) for kind in kinds)
