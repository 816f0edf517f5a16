# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing a node, and the GPUs in it, for a task. Pure: no clock, no host, and chance only from a given seed.

CPU and GPUs are counted in thousandths, memory in MiB. A Cluster is told of tasks that start and end and remembers
scores between them, so that placing thousands of tasks on thousands of nodes takes seconds: after a task was placed,
one node is scored anew, and not all of them.
"""

from __future__ import annotations

import fnmatch
import heapq
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import links as placement_links
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import GPU, Kind
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.policies import (
    DEFAULT,
    POLICIES,
    Policy,
    View,
    task_class,
)


@dataclass(frozen=True)
class Gpu:
    """A GPU of a node. `excluded` says why no task may go there; empty if it may."""

    index: int
    uuid: str = ""
    model: str = ""
    memory_mib: int | None = None
    excluded: str = ""


class Node:
    """A node and what is free on it. `cpu` and `memory_mib` are None where they are not known."""

    def __init__(
        self,
        name: str,
        gpus: Sequence[Gpu],
        cpu: int | None,
        memory_mib: int | None,
        scores: placement_links.Scores | None = None,
        excluded: str = "",
    ) -> None:
        """`scores` has a row and a column for each GPU, excluded ones too. Raises ValueError if it does not."""
        if scores is not None and (len(scores) != len(gpus) or any(len(row) != len(gpus) for row in scores)):
            raise ValueError(f"{name}: {len(gpus)} GPUs, but the scores are not {len(gpus)} by {len(gpus)}")
        self.name, self.excluded = name, excluded
        self.gpus = tuple(gpus)
        self.scores = scores
        self.cpu, self.memory_mib = cpu, memory_mib
        self.cpu_total = cpu or 0
        # Free thousandths of each GPU, in the order of `gpus`; of an excluded one nothing is free.
        self.free = [0 if gpu.excluded else GPU for gpu in gpus]
        self.usable = tuple(number for number, gpu in enumerate(gpus) if not gpu.excluded)
        self.running: Counter[str] = Counter()

    def take(self, request: Request, chosen: Iterable[int]) -> None:
        """A task starts on the chosen places in `gpus`. Raises ValueError, and changes nothing, if it does not fit."""
        self._change(request, tuple(chosen), 1)

    def give(self, request: Request, chosen: Iterable[int]) -> None:
        """A task ends. Raises ValueError, and changes nothing, if it was not there."""
        self._change(request, tuple(chosen), -1)

    def leave_out(self, number: int, why: str) -> None:
        """No task may go to the GPU at that place from now on. To be said before the node is in a Cluster."""
        gpus = list(self.gpus)
        gpus[number] = replace(gpus[number], excluded=why)
        self.gpus = tuple(gpus)
        self.free[number] = 0
        self.usable = tuple(place for place in self.usable if place != number)

    def _change(self, request: Request, chosen: tuple[int, ...], sign: int) -> None:
        if len(set(chosen)) != request.gpus:
            raise ValueError(f"{self.name}: {len(set(chosen))} GPUs for a task with {request.gpus}")
        for number in chosen:
            if number not in self.usable:
                raise ValueError(f"{self.name}: GPU {self.gpus[number].index} is {self.gpus[number].excluded}")
            if not 0 <= self.free[number] - sign * request.milli <= GPU:
                raise ValueError(f"{self.name}: GPU {self.gpus[number].index} has {self.free[number]}/1000 free")
        for what, left, wanted in (("CPU", self.cpu, request.cpu), ("memory", self.memory_mib, request.memory_mib)):
            if left is not None and left < sign * wanted:
                raise ValueError(f"{self.name}: {what} {left} is free, not {wanted}")
        for number in chosen:
            self.free[number] -= sign * request.milli
        if self.cpu is not None:
            self.cpu -= sign * request.cpu
        if self.memory_mib is not None:
            self.memory_mib -= sign * request.memory_mib
        if request.gpus:
            self.running[task_class(request.kind)] += sign
            self.running += Counter()


class Request(NamedTuple):
    """What a task needs.

    `gpus` whole ones, or one of which `milli` thousandths; `models` are shell patterns for slugs or names, of which one
    must match; `weakest_pair` is the score that each pair of its GPUs must have at least (see gpu/topology.py).
    """

    gpus: int = 1
    milli: int = GPU
    cpu: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    gpu_memory_mib: int = 0
    weakest_pair: int = 0

    @property
    def kind(self) -> Kind:
        """What policies see of it."""
        return Kind(self.cpu, self.gpus, self.milli if self.gpus else 0)

    def problems(self) -> list[str]:
        """What is wrong with it in itself."""
        found = [
            f"{name} is {value}; it cannot be negative"
            for name, value in zip(self._fields, self, strict=True)
            if isinstance(value, int) and value < 0
        ]
        if self.gpus and not 0 < self.milli <= GPU:
            found.append(f"{self.milli}/1000 of a GPU is asked for; give 1 to 1000")
        elif self.gpus > 1 and self.milli != GPU:
            found.append(f"a part ({self.milli}/1000) of each of {self.gpus} GPUs is asked for; a part is of one GPU")
        return found

    def allows(self, gpu: Gpu) -> bool:
        """Whether the GPU is of a kind that the task takes."""
        if self.gpu_memory_mib and (gpu.memory_mib or 0) < self.gpu_memory_mib:
            return False
        return not self.models or any(
            fnmatch.fnmatchcase(gpu.model.lower(), pattern.lower()) for pattern in self.models
        )


class Choice(NamedTuple):
    """Where a task goes: the node, places in its `gpus`, and why, as sentences."""

    node: Node
    chosen: tuple[int, ...]
    reasons: tuple[str, ...]


class Refused(Exception):
    """No node fits. `excluded` maps each condition to how many nodes it alone or with others excludes."""

    def __init__(self, nodes: int, excluded: Mapping[str, int]) -> None:
        self.nodes, self.excluded = nodes, dict(excluded)
        told = "; ".join(f"{text}: {count}" for text, count in excluded.items())
        super().__init__(f"none of the {nodes} nodes fits ({told})" if told else "there are no nodes")


def _open(node: Node, request: Request) -> list[int]:
    """Places of the GPUs that are of the right kind and have enough free."""
    return [
        number
        for number in node.usable
        if node.free[number] >= request.milli and (not _choosy(request) or request.allows(node.gpus[number]))
    ]


def _choosy(request: Request) -> bool:
    return bool(request.models or request.gpu_memory_mib)


def obstacles(node: Node, request: Request) -> list[str]:
    """The conditions that the node does not meet, in words that are the same for every node."""
    if node.excluded:
        return [node.excluded]
    found = []
    for what, free, wanted in (("CPU", node.cpu, request.cpu), ("memory", node.memory_mib, request.memory_mib)):
        if wanted and free is None:
            found.append(f"free {what} not known")
        elif wanted and free is not None and free < wanted:
            found.append(f"not enough free {what}")
    if not request.gpus:
        return found
    allowed = [gpu for gpu in node.gpus if request.allows(gpu)]
    free_gpus = _open(node, request)
    if not node.gpus:
        found.append("no GPU")
    elif len(allowed) < request.gpus:
        found.append("too few GPUs of that kind" if _choosy(request) else "too few GPUs")
    elif sum(not gpu.excluded for gpu in allowed) < request.gpus:
        found += sorted({f"GPUs excluded ({gpu.excluded})" for gpu in allowed if gpu.excluded})
    elif len(free_gpus) < request.gpus:
        found.append("too few GPUs free" if request.milli == GPU else "no GPU with enough free")
    elif request.weakest_pair and request.gpus > 1 and _linked(node, request, free_gpus) is None:
        found.append("free GPUs not linked well enough" if node.scores else "links between GPUs not known")
    return found


def _linked(node: Node, request: Request, gpus: Sequence[int]) -> tuple[int, ...] | None:
    if node.scores is None:
        return None if request.weakest_pair and request.gpus > 1 else tuple(gpus[: request.gpus])
    return placement_links.best_set(node.scores, tuple(gpus), request.gpus, request.weakest_pair)


_NONE: tuple[int, ...] = ()


def _view(node: Node, request: Request) -> View | None:
    """What a policy sees, or None if the task does not fit."""
    if node.excluded:
        return None
    cpu, memory = node.cpu, node.memory_mib
    if (request.cpu and (cpu is None or cpu < request.cpu)) or (
        request.memory_mib and (memory is None or memory < request.memory_mib)
    ):
        return None
    gpus, rest = node.usable, _NONE
    if _choosy(request):
        gpus = tuple(number for number in node.usable if request.allows(node.gpus[number]))
        rest = tuple(sorted(node.free[number] for number in node.usable if number not in gpus))
    levels = tuple(sorted([node.free[number] for number in gpus]))
    if request.gpus:
        if len(levels) < request.gpus or levels[-request.gpus] < request.milli:
            return None
        if request.weakest_pair and request.gpus > 1 and _linked(node, request, _open(node, request)) is None:
            return None
    return View(cpu or 0, levels, rest, frozenset(node.running))


def _places(node: Node, request: Request, policy: Policy, view: View) -> tuple[int, ...]:
    """The GPUs in the node."""
    if not request.gpus:
        return ()
    gpus = _open(node, request)
    if request.milli < GPU:
        level = policy.level(view, request.kind)
        return (next(number for number in gpus if node.free[number] == level),)
    found = _linked(node, request, gpus)
    if found is None:
        raise RuntimeError(f"{node.name}: the request fits by the view of the node, and not by its links")
    return found


class _Queue:
    """The nodes that a request fits, the best first. Entries of nodes that have changed since are left in it."""

    def __init__(self) -> None:
        self.heap: list[tuple[Any, int, int]] = []
        self.seen = -1
        self.costs: dict[View, Any] = {}


class Cluster:
    """Nodes, and a policy that chooses among them. Of equally good nodes the first in the given order is chosen."""

    def __init__(
        self,
        nodes: Sequence[Node],
        policy: str = DEFAULT,
        counts: Mapping[Kind, float] | None = None,
        seed: int | None = 0,
    ) -> None:
        """`counts` says how often each kind of task occurs; without it, usual_kinds() is taken for the nodes.

        `seed` is for the policy that draws. Raises ValueError for an unknown policy.
        """
        if policy not in POLICIES:
            raise ValueError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
        self.nodes = list(nodes)
        self.policy = POLICIES[policy](
            counts or usual_kinds(self.nodes),
            max((node.cpu_total for node in self.nodes), default=0),
            max((len(node.gpus) for node in self.nodes), default=0),
        )
        self._random = random.Random(seed)
        self._place = {id(node): place for place, node in enumerate(self.nodes)}
        self._version = [0] * len(self.nodes)
        self._changed: list[int] = []
        self._queues: dict[Request, _Queue] = {}

    def start(self, node: Node, request: Request, chosen: Iterable[int]) -> None:
        """A task starts there, on those places in the node's GPUs. Raises ValueError if it does not fit."""
        node.take(request, chosen)
        self._note(node)

    def end(self, node: Node, request: Request, chosen: Iterable[int]) -> None:
        """A task ends. Raises ValueError if it was not there."""
        node.give(request, chosen)
        self._note(node)

    def close(self, node: Node, why: str) -> None:
        """No further task is to go to the node."""
        node.excluded = why
        self._note(node)

    def _note(self, node: Node) -> None:
        place = self._place[id(node)]
        self._version[place] += 1
        self._changed.append(place)

    def find(self, request: Request) -> tuple[Node, tuple[int, ...]] | None:
        """The node and the places in its GPUs, or None if none fits. The task is not started."""
        place = self._drawn(request) if self.policy.draws else self._best(request)
        if place is None:
            return None
        node = self.nodes[place]
        view = _view(node, request)
        if view is None:
            raise RuntimeError(f"{node.name}: chosen for a request that it does not fit")
        return node, _places(node, request, self.policy, view)

    def choose(self, request: Request) -> Choice:
        """As find(), with the reasons. Raises ValueError for a request wrong in itself, Refused if no node fits."""
        problems = request.problems()
        if problems:
            raise ValueError("; ".join(problems))
        found = self.find(request)
        if found is None:
            excluded = Counter(text for node in self.nodes for text in obstacles(node, request))
            raise Refused(len(self.nodes), dict(excluded.most_common()))
        return Choice(*found, tuple(self._reasons(request, *found)))

    def _reasons(self, request: Request, node: Node, chosen: tuple[int, ...]) -> Iterable[str]:
        views = [(other, view) for other in self.nodes for view in [_view(other, request)] if view is not None]
        (view,) = [view for other, view in views if other is node]
        excluded = Counter(text for other in self.nodes for text in obstacles(other, request))
        yield f"{len(views)} of {len(self.nodes)} nodes fit" + "".join(
            f"; {text}: {count}" for text, count in excluded.most_common()
        )
        yield f"{self.policy.name}: on {node.name}, {self.policy.words(view, request.kind)}"
        others = [(other, seen) for other, seen in views if other is not node]
        if others and not self.policy.draws:
            second, seen = min(others, key=lambda pair: self.policy.cost(pair[1], request.kind))
            equal = self.policy.cost(seen, request.kind) == self.policy.cost(view, request.kind)
            yield (
                f"{second.name} is as good and comes later in the list"
                if equal
                else f"next best is {second.name}, where {self.policy.words(seen, request.kind)}"
            )
        if request.gpus and request.milli < GPU:
            yield f"GPU {node.gpus[chosen[0]].index} has {node.free[chosen[0]]}/1000 free"
        elif len(chosen) > 1 and node.scores is not None:
            everything = placement_links.best_set(node.scores, node.usable, request.gpus)
            yield (
                f"GPUs {', '.join(str(node.gpus[number].index) for number in chosen)} are the best linked of"
                f" {len(_open(node, request))} that are free: {placement_links.total(node.scores, chosen)} points,"
                f" {placement_links.total(node.scores, everything or ())} if all were free"
            )

    def _best(self, request: Request) -> int | None:
        queue = self._queues.get(request)
        if queue is None:
            queue = self._queues[request] = _Queue()
        self._update(queue, request)
        heap, version = queue.heap, self._version
        while heap and heap[0][2] != version[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def _update(self, queue: _Queue, request: Request) -> None:
        """Score the nodes anew that have changed since the queue was looked at."""
        dirty = range(len(self.nodes)) if queue.seen < 0 else dict.fromkeys(self._changed[queue.seen :])
        queue.seen = len(self._changed)
        heap, costs, version, kind = queue.heap, queue.costs, self._version, request.kind
        for place in dirty:
            view = _view(self.nodes[place], request)
            if view is None:
                continue
            cost = costs.get(view)
            if cost is None:
                cost = costs[view] = self.policy.cost(view, kind)
            heapq.heappush(heap, (cost, place, version[place]))
        # What lies too deep to come to the top by itself is thrown out from time to time.
        if len(heap) > 2 * len(self.nodes):
            heap[:] = [entry for entry in heap if entry[2] == version[entry[1]]]
            heapq.heapify(heap)
            costs.clear()

    def _drawn(self, request: Request) -> int | None:
        for _try in range(30):
            place = self._random.randrange(len(self.nodes)) if self.nodes else 0
            if self.nodes and _view(self.nodes[place], request) is not None:
                return place
        fitting = [place for place, node in enumerate(self.nodes) if _view(node, request) is not None]
        return self._random.choice(fitting) if fitting else None


def usual_kinds(nodes: Sequence[Node]) -> dict[Kind, float]:
    """Kinds of tasks to assume where nothing is known of them: 1, 2, 4 … GPUs, each half as frequent as the one before.

    Each takes as much CPU as is there for its GPUs in the node with the median of CPU per GPU.
    """
    rates = sorted(node.cpu_total // len(node.gpus) for node in nodes if node.gpus)
    largest = max((len(node.gpus) for node in nodes), default=0)
    found, gpus = {}, 1
    while gpus <= largest:
        found[Kind(rates[len(rates) // 2] * gpus, gpus, GPU)] = 1 / gpus
        gpus *= 2
    return found or {Kind(0, 0, 0): 1.0}
