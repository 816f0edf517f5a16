# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of a node's free GPUs to give to a task: the set whose pairs have the highest scores together.

Scores are a matrix as topology.build() returns it: one row per GPU, None where a pair's score is not known, which
counts as 0.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

Scores = tuple[tuple[int | None, ...], ...]

# All sets are looked at. Half of sixteen GPUs are 12,870 sets, the most that one node has had so far.
MAX_GPUS = 16


def matrix(rows: list[list[int | None]]) -> Scores:
    """Scores as they are in JSON, in a form that can be remembered."""
    return tuple(tuple(row) for row in rows)


def total(scores: Scores, gpus: tuple[int, ...]) -> int:
    """The sum of the scores of all pairs in a set."""
    return sum(scores[one][other] or 0 for one, other in combinations(gpus, 2))


def lowest(scores: Scores, gpus: tuple[int, ...]) -> int | None:
    """The score of the weakest pair of a set, None for fewer than two GPUs."""
    return min((scores[one][other] or 0 for one, other in combinations(gpus, 2)), default=None)


@lru_cache(maxsize=65536)
def best_set(scores: Scores, free: tuple[int, ...], count: int, weakest: int = 0) -> tuple[int, ...] | None:
    """The best `count` of the GPUs `free`, no pair of which scores less than `weakest`; None if there is none.

    Of sets with the same total, the one that leaves the GPUs with the highest scores among themselves; then the one
    with the lowest numbers. Raises ValueError for more than MAX_GPUS free GPUs.
    """
    if len(free) > MAX_GPUS:
        raise ValueError(f"{len(free)} free GPUs in one node; sets of at most {MAX_GPUS} are compared")
    best: tuple[tuple[int, int], tuple[int, ...]] | None = None
    for chosen in combinations(free, count):
        if weakest and count > 1 and (lowest(scores, chosen) or 0) < weakest:
            continue
        value = total(scores, chosen)
        if best is not None and value < best[0][0]:
            continue
        left = tuple(gpu for gpu in free if gpu not in chosen)
        rank = (value, total(scores, left))
        if best is None or rank > best[0]:
            best = rank, chosen
    return best[1] if best else None
