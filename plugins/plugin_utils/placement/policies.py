# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies: how good it would be to put a task on a node.

A policy is asked for one node at a time and sees nothing but the node's state before, so that scores can be remembered.
The scores of random, dotprod, bestfit, clustering, packing and fgd are those that "Beware of Fragmentation" (Weng et
al., USENIX ATC 2023) compares: integers from 0 to 100. `bundle` and `spread` prefer the node with the most or the
fewest GPUs in use. `lasting` is this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import (
    GPU,
    Fragmentation,
    Kind,
    Lasting,
)


class View(NamedTuple):
    """What a policy sees of a node: free CPU in thousandths, free thousandths of the GPUs in growing order, of those
    that the task may use (`gpus`) and of the others (`rest`), and the classes of the tasks that run there."""

    cpu: int
    gpus: tuple[int, ...]
    rest: tuple[int, ...]
    classes: frozenset[str]

    @property
    def free(self) -> tuple[int, ...]:
        """Free thousandths of all GPUs, in growing order."""
        return tuple(sorted(self.gpus + self.rest)) if self.rest else self.gpus

    def after(self, kind: Kind, level: int) -> tuple[int, ...]:
        """`free` once the task is there, on a GPU with `level` free if it takes a part of one."""
        if not kind.gpus:
            return self.free
        gpus = list(self.gpus)
        if kind.milli < GPU:
            gpus[gpus.index(level)] -= kind.milli
        else:
            gpus[-kind.gpus :] = [0] * kind.gpus
        return tuple(sorted((*gpus, *self.rest)))


def task_class(kind: Kind) -> str:
    """Tasks of one class are kept together by `clustering`: those that share a GPU, and those with as many GPUs."""
    return "shared" if kind.milli < GPU else f"{kind.gpus}"


class Policy:
    """Base of the policies: gives every node the same score, so the first in order is taken."""

    name = "first"
    # Whether a fitting node is drawn instead of the one with the best score.
    draws = False

    def __init__(self, counts: Mapping[Kind, float], largest_cpu: int, largest_gpus: int) -> None:
        self.largest_cpu, self.largest_gpu = max(largest_cpu, 1), max(largest_gpus, 1) * GPU

    def score(self, view: View, kind: Kind) -> int:
        """How good the node is for the task, which fits there."""
        return 0

    def cost(self, view: View, kind: Kind) -> Any:
        """By what nodes are compared: the lowest is the best."""
        return -self.score(view, kind)

    def level(self, view: View, kind: Kind) -> int:
        """How much is free on the GPU that a task should share: the tightest fit."""
        return next(milli for milli in view.gpus if milli >= kind.milli)

    def words(self, view: View, kind: Kind) -> str:
        """Why the node has its score."""
        return f"score {self.score(view, kind)}"


class Random(Policy):
    name = "random"
    draws = True

    def words(self, view: View, kind: Kind) -> str:
        return "drawn among the nodes that fit"


class DotProd(Policy):
    """The node whose free CPU and GPUs point the least in the direction of the request."""

    name = "dotprod"

    def score(self, view: View, kind: Kind) -> int:
        cpu = view.cpu * kind.cpu / self.largest_cpu**2
        gpu = sum(view.free) * kind.gpus * kind.milli / self.largest_gpu**2
        return int(100 * (1 - (cpu + gpu) / 2))


class BestFit(Policy):
    """The node that has the least left. Rescaling scores over the nodes that fit would not change the best one."""

    name = "bestfit"

    def score(self, view: View, kind: Kind) -> int:
        cpu = (view.cpu - kind.cpu) / self.largest_cpu
        gpu = (sum(view.free) - kind.gpus * kind.milli) / self.largest_gpu
        return int(100 * (1 - (cpu + gpu) / 2))


class Clustering(Policy):
    """The node where tasks of the same class run."""

    name = "clustering"

    def score(self, view: View, kind: Kind) -> int:
        if not kind.gpus:
            return 0
        base = 0
        if task_class(kind) in view.classes:
            base = 75 if len(view.classes) == 1 else 50
        elif not view.classes:
            base = 25
        return int(base + 25 * (self.largest_gpu - sum(view.free)) / self.largest_gpu)


class Packing(Policy):
    """GPUs that are shared already first, then free GPUs of nodes in use, then free nodes with few GPUs."""

    name = "packing"

    def score(self, view: View, kind: Kind) -> int:
        if not kind.gpus:
            return 0
        free = view.free
        if free[0] == GPU:
            return max(33 - len(free), len(free))
        gpus = [milli for milli in view.gpus if milli >= kind.milli][: kind.gpus]
        whole = gpus.count(GPU)
        if whole:
            return max(33, 50 - whole)
        return max(50, 100 - sum(milli // 10 for milli in gpus) // 10)


class Fgd(Policy):
    """The node whose fragmentation grows least, rounded as the paper rounds it."""

    name = "fgd"

    def __init__(self, counts: Mapping[Kind, float], largest_cpu: int, largest_gpus: int) -> None:
        super().__init__(counts, largest_cpu, largest_gpus)
        self.fragmentation = Fragmentation(counts)

    def growth(self, view: View, kind: Kind) -> float:
        """By how much the node's fragmentation grows, in thousandths of a GPU."""
        after = view.after(kind, self.level(view, kind) if kind.gpus and kind.milli < GPU else 0)
        return self.fragmentation.of(view.cpu - kind.cpu, after) - self.fragmentation.of(view.cpu, view.free)

    def score(self, view: View, kind: Kind) -> int:
        return int(100 / (1 + math.exp(min(self.growth(view, kind) / 1000, 700))))

    def words(self, view: View, kind: Kind) -> str:
        return f"fragmentation changes by {self.growth(view, kind) / GPU:+.3f} GPUs"


class LastingFit(Policy):
    """The node whose free GPUs stay of most use: the least growth of the fragmentation now and until the node is full.

    Of equal ones the one that has the least left.
    """

    name = "lasting"

    def __init__(self, counts: Mapping[Kind, float], largest_cpu: int, largest_gpus: int) -> None:
        super().__init__(counts, largest_cpu, largest_gpus)
        self.fragmentation = Lasting(counts)

    def _growth(self, view: View, kind: Kind) -> tuple[float, int]:
        """(growth of the fragmentation in thousandths of a GPU, free on the GPU to share)."""
        levels: tuple[int, ...] = (0,)
        if kind.gpus and kind.milli < GPU:
            levels = tuple(sorted({milli for milli in view.gpus if milli >= kind.milli}))
        before, cpu = self.fragmentation.of(view.cpu, view.free), view.cpu - kind.cpu
        return min((self.fragmentation.of(cpu, view.after(kind, level)) - before, level) for level in levels)

    def cost(self, view: View, kind: Kind) -> tuple[float, float]:
        # Differences that floating point makes up must not decide.
        growth = round(self._growth(view, kind)[0], 3)
        return growth, (view.cpu - kind.cpu) / self.largest_cpu + sum(view.free) / self.largest_gpu

    def level(self, view: View, kind: Kind) -> int:
        return self._growth(view, kind)[1]

    def words(self, view: View, kind: Kind) -> str:
        growth = self._growth(view, kind)[0] / GPU
        if abs(growth) < 0.0005:
            return "the usual tasks can use what stays free as well as before"
        change = "cannot use" if growth > 0 else "can use"
        return f"of what stays free, the usual tasks {change} {abs(growth):.3f} GPUs more than before"


class Bundle(Policy):
    """The node with the most GPUs in use."""

    name = "bundle"

    def score(self, view: View, kind: Kind) -> int:
        return sum(milli < GPU for milli in view.free)

    def words(self, view: View, kind: Kind) -> str:
        return f"{sum(milli < GPU for milli in view.free)} of {len(view.free)} GPUs are in use"


class Spread(Bundle):
    """The node with the fewest GPUs in use."""

    name = "spread"

    def score(self, view: View, kind: Kind) -> int:
        return -super().score(view, kind)


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (LastingFit, Fgd, BestFit, Packing, Clustering, DotProd, Bundle, Spread, Random)
}
DEFAULT = LastingFit.name
