# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes for placement: from facts (ansible_facts.gpu) and a Mesos master's /state, or from a plain description.

All of it comes from files, so what does not have the documented shape is a BrokenNodes that names the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import OK, UNKNOWN, VERDICTS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import links as placement_links
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import GPU, Kind
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.place import Gpu, Node, Request
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, rows, text

RUNNING = ("TASK_STAGING", "TASK_STARTING", "TASK_RUNNING")


class BrokenNodes(ValueError):
    """What should describe nodes does not; the message names the node and what is wrong."""


def thousandths(value: Any, what: str) -> int:
    """A number such as Mesos' 1.5 CPUs in thousandths. Raises BrokenNodes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise BrokenNodes(f"{what} is {value!r}, which is not a number of 0 or more")
    return round(value * GPU)


def _mebibytes(value: Any, what: str) -> int:
    return thousandths(value, what) // GPU


def _verdict_excludes(verdict: Any, allow_unknown: bool) -> str:
    """Why no task goes to a GPU with that verdict; empty if one may."""
    if verdict == OK or (verdict == UNKNOWN and allow_unknown):
        return ""
    return "health not known" if verdict == UNKNOWN else f"health {verdict}"


def _scores(rows: Any, gpus: int, name: str) -> placement_links.Scores | None:
    if rows is None:
        return None
    if (
        not isinstance(rows, list)
        or len(rows) != gpus
        or not all(isinstance(row, list) and len(row) == gpus for row in rows)
        or not all(value is None or isinstance(value, int) for row in rows for value in row)
    ):
        raise BrokenNodes(f"{name}: the scores are not a table of {gpus} by {gpus} whole numbers or nulls")
    return placement_links.matrix(rows)


def from_facts(name: str, facts: Any, allow_unknown: bool = False) -> Node:
    """A node by the facts of its GPUs. Of its CPU and memory they say nothing. Raises BrokenNodes."""
    try:
        facts = fleet.checked(facts)
        verdicts = fleet.verdicts(facts)
    except fleet.BrokenFacts as error:
        raise BrokenNodes(f"{name}: the facts cannot be used: {error}") from error
    gpus = []
    for number, (device, verdict) in enumerate(zip(facts.get("devices") or [], verdicts, strict=True)):
        mig = (device.get("mig") or {}).get("enabled")
        memory = device.get("memory_mib")
        index = device.get("index")
        gpus.append(
            Gpu(
                index if isinstance(index, int) else number,
                str(device.get("uuid") or ""),
                str(device.get("slug") or device.get("name") or ""),
                memory if isinstance(memory, int) else None,
                "in MIG mode" if mig else _verdict_excludes(verdict, allow_unknown),
            )
        )
    topology = facts.get("topology")
    rows = topology.get("scores") if isinstance(topology, dict) else None
    return Node(name, gpus, None, None, _scores(rows, len(gpus), name))


def use_state(nodes: Iterable[Node], state: Any) -> dict[Kind, float]:
    """Tell nodes what a Mesos master's /state says of their agents: what is free, and what is in use.

    Mesos gives out the lowest numbers first and does not say which, so that is assumed. Returns how often each kind of
    task runs. Raises BrokenNodes.
    """
    agents = state.get("slaves") if isinstance(state, dict) else None
    if not isinstance(agents, list) or not all(isinstance(agent, dict) for agent in agents):
        raise BrokenNodes("the Mesos state has no list of agents (slaves); give what a leading master says at /state")
    by_name = {agent.get("hostname"): agent for agent in agents}
    for node in nodes:
        agent = by_name.get(node.name)
        if agent is None:
            node.excluded = "no agent in the Mesos state"
            continue
        if not agent.get("active") or agent.get("deactivated") or agent.get("drain_info"):
            node.excluded = "agent not active"
            continue
        everything, used = agent.get("resources"), agent.get("used_resources")
        if not isinstance(everything, dict) or not isinstance(used, dict):
            raise BrokenNodes(f"{node.name}: the Mesos state has no resources and used_resources of its agent")

        def amount(of: dict[str, Any], key: str, name: str = node.name) -> int:
            return thousandths(of.get(key, 0), f"{name}: {key} in the Mesos state")

        node.cpu_total = amount(everything, "cpus")
        node.cpu = max(node.cpu_total - amount(used, "cpus"), 0)
        node.memory_mib = max(amount(everything, "mem") - amount(used, "mem"), 0) // GPU
        # The agent may offer fewer GPUs than are healthy; then no more than it offers can be had.
        hidden = max(len(node.usable) - amount(everything, "gpus") // GPU, 0)
        busy = min(amount(used, "gpus") // GPU + hidden, len(node.usable))
        if busy:
            node.take(Request(busy), node.usable[:busy])
    return _kinds_of_state(state)


def use_slurm(nodes: Iterable[Node], status: Any) -> dict[Kind, float]:
    """Tell nodes what the document of `gpuops status` says of Slurm: what is free, and which GPUs are in use or held.

    Where a job's GPUs are not known, they are assumed to be the first that are free. Returns how often each kind of job
    runs. Raises BrokenNodes.
    """
    return _use_status(nodes, mapping(status), "slurm", "Slurm", {})


def use_kubernetes(nodes: Iterable[Node], status: Any) -> dict[Kind, float]:
    """The same of Kubernetes and its pods."""
    # A GPU that is withheld is none that a pod uses, while holders of Slurm are jobs.
    held = Counter(text(row.get("host")) for row in rows(mapping(mapping(status).get("kubernetes")).get("held")))
    return _use_status(nodes, mapping(status), "kubernetes", "Kubernetes", held)


def _use_status(
    nodes: Iterable[Node], status: Mapping[str, Any], key: str, scheduler: str, more: Mapping[str, int]
) -> dict[Kind, float]:
    """:param more: how many GPUs of a node cannot be had besides those that jobs have."""
    part = mapping(status.get(key))
    by_name = {text(row.get("name")): row for row in rows(part.get("nodes"))}
    if not by_name:
        raise BrokenNodes(f"it has no nodes of {scheduler}; give what `gpuops status --json` prints")
    used: dict[str, set[str]] = {}
    for row in rows(part.get("held")):
        used.setdefault(text(row.get("host")), set()).add(text(row.get("uuid")))
    for row in rows(status.get("leases")):
        used.setdefault(text(row.get("host")), set()).update(text(gpu.get("uuid")) for gpu in rows(row.get("gpus")))
    for node in nodes:
        told = by_name.get(node.name)
        if told is None:
            node.excluded = f"no node in {scheduler}"
            continue
        is_open = told.get("in_service") is True and told.get("drained") is False
        # An older gpuops does not tell of reservations.
        if not is_open or told.get("takes_jobs") is False:
            node.excluded = f"{scheduler} gives it no jobs"
            continue

        def amount(key: str, told: Mapping[str, Any] = told, name: str = node.name) -> int:
            return thousandths(told.get(key), f"{name}: {key} of its node in {scheduler}")

        node.cpu_total, node.cpu = amount("cpus"), amount("free_cpus")
        node.memory_mib = amount("free_memory_mib") // GPU
        known = used.get(node.name, set()) - {""}
        busy = [place for place in node.usable if node.gpus[place].uuid in known]
        rest = [place for place in node.usable if place not in busy]
        # The scheduler may have fewer GPUs than are healthy; then no more than it has can be had.
        hidden = max(len(node.usable) - amount("gpus") // GPU, 0)
        taken = amount("gpus_used") // GPU + more.get(node.name, 0)
        busy += rest[: max(taken - len(known), 0) + hidden]
        if busy:
            node.take(Request(len(busy)), busy)
    found: Counter[Kind] = Counter()
    for job in rows(part.get("jobs")):
        if job.get("waits") is False:
            gpus = thousandths(job.get("gpus"), "gpus of a job") // GPU
            found[Kind(thousandths(job.get("cpus"), "cpus of a job"), gpus, GPU if gpus else 0)] += 1
    return dict(found)


def _kinds_of_state(state: Mapping[str, Any]) -> dict[Kind, float]:
    found: Counter[Kind] = Counter()
    for framework in state.get("frameworks") or []:
        for task in framework.get("tasks") or [] if isinstance(framework, dict) else []:
            resources = task.get("resources") if isinstance(task, dict) else None
            if isinstance(resources, dict) and task.get("state") in RUNNING:
                gpus = thousandths(resources.get("gpus", 0), "gpus of a task in the Mesos state") // GPU
                cpu = thousandths(resources.get("cpus", 0), "cpus of a task in the Mesos state")
                found[Kind(cpu, gpus, GPU if gpus else 0)] += 1
    return dict(found)


def from_description(rows: Any, allow_unknown: bool = False) -> tuple[list[Node], dict[Kind, float]]:
    """Nodes from a list of {name, cpus, memory_mib, GPUs, scores, tasks}, and how often each kind of task runs.

    A GPU is {index, uuid, model, memory_mib, verdict}, all but the index optional; a task {cpus, memory_mib, GPUs,
    milli}, with the indices of its GPUs. `scores` and `tasks` are optional. Raises BrokenNodes.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.get("name") for row in rows):
        raise BrokenNodes("nodes are not a list of mappings with a name each")
    names = Counter(row["name"] for row in rows)
    for name, count in names.items():
        if count > 1:
            raise BrokenNodes(f"{name} is there {count} times")
    counts: Counter[Kind] = Counter()
    nodes = []
    for row in rows:
        name = str(row["name"])
        gpus = [_described_gpu(name, gpu, allow_unknown) for gpu in _mappings(row, "gpus", name)]
        if len({gpu.index for gpu in gpus}) != len(gpus):
            raise BrokenNodes(f"{name}: two GPUs have the same index")
        node = Node(
            name,
            gpus,
            thousandths(row.get("cpus", 0), f"{name}: cpus"),
            _mebibytes(row.get("memory_mib", 0), f"{name}: memory_mib"),
            _scores(row.get("scores"), len(gpus), name),
        )
        for task in _mappings(row, "tasks", name):
            counts[_start(node, task)] += 1
        nodes.append(node)
    return nodes, dict(counts)


def _mappings(row: dict[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    found = row.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BrokenNodes(f"{name}: {key} is not a list of mappings")
    return found


def _described_gpu(name: str, gpu: dict[str, Any], allow_unknown: bool) -> Gpu:
    index, memory = gpu.get("index"), gpu.get("memory_mib")
    if not isinstance(index, int) or isinstance(index, bool):
        raise BrokenNodes(f"{name}: a GPU has the index {index!r}, which is not a whole number")
    verdict = gpu.get("verdict", "ok")
    if verdict not in VERDICTS:
        raise BrokenNodes(f"{name}: GPU {index} has the verdict {verdict!r}; there are {', '.join(VERDICTS)}")
    return Gpu(
        index,
        str(gpu.get("uuid") or ""),
        str(gpu.get("model") or ""),
        None if memory is None else _mebibytes(memory, f"{name}: memory_mib of GPU {index}"),
        _verdict_excludes(verdict, allow_unknown),
    )


def _start(node: Node, task: dict[str, Any]) -> Kind:
    """A task that runs already. It may have a GPU that has become unhealthy since: then that is nobody else's."""
    places = {gpu.index: number for number, gpu in enumerate(node.gpus)}
    had, milli = task.get("gpus") or [], task.get("milli", GPU)
    if not isinstance(had, list) or any(index not in places for index in had):
        raise BrokenNodes(f"{node.name}: a task has the GPUs {had!r}, which are not all there")
    request = Request(
        len(had),
        milli,
        thousandths(task.get("cpus", 0), f"{node.name}: cpus of a task"),
        _mebibytes(task.get("memory_mib", 0), f"{node.name}: memory_mib of a task"),
    )
    if not isinstance(milli, int) or request.problems():
        raise BrokenNodes(f"{node.name}: a task is wrong: {'; '.join(request.problems()) or f'milli is {milli!r}'}")
    held = tuple(places[index] for index in had if places[index] in node.usable)
    try:
        node.take(request._replace(gpus=len(held)), held)
    except ValueError as error:
        raise BrokenNodes(f"{error}: the tasks there need more than there is") from error
    return request.kind


def exclude(nodes: Iterable[Node], names: Iterable[str]) -> None:
    """Take nodes (NAME) and GPUs (NAME:INDEX, or a UUID) out of the choice. Raises BrokenNodes for an unknown one."""
    by_name = {node.name: node for node in nodes}
    for name in names:
        if name in by_name:
            by_name[name].excluded = "excluded by name"
            continue
        found = False
        for node in by_name.values():
            for number, gpu in enumerate(node.gpus):
                if name in (gpu.uuid, f"{node.name}:{gpu.index}"):
                    node.leave_out(number, "excluded by name")
                    found = True
        if not found:
            raise BrokenNodes(f"there is no node, NODE:INDEX or UUID {name!r} to exclude")
