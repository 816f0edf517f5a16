# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the agent's findings go. A publisher has `publish(result)` and `close()`, and may raise OSError.

`result` is what Agent.result() returns: {schema, time (Unix seconds), uptime (seconds since boot), boot_id, interval_s,
agent: {probe_error, probe_seconds, probe_time, stuck, problems, log_error, state_saved, xids}, snapshot (see
gpu/snapshot.py), health (see health/evaluate.py)}.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import dcgm
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts_schema, pci, snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import exposition as host_exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Sample

SIZE_AT_MOST = 16 << 20
NVLINK_ERRORS = {"crc_errors": "crc", "replay_errors": "replay", "recovery_errors": "recovery"}

GPU = ("uuid", "gpu")
METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "gpu_info": (
        "gauge",
        ("uuid", "gpu", "minor", "pci_address", "model", "architecture", "driver_version", "cuda_version"),
        "Identity of a GPU; the value is always 1.",
    ),
    "gpu_devices": ("gauge", ("source",), "GPUs by who counts them."),
    "gpu_node_health_status": ("gauge", (), f"Verdict on the node: {verdict.IN_WORDS}."),
    "gpu_health_status": (
        "gauge",
        (*GPU, "pci_address"),
        f"Verdict on a GPU: {verdict.IN_WORDS}.",
    ),
    "gpu_health_reason": (
        "gauge",
        (*GPU, "pci_address", "code", "action"),
        "A reason for a verdict that is not ok; the value is the reason's own verdict.",
    ),
    "gpu_xid_errors_total": ("counter", ("uuid", "pci_address", "xid"), "Xids of a GPU that the agent knows of."),
    "gpu_xid_last_timestamp_seconds": ("gauge", ("uuid", "pci_address", "xid"), "When a GPU had an Xid last."),
    "gpu_temperature_celsius": ("gauge", (*GPU, "sensor"), "Temperature."),
    "gpu_power_watts": ("gauge", GPU, "Power draw."),
    "gpu_power_limit_watts": ("gauge", GPU, "Power limit that is enforced."),
    "gpu_energy_joules_total": ("counter", GPU, "Energy since the driver was loaded."),
    "gpu_clock_hertz": ("gauge", (*GPU, "domain"), "Clock."),
    "gpu_utilization_ratio": ("gauge", (*GPU, "unit"), "Share of time in which the unit was busy."),
    "gpu_memory_bytes": ("gauge", (*GPU, "state"), "Memory by what it is used for."),
    "gpu_ecc_errors_total": ("counter", (*GPU, "type", "scope"), "Memory errors that error correction has counted."),
    "gpu_ecc_sram_threshold_exceeded": ("gauge", GPU, "Whether the SRAM has had too many errors."),
    "gpu_remapped_rows": ("gauge", (*GPU, "cause"), "Rows of memory that were remapped."),
    "gpu_row_remap_pending": ("gauge", GPU, "Whether a remapping waits for a reset."),
    "gpu_row_remap_failed": ("gauge", GPU, "Whether a row could not be remapped."),
    "gpu_retired_pages": ("gauge", (*GPU, "cause"), "Pages of memory that were retired."),
    "gpu_retired_pages_pending": ("gauge", GPU, "Whether a retirement waits for a reboot."),
    "gpu_pcie_link_generation": ("gauge", (*GPU, "which"), "Generation of the PCIe link."),
    "gpu_pcie_link_width": ("gauge", (*GPU, "which"), "Lanes of the PCIe link."),
    "gpu_pcie_replay_total": ("counter", GPU, "PCIe packets that were sent again."),
    "gpu_nvlink_up": ("gauge", (*GPU, "link"), "Whether an NVLink is up."),
    "gpu_nvlink_errors_total": ("counter", (*GPU, "link", "type"), "Errors of an NVLink."),
    "gpu_persistence_mode": ("gauge", GPU, "Whether persistence mode is on."),
    "gpu_ecc_mode": ("gauge", GPU, "Whether error correction is on."),
    "gpu_mig_mode": ("gauge", GPU, "Whether MIG is on."),
    "gpu_mig_instance_info": (
        "gauge",
        (*GPU, "gpu_instance", "mig_uuid", "profile"),
        "A MIG device, which is what a program can have of a GPU in MIG mode; the value is always 1.",
    ),
    "gpu_mig_memory_bytes": (
        "gauge",
        (*GPU, "gpu_instance", "profile", "state"),
        "Memory of a GPU instance by what it is used for.",
    ),
    "gpu_inforom_valid": ("gauge", GPU, "Whether the InfoROM is intact; only after a slow look."),
    "gpu_compute_processes": ("gauge", GPU, "Processes that compute on a GPU."),
    "gpu_probe_success": ("gauge", (), "Whether the last look at the GPUs succeeded."),
    "gpu_probe_duration_seconds": ("gauge", (), "How long the last look took that succeeded."),
    "gpu_probe_last_success_timestamp_seconds": ("gauge", (), "When a look succeeded last."),
    "gpu_probe_hung": ("gauge", (), "Processes that hang in a call to the driver."),
}


def exposition(samples: Iterable[Sample]) -> str:
    """The text of samples of the agent's."""
    return host_exposition.exposition(samples, {**METRICS, **dcgm.METRICS})


def _device_samples(device: dict[str, Any]) -> Iterator[Sample]:
    """What one GPU's readings say. A reading that failed or does not apply has no series."""
    labels = {"uuid": device.get("uuid"), "gpu": device.get("index")}
    values = {key: row["value"] for key, row in device.get("readings", {}).items() if row.get("value") is not None}

    def one(name: str, key: str, **more: Any) -> Iterator[Sample]:
        if key in values:
            yield name, {**labels, **more}, float(values[key])

    def each(name: str, key: str, label: str, parts: dict[str, str], scale: float = 1.0) -> Iterator[Sample]:
        for part, text in parts.items():
            value = values.get(key, {}).get(part)
            if value is not None:
                yield name, {**labels, label: text}, float(value) * scale

    yield from one("gpu_temperature_celsius", "temperature_c", sensor="gpu")
    yield from one("gpu_temperature_celsius", "memory_temperature_c", sensor="memory")
    yield from one("gpu_power_watts", "power_w")
    yield from one("gpu_power_limit_watts", "power_limit_w")
    if "energy_mj" in values:
        yield "gpu_energy_joules_total", dict(labels), values["energy_mj"] / 1000
    yield from each("gpu_clock_hertz", "clocks_mhz", "domain", {"sm": "sm", "memory": "memory"}, 1e6)
    yield from each("gpu_utilization_ratio", "utilization_percent", "unit", {"gpu": "gpu", "memory": "memory"}, 0.01)
    engines = {"encoder": "encoder", "decoder": "decoder"}
    yield from each("gpu_utilization_ratio", "engine_utilization_percent", "unit", engines, 0.01)
    states = {"used": "used", "free": "free", "reserved": "reserved"}
    yield from each("gpu_memory_bytes", "memory_bytes", "state", states)
    for scope in ("volatile", "aggregate"):
        for kind in ("corrected", "uncorrected"):
            value = values.get(f"ecc_{scope}", {}).get(kind)
            if value is not None:
                yield "gpu_ecc_errors_total", {**labels, "type": kind, "scope": scope}, float(value)
    for name, key, part in (
        ("gpu_ecc_sram_threshold_exceeded", "ecc_sram", "threshold_exceeded"),
        ("gpu_row_remap_pending", "remapped_rows", "pending"),
        ("gpu_row_remap_failed", "remapped_rows", "failure"),
        ("gpu_retired_pages_pending", "retired_pages", "pending"),
        ("gpu_ecc_mode", "ecc_mode", "enabled"),
        ("gpu_mig_mode", "mig", "enabled"),
    ):
        value = values.get(key, {}).get(part)
        if value is not None:
            yield name, dict(labels), float(value)
    yield from each(
        "gpu_remapped_rows",
        "remapped_rows",
        "cause",
        {"correctable": "correctable", "uncorrectable": "uncorrectable"},
    )
    yield from each("gpu_retired_pages", "retired_pages", "cause", {"single_bit": "sbe", "double_bit": "dbe"})
    yield from each("gpu_pcie_link_generation", "pcie", "which", {"generation": "current", "generation_max": "max"})
    yield from each("gpu_pcie_link_width", "pcie", "which", {"width": "current", "width_max": "max"})
    yield from one("gpu_pcie_replay_total", "pcie_replays")
    for link in values.get("nvlinks", ()):
        yield "gpu_nvlink_up", {**labels, "link": link["link"]}, float(link["active"])
        for key, kind in NVLINK_ERRORS.items():
            if link.get(key) is not None:
                yield "gpu_nvlink_errors_total", {**labels, "link": link["link"], "type": kind}, float(link[key])
    for instance in values.get("mig", {}).get("instances", ()):
        names = {**labels, "gpu_instance": instance["gpu_instance"]}
        yield "gpu_mig_instance_info", {**names, "mig_uuid": instance["uuid"], "profile": instance["profile"]}, 1.0
    for instance in dcgm.gpu_instances(values):
        names = {"gpu_instance": instance["gpu_instance"], "profile": dcgm.gpu_instance_profile(instance)}
        for state, size in instance["memory_bytes"].items():
            yield "gpu_mig_memory_bytes", {**labels, **names, "state": state}, float(size)
    yield from one("gpu_persistence_mode", "persistence_mode")
    yield from one("gpu_inforom_valid", "inforom_valid")
    if "processes" in values:
        yield "gpu_compute_processes", dict(labels), float(len(values["processes"]))


def _reason_samples(part: dict[str, Any], labels: dict[str, Any]) -> Iterator[Sample]:
    for reason in part.get("reasons", ()):
        names = {**labels, "code": reason["code"], "action": reason["action"]}
        yield "gpu_health_reason", names, float(verdict.NUMBERS[reason["verdict"]])


def samples(result: dict[str, Any]) -> Iterator[Sample]:
    """Everything that a result says in numbers."""
    look, agent = result["snapshot"], result["agent"]
    health = result["health"] or {}
    driver = look.get("driver") or {}
    for device in look.get("devices", ()):
        keys = ("uuid", "index", "minor", "pci_address", "name", "architecture")
        names = {"index": "gpu", "name": "model"}
        yield (
            "gpu_info",
            {
                **{names.get(key, key): device.get(key) for key in keys},
                "driver_version": driver.get("loaded"),
                "cuda_version": driver.get("cuda"),
            },
            1.0,
        )
        yield from _device_samples(device)
    if look.get("pci") is not None:
        yield "gpu_devices", {"source": "pci"}, float(len(pci.gpus(look["pci"])))
    yield "gpu_devices", {"source": "nvml"}, float(sum(not row.get("error") for row in look.get("devices", ())))
    if health:
        yield "gpu_node_health_status", {}, float(verdict.NUMBERS[health["verdict"]])
        yield from _reason_samples(health, {})
        for row in health.get("devices", ()):
            labels = {"uuid": row.get("uuid"), "gpu": row.get("index"), "pci_address": row.get("pci_address")}
            yield "gpu_health_status", labels, float(verdict.NUMBERS[row["verdict"]])
            yield from _reason_samples(row, labels)
    for row in agent.get("xids", ()):
        labels = {"uuid": row.get("uuid"), "pci_address": row["pci_address"], "xid": row["xid"]}
        yield "gpu_xid_errors_total", labels, float(row["count"])
        yield "gpu_xid_last_timestamp_seconds", labels, float(row["last"])
    yield "gpu_probe_success", {}, float(agent["probe_error"] is None and not snapshot.refused(look))
    if agent["probe_seconds"] is not None:
        yield "gpu_probe_duration_seconds", {}, float(agent["probe_seconds"])
    if agent["probe_time"] is not None:
        yield "gpu_probe_last_success_timestamp_seconds", {}, float(agent["probe_time"])
    yield "gpu_probe_hung", {}, float(agent["stuck"])


def page(result: dict[str, Any], dcgm_names: str) -> str:
    """The text that Prometheus gets; `dcgm_names` is a key of dcgm.CHOICES."""
    return exposition(itertools.chain(samples(result), dcgm.samples(result, dcgm_names)))


def facts(result: dict[str, Any]) -> dict[str, Any]:
    """The value of `ansible_local.gpu`: what gpu_facts tells, from the last look, with the health of the GPUs."""
    look = result["snapshot"]
    bus, driver = look.get("pci"), look.get("driver")
    devices = [gpu_facts.device_facts(row, details=False) for row in look.get("devices", ())]
    return {
        "schema": facts_schema.SCHEMA,
        "present": None if bus is None else bool(pci.gpus(bus)),
        "reason": gpu_facts.why_not(bus, (driver or {}).get("nvml_error"), devices),
        "pci": bus or [],
        "driver": driver,
        "devices": devices,
        "health": health_facts.by_agent(result, result["health"], details=False),
    }


class ResultFile:
    """The result as JSON, for `gpu-agent status`, for facts and for whoever else reads it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def last(self) -> dict[str, Any]:
        """What was published here last, by this agent or the one before it. Raises OSError or Malformed."""
        try:
            return bounded_json.parse_object(host_files.read(self.path, SIZE_AT_MOST))
        except FileNotFoundError:
            return {}

    def publish(self, result: dict[str, Any]) -> None:
        told = {key: row for key, row in result.items() if key != "snapshot"}
        host_files.write(
            self.path, json.dumps({**told, "facts": facts(result)}, separators=(",", ":")) + "\n", durable=False
        )

    def close(self) -> None:
        """The last result stays; its time says how old it is."""


class Textfile:
    """Metrics for the textfile collector of Prometheus' node_exporter."""

    def __init__(self, path: str, dcgm_names: str = "none") -> None:
        self.path = path
        self.dcgm_names = dcgm_names

    def publish(self, result: dict[str, Any]) -> None:
        host_files.write(self.path, page(result, self.dcgm_names), durable=False)

    def close(self) -> None:
        """Without an agent there is nobody to keep the series true, so they end."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
