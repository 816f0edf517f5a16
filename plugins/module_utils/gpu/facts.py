# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host's GPUs, put together from the PCI bus, the driver's files and NVML.

NVML is asked in a child process with a deadline: a sick GPU can hang a call for ever, and a broken library can crash
its process; neither may take the caller along.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Callable, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import (
    compatibility,
    device_nodes,
    driver,
    nvml,
    nvml_messages,
    pci,
    readings,
    topology,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.facts_schema import SCHEMA
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.session import Session

NO_GPU = "no NVIDIA GPU on the PCI bus"
SUBSETS = ("pci", "driver", "devices", "topology", "health", "details")
# What is kept of every host of a fleet stays small. Details are for who looks at one host.
COMPACT = ("pci", "driver", "devices", "topology", "health")
# What there is, whether or not it is well.
HARDWARE = ("pci", "driver", "devices", "topology")
# These come with the GPUs themselves.
_OF_DEVICES = {"devices", "topology", "details"}

# Asked of a GPU for the subset `devices`, in addition to what it is.
_DEVICE: dict[str, readings.Question] = {
    "ecc_mode": readings.ecc_mode,
    "mig": readings.mig,
    "pcie": readings.pcie,
    "nvlinks": readings.nvlink_states,
}
_DETAILS: dict[str, readings.Question] = {
    "serial": readings.serial,
    "ecc_volatile": readings.ecc_volatile,
    "ecc_aggregate": readings.ecc_aggregate,
    "processes": readings.running_pids,
}
_MIG_INSTANCE = ("uuid", "profile", "memory_mib", "gpu_instance", "compute_instance", "placement")
# Name of a reading -> name of the fact, where they differ.
_FACTS = {
    "ecc_mode": "ecc",
    "ecc_volatile": "ecc.volatile",
    "ecc_aggregate": "ecc.aggregate",
    "processes": "process_count",
}


class Verdicts(Protocol):
    """Who judges: the agent, or a look, which is told why the agent's word cannot be had where there is an agent. The
    rules are many, so they are brought along by who wants them, and do not travel to hosts with modules that ask for
    none."""

    def of_agent(self, root: str, details: bool) -> tuple[dict[str, Any] | None, str | None]: ...

    def of_look(
        self, answer: dict[str, Any] | None, root: str, details: bool, agent_error: str | None
    ) -> dict[str, Any]: ...


def _is_unreachable(row: dict[str, Any]) -> bool:
    error = row.get("error")
    return error is not None and (error["code"] in nvml_messages.FATAL or row.get("uuid") is None)


def _instance_facts(row: dict[str, Any], minor: int | None, root: str) -> dict[str, Any]:
    """An instance of MIG; what it holds at the moment is no fact."""
    numbers = row["gpu_instance"], row["compute_instance"]
    nodes = [] if minor is None else device_nodes.instance_nodes(minor, *numbers, root)
    return {**{key: row[key] for key in _MIG_INSTANCE}, "device_nodes": nodes}


def device_facts(row: dict[str, Any], details: bool = True, root: str = "/") -> dict[str, Any]:
    """The facts of a GPU from its row in a snapshot.

    What the GPU or its driver does not have is null and named in `not_applicable`; what the row was not asked for is
    absent.
    """
    asked = (*_DEVICE, *_DETAILS) if details else _DEVICE
    told = {key: row["readings"][key] for key in asked if key in row["readings"]}

    def value(key: str) -> Any:
        return told.get(key, {}).get("value")

    facts = {key: row[key] for key in ("index", *readings.IDENTITY, "slug", "numa_node", "cpus")}
    if _is_unreachable(row):
        known = {key: value for key, value in facts.items() if value is not None}
        return {**known, "error": row["error"]}
    ecc, links, mig = value("ecc_mode"), value("nvlinks"), value("mig")
    if mig and not mig["enabled"]:
        mig = {key: mode for key, mode in mig.items() if key != "instances"}
    elif mig:
        mig = {**mig, "instances": [_instance_facts(one, facts["minor"], root) for one in mig["instances"]]}
    facts.update(ecc=ecc, mig=mig, pcie=value("pcie"))
    facts["nvlinks"] = None if links is None else sum(link["active"] for link in links)
    if details:
        if ecc:
            facts["ecc"] = {**ecc, "volatile": value("ecc_volatile"), "aggregate": value("ecc_aggregate")}
        if links:
            facts["nvlink_peers"] = _peers(links)
            facts["nvlinks_down"] = [link["link"] for link in links if not link["active"]]
        processes = value("processes")
        facts["process_count"] = None if processes is None else len(processes)
        if "serial" in told:
            facts["serial"] = value("serial")
    facts["not_applicable"] = _not_applicable(row["not_applicable"], told)
    failed = next((reading for reading in told.values() if reading.get("state") in ("unknown", "lost")), None)
    error = row["error"] or (nvml.failure_of(failed) if failed else None)
    return {**facts, "error": error} if error else facts


def _peers(links: list[dict[str, Any]]) -> dict[str, str]:
    """PCI address of the other side -> numbers of the links that are up, as in 0-3,8."""
    found: dict[str, list[int]] = {}
    for link in links:
        if link["active"]:
            found.setdefault(link["remote"] or "unknown", []).append(link["link"])
    return {remote: _ranges(numbers) for remote, numbers in found.items()}


def _ranges(numbers: list[int]) -> str:
    """Growing numbers as a list of ranges, the way the kernel writes one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _not_applicable(of_identity: list[str], told: dict[str, dict[str, Any]]) -> list[str]:
    absent = list(of_identity)
    for key, reading in told.items():
        name = _FACTS.get(key, key)
        # Who has no error correction has no counters of it.
        if reading.get("state") == "not_applicable" and name.partition(".")[0] not in absent:
            absent.append(name)
        elif key == "pcie" and "value" in reading:
            absent += [f"pcie.{part}" for part, number in reading["value"].items() if number is None]
    return absent


def _ask(
    source: str | None, root: str, bus: list[dict[str, Any]] | None, subset: Iterable[str], trace: nvml.Trace
) -> dict[str, Any]:
    result: dict[str, Any] = {"error": None, "cuda": None, "devices": [], "topology": None}
    try:
        lib = nvml.load_binding(source)
    except nvml.NoBinding:
        result["error"] = nvml.no_binding()
        return result
    questions = {**_DEVICE, **(_DETAILS if "details" in subset else {})}
    if "health" in subset:
        from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.snapshot import Reader

        reader = Reader(lib, root, trace)
        session, look = reader.session, reader.read(more=questions)
        result["error"], rows = look["driver"]["nvml_error"], look["devices"]
        result["look"] = look
    else:
        session = Session(lib, root, trace)
        result["error"] = session.open()
        answer = {"error": result["error"], "devices": []} if result["error"] else session.devices(questions, bus)
        result["error"], rows = answer["error"], answer["devices"]
    result["cuda"] = session.cuda
    result["devices"] = [device_facts(row, "details" in subset, root) for row in rows]
    if "topology" in subset and len(rows) > 1:
        gpus = [{"pci_address": row["pci_address"], "nvlinks": row["readings"]["nvlinks"].get("value")} for row in rows]
        handles = [None if row["error"] else session.handle(row["index"]) for row in rows]
        result["topology"] = topology.build(gpus, topology.ask(lib, handles))
    return result


def probe(
    source: str | None,
    deadline_s: float = 20.0,
    root: str = "/",
    bus: list[dict[str, Any]] | None = None,
    subset: Iterable[str] = HARDWARE,
) -> dict[str, Any]:
    """{error, cuda, devices, topology} as NVML tells them, or why they cannot be had. Never raises, never hangs.

    With the subset `health` also `look`, the snapshot to judge.
    """
    empty: dict[str, Any] = {"cuda": None, "devices": [], "topology": None}
    trace = nvml.Trace()
    return {**empty, **nvml.in_child(lambda: _ask(source, root, bus, subset, trace), deadline_s, trace)}


def gather(
    subset: Iterable[str] = HARDWARE,
    binding_source: str | None = None,
    deadline_s: float = 20.0,
    root: str = "/",
    kernel: str | None = None,
    probe: Callable[..., dict[str, Any]] = probe,
    verdicts: Verdicts | None = None,
) -> dict[str, Any]:
    """The value of `ansible_facts.gpu`. Only the parts that were asked for are in it.

    Who asks for the subset `health` brings `verdicts` along: gpu_verdicts.
    """
    wanted = set(subset)
    if wanted & _OF_DEVICES:
        wanted.add("devices")
    if "health" in wanted and verdicts is None:
        raise ValueError("health is asked for without the function that judges it")
    facts: dict[str, Any] = {"schema": SCHEMA, "present": None, "reason": None}
    bus: list[dict[str, Any]] | None
    try:
        bus = pci.scan(root)
        facts["present"] = bool(pci.gpus(bus))
        if not facts["present"]:
            facts["reason"] = no_gpu(bus)
    except pci.BusUnreadable as unreadable:
        bus = None
        facts["reason"] = str(unreadable)
    if "pci" in wanted:
        facts["pci"] = bus or []
    if not wanted & {"driver", "devices", "health"}:
        return facts
    agent_error: str | None = None
    if verdicts and "health" in wanted:
        watched, agent_error = verdicts.of_agent(root, "details" in wanted)
        if watched:
            facts["health"] = watched
        elif facts["present"] is False:
            # Where an agent was to watch, there may have been a GPU until just now.
            facts["health"] = verdicts.of_look(None, root, "details" in wanted, agent_error) if agent_error else None

    answer: dict[str, Any] = {"error": None, "cuda": None, "devices": [], "topology": None}
    asked = wanted - set(facts)
    # Without GPUs there is nothing to ask. Where the bus cannot be read, NVML may still know.
    if asked & {"devices", "health"} and facts["present"] is not False:
        answer = probe(binding_source, deadline_s, root, bus, asked)
        facts["reason"] = facts["reason"] or why_not(bus, answer["error"], answer["devices"])
    if "driver" in wanted:
        state = driver.read(root, kernel or os.uname().release)
        state["cuda"] = answer["cuda"] or compatibility.newest_cuda(state["branch"])
        facts["driver"] = {**state, "nvml_error": answer["error"]}
    if "devices" in wanted:
        facts["devices"] = answer["devices"]
    if "topology" in wanted:
        facts["topology"] = answer["topology"]
    if verdicts and "health" in asked:
        facts["health"] = verdicts.of_look(answer, root, "details" in wanted, agent_error)
    return facts


def no_gpu(bus: list[dict[str, Any]]) -> str:
    """Why the host has no GPU to use: there is none, or those that are there are another's."""
    others = pci.others(bus)
    return f"no NVIDIA GPU for this host: {'; '.join(map(pci.why_not_ours, others))}" if others else NO_GPU


def why_not(
    bus: list[dict[str, Any]] | None, error: dict[str, Any] | None, devices: list[dict[str, Any]]
) -> str | None:
    """Why no GPU, or fewer than are on the bus, can be used. `bus` is None where it cannot be read."""
    if bus is not None and not pci.gpus(bus):
        return no_gpu(bus)
    if error:
        return f"{error['text']}: {error['remedy']}"
    return _missing(bus or [], devices)


def _missing(bus: list[dict[str, Any]], devices: list[dict[str, Any]]) -> str | None:
    failed = {row.get("pci_address"): row["error"] for row in devices if _is_unreachable(row)}
    answering = {row.get("pci_address") for row in devices} - set(failed)
    missing = [row["address"] for row in pci.gpus(bus) if row["address"] not in answering]
    if not missing:
        return None
    error = next((failed[address] for address in (*missing, None) if address in failed), None)
    why = f": {error['text']}: {error['remedy']}" if error else ""
    return f"NVML cannot reach {', '.join(missing)}{why}"
