# SPDX-License-Identifier: GPL-3.0-or-later
"""The openb trace of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023) and its experiment.

The trace is in https://github.com/hkust-adsl/kubernetes-scheduler-simulator, data/csv/ (Apache-2.0), and is not part of
this project: OPENB_TRACE names a directory with openb_node_list_gpu_node.csv and openb_pod_list_default.csv.
"""

from __future__ import annotations

import csv
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import GPU, counted
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.place import Cluster, Gpu, Node, Request
from tests.bench import harness

VARIABLE = "OPENB_TRACE"
SOURCE = "https://github.com/hkust-adsl/kubernetes-scheduler-simulator, data/csv/"
NODES, PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_default.csv"
LOAD = 1.3
BIG = 8


@dataclass(frozen=True)
class Trace:
    """Nodes as (name, CPU in thousandths, memory in MiB, GPUs, model), and the pods as requests."""

    nodes: Sequence[tuple[str, int, int, int, str]]
    pods: Sequence[Request]

    @property
    def capacity(self) -> int:
        """Thousandths of GPUs."""
        return GPU * sum(row[3] for row in self.nodes)

    def variant(self, name: str) -> Trace:
        """The pods of a variant of the experiment: all; without those that share a GPU; only those with whole GPUs."""
        kept: dict[str, Callable[[Request], bool]] = {
            "default": lambda pod: True,
            "no shared": lambda pod: not pod.gpus or pod.milli == GPU,
            "whole only": lambda pod: pod.gpus > 0 and pod.milli == GPU,
        }
        return Trace(self.nodes, [pod for pod in self.pods if kept[name](pod)])

    def times(self, factor: int) -> Trace:
        """As many times the nodes and the pods."""
        return Trace(list(self.nodes) * factor, list(self.pods) * factor)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def load() -> Trace:
    """The trace of the directory that OPENB_TRACE names. harness.NotHere says what to do if it is not there."""
    folder = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not all((folder / name).is_file() for name in (NODES, PODS)):
        raise harness.NotHere(
            f"the placement benchmark needs {NODES} and {PODS} of {SOURCE}:"
            f" set {VARIABLE} to their directory (it is {os.environ.get(VARIABLE)!r} now)"
        )
    return Trace(
        [
            (row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in _rows(folder / NODES)
        ],
        [
            Request(
                int(row["num_gpu"]),
                int(row["gpu_milli"]) if int(row["num_gpu"]) else GPU,
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                tuple(row["gpu_spec"].split("|")) if row["gpu_spec"] else (),
            )
            for row in _rows(folder / PODS)
        ],
    )


@dataclass(frozen=True)
class Outcome:
    """Of a run: the share of GPUs that is left over in percent, the share of 8-GPU pods placed, CPU seconds, pods."""

    unallocated: float
    big_placed: float
    cpu_s: float
    pods: int


def arrivals(trace: Trace, dice: random.Random) -> list[Request]:
    """The pods in random order, then pods drawn with replacement until the load is reached."""
    pods = list(trace.pods)
    dice.shuffle(pods)
    asked = sum(pod.gpus * pod.milli for pod in pods)
    while asked < LOAD * trace.capacity:
        pods.append(dice.choice(trace.pods))
        asked += pods[-1].gpus * pods[-1].milli
    return pods


def run(trace: Trace, policy: str, seed: int) -> Outcome:
    """Place the pods of one seed in order, on nodes in an order of the seed's own."""
    dice = random.Random(seed)
    pods, rows = arrivals(trace, dice), list(trace.nodes)
    dice.shuffle(rows)
    nodes = [
        Node(name, [Gpu(index, model=model) for index in range(gpus)], cpu, memory)
        for name, cpu, memory, gpus, model in rows
    ]
    cluster = Cluster(nodes, policy, counted(pod.kind for pod in trace.pods), seed)
    big = placed = 0
    began = time.process_time()
    for pod in pods:
        found = cluster.find(pod)
        if found:
            cluster.start(found[0], pod, found[1])
        if pod.gpus == BIG:
            big += 1
            placed += found is not None
    took = time.process_time() - began
    left = sum(sum(node.free) for node in nodes)
    return Outcome(100 * left / trace.capacity, placed / big, took, len(pods))


def median(trace: Trace, policy: str, seeds: int) -> Outcome:
    """Medians over seeds."""
    runs = [run(trace, policy, seed) for seed in range(seeds)]
    return Outcome(
        statistics.median(found.unallocated for found in runs),
        statistics.median(found.big_placed for found in runs),
        statistics.median(found.cpu_s for found in runs),
        runs[0].pods,
    )
