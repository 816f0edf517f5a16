# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How near the GPUs of a host are to one another, as a score for each pair: more is nearer.

A score is 100 for each NVLink that joins the pair, plus the points of the way over PCIe. NVLinks through NVSwitches
join every pair of GPUs that is attached to them. The points are those that NVIDIA's go-gpuallocator gives
(github.com/NVIDIA/go-gpuallocator, gpuallocator/besteffort_policy.go), the names those of `nvidia-smi topo -m`.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml

NVLINK_POINTS = 100
# nvmlGpuTopologyLevel_t -> (name, points).
LEVELS: dict[int, tuple[str, int]] = {
    0: ("board", 60),
    10: ("pix", 50),
    20: ("pxb", 40),
    30: ("phb", 30),
    40: ("node", 20),
    50: ("sys", 10),
}


def nvlinks(rows: list[dict[str, Any]]) -> list[list[int]]:
    """How many NVLinks join each pair of GPUs. A row is {pci_address, nvlinks: [{active, remote}] or null}."""
    gpus = {row["pci_address"] for row in rows}
    remotes = [Counter(link["remote"] for link in row["nvlinks"] or () if link["active"]) for row in rows]
    switched = [sum(count for remote, count in found.items() if remote not in gpus) for found in remotes]
    return [
        [
            0 if row is other else remotes[one][other["pci_address"]] + min(switched[one], switched[number])
            for number, other in enumerate(rows)
        ]
        for one, row in enumerate(rows)
    ]


def build(rows: list[dict[str, Any]], levels: dict[tuple[int, int], int | None]) -> dict[str, Any]:
    """{"scores": a row and a column for each GPU, "kinds": {score: {"nvlinks", "pcie"}}}.

    `levels` maps two places in `rows`, the smaller first, to NVML's level, which is None where it is not known; a pair
    that is not in it has no score, since one of its GPUs does not answer. JSON has texts for keys, so scores are texts
    in `kinds`.
    """
    links = nvlinks(rows)
    scores: list[list[int | None]] = [[None] * len(rows) for _row in rows]
    kinds: dict[str, dict[str, Any]] = {}
    for (one, other), level in levels.items():
        name, points = LEVELS.get(level, (None, 0)) if level is not None else (None, 0)
        count = links[one][other]
        score = NVLINK_POINTS * count + points
        scores[one][other] = scores[other][one] = score
        kinds[str(score)] = {"nvlinks": count, "pcie": name}
    return {"scores": scores, "kinds": kinds}


def ask(lib: Any, handles: list[Any]) -> dict[tuple[int, int], int | None]:
    """NVML's level for each pair. One question per pair, so it is for facts and not for a poll. `lib` is pynvml."""
    found: dict[tuple[int, int], int | None] = {}
    for one, handle in enumerate(handles):
        for other in range(one + 1, len(handles)):
            if handle is None or handles[other] is None:
                continue
            question = partial(lib.nvmlDeviceGetTopologyCommonAncestor, handle, handles[other])
            found[(one, other)] = nvml.reading(lib, question).get("value")
    return found
