# SPDX-License-Identifier: GPL-3.0-or-later
"""What is free now, and whether a session would start at once: from the scheduler's nodes and jobs, as
`Backend.look` has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request

NOW, PERHAPS, WAITS, NEVER, UNKNOWN = "now", "perhaps", "waits", "never", "unknown"


@dataclass(frozen=True)
class Offer:
    """GPUs of a model. `largest` is the most that are free on one node, `most` the most that a node has."""

    model: str
    free: int
    total: int
    largest: int
    most: int


class Forecast(NamedTuple):
    """`at` is when it can start at the latest, in Unix seconds, where that is known."""

    answer: str
    text: str
    at: float | None = None


def free_gpus(node: Mapping[str, Any], model: str = "") -> int:
    """How many are free there at least: no scheduler tells of which model those are that are used."""
    if not node["takes_jobs"]:
        return 0
    there: Mapping[str, int] = node["models"]
    return max(0, (there.get(model, 0) if model else sum(there.values())) - int(node["gpus_used"]))


def startable_gpus(node: Mapping[str, Any], model: str = "") -> int:
    """How many of the free ones a job can have now: each takes a core."""
    return min(free_gpus(node, model), int(node["free_cpus"]))


def in_partition(nodes: Iterable[Mapping[str, Any]], partition: str) -> list[Mapping[str, Any]]:
    """The nodes of a partition. An empty name stands for all."""
    return [node for node in nodes if not partition or partition in node["partitions"]]


def offers(nodes: Sequence[Mapping[str, Any]]) -> list[Offer]:
    """What there is of each model, sorted by its name."""
    found = []
    for model in sorted({model for node in nodes for model in node["models"] if model}):
        free = [startable_gpus(node, model) for node in nodes]
        there = [node["models"].get(model, 0) for node in nodes]
        found.append(Offer(model, sum(free), sum(there), max(free), max(there)))
    return found


def forecast(
    request: Request,
    nodes: Sequence[Mapping[str, Any]],
    jobs: Iterable[Mapping[str, Any]],
    now: float,
    has_queue: bool = True,
) -> Forecast:
    """Whether a session would start at once, or for what it would wait.

    :param nodes: those of the partition in which it would be.
    :param jobs: those of the cluster, with those that wait.
    :param has_queue: whether it would wait, and not be refused.
    """
    waits = "It waits" if has_queue else "It cannot start now, and nothing waits here,"
    memory_mib = request.memory_gib << 10
    able = [node for node in nodes if _could(node, request, memory_mib)]
    what = _what(request)
    if not able:
        wanted = f"{what}, " if request.gpus else ""
        return Forecast(
            NEVER,
            f"No node has {wanted}{_of(request.cpus, 'core')} and {request.memory_gib} GiB together. {_most(nodes)}",
        )
    up = [node for node in able if node["takes_jobs"]]
    if not up:
        be = "is" if len(able) == 1 else "are"
        return Forecast(WAITS, f"{waits}: the {_of(len(able), 'node')} that could run it {be} out of service.")
    has_gpus = [node for node in up if free_gpus(node, request.model) >= request.gpus]
    fits = [node for node in has_gpus if node["free_cpus"] >= request.cpus and node["free_memory_mib"] >= memory_mib]
    listed = list(jobs)
    if fits:
        names = {str(node["name"]) for node in up}
        before = sum(1 for job in listed if job["waits"] and job["in_line"] and _competes(job, nodes))
        if before:
            return Forecast(
                PERHAPS, f"There is room for it now, and {_of(before, 'job')} waited before it: it may have to wait."
            )
        return Forecast(NOW, f"It starts at once: {_room(len(fits), len(names))}.")
    if has_gpus:
        return Forecast(WAITS, f"{waits} for cores or memory: the nodes with free GPUs have too few of them left.")
    at = min(filter(None, (_free_at(node, request, listed) for node in up)), default=None)
    free = sum(free_gpus(node, request.model) for node in up)
    text = f"{waits} for {what}: {free} {'is' if free == 1 else 'are'} free, and not as many on one node."
    return Forecast(WAITS, text, None if at is None else max(at, now))


def _could(node: Mapping[str, Any], request: Request, memory_mib: int) -> bool:
    there: Mapping[str, int] = node["models"]
    gpus = there.get(request.model, 0) if request.model else sum(there.values())
    return gpus >= request.gpus and node["cpus"] >= request.cpus and node["memory_mib"] >= memory_mib


def _competes(job: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a job that waits may be for the same nodes. It may name several partitions."""
    wanted = set(str(job["partition"]).split(","))
    return any(wanted & set(node["partitions"]) for node in nodes)


def _free_at(node: Mapping[str, Any], request: Request, jobs: Iterable[Mapping[str, Any]]) -> float | None:
    """When so many GPUs of a node are free at the latest; None where a job has no end."""
    free = free_gpus(node, request.model)
    for ends, count in sorted(_ends(str(node["name"]), jobs)):
        free += count
        if free >= request.gpus:
            return ends
    return None


def _ends(name: str, jobs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, int]]:
    for job in jobs:
        for there in job["nodes"]:
            if there["name"] == name and job["ends"] and there["minors"] and not job["holder"]:
                yield float(job["ends"]), len(there["minors"])


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _what(request: Request) -> str:
    return f"{_of(request.gpus, 'GPU')}{f' {request.model}' if request.model else ''}"


def _room(fits: int, nodes: int) -> str:
    return f"{fits} of {_of(nodes, 'node')} {'has' if fits == 1 else 'have'} room for it"


def _most(nodes: Sequence[Mapping[str, Any]]) -> str:
    if not nodes:
        return "The partition has no nodes."
    return (
        f"The most of a node are {max(int(node['gpus']) for node in nodes)} GPUs, "
        f"{max(int(node['cpus']) for node in nodes)} cores and "
        f"{max(int(node['memory_mib']) for node in nodes) >> 10} GiB."
    )
