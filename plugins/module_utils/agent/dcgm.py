# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The readings of the GPUs under the names of NVIDIA's DCGM exporter, for dashboards that were made for it.

Version 4.9 of the exporter renamed many of its metrics and gave some of them another unit. So there are two sets of
names: `classic`, before 4.9, and `current`, since.

Sources: etc/default-counters.csv of https://github.com/NVIDIA/dcgm-exporter (names, types and units before 4.9), the
exporter's release notes of 4.8.3 and 4.9.0 (labels and units), dcgm_fields.py of https://github.com/NVIDIA/DCGM and the
fields in base units of https://github.com/NVIDIA/go-dcgm (names since 4.9).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

CLASSIC, CURRENT = "classic", "current"
# What the setting may be, and the sets of names that it means.
CHOICES: dict[str, tuple[str, ...]] = {
    "none": (),
    "classic": (CLASSIC,),
    "current": (CURRENT,),
    "both": (CLASSIC, CURRENT),
}
PREFIX = "DCGM_FI_DEV_"


class Field(NamedTuple):
    """A reading, and what the exporter calls it.

    `reading` is a key of the readings, or KEY.PART for one of its parts; of a reading with several rows, the parts are
    added up. `unit` is the reading's; UNITS has the names' own. `kind` is the type for Prometheus. Names are without
    PREFIX.
    """

    reading: str
    unit: str
    kind: str
    classic: str
    current: str

    def name(self, names: str) -> str:
        """The metric in one set of names."""
        return PREFIX + (self.classic if names == CLASSIC else self.current)

    def unit_of(self, names: str) -> str:
        """The unit of that metric."""
        return UNITS.get(self.name(names).removeprefix(PREFIX), self.unit)


_FIELDS: tuple[tuple[str, str, str, str, str], ...] = (
    ("clocks_mhz.sm", "MHz", "gauge", "SM_CLOCK", "SM_CLOCK_HERTZ"),
    ("clocks_mhz.memory", "MHz", "gauge", "MEM_CLOCK", "MEMORY_CLOCK_HERTZ"),
    ("clocks_event_reasons", "bits", "gauge", "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
    ("temperature_c", "°C", "gauge", "GPU_TEMP", "GPU_TEMP_CELSIUS"),
    ("memory_temperature_c", "°C", "gauge", "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS"),
    ("temperature_limits_c.slowdown", "°C", "gauge", "SLOWDOWN_TEMP", "GPU_TEMP_SLOWDOWN_CELSIUS"),
    ("temperature_limits_c.shutdown", "°C", "gauge", "SHUTDOWN_TEMP", "GPU_TEMP_SHUTDOWN_CELSIUS"),
    ("power_w", "W", "gauge", "POWER_USAGE", "BOARD_POWER_WATTS"),
    ("power_limit_w", "W", "gauge", "ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    ("energy_mj", "mJ", "counter", "TOTAL_ENERGY_CONSUMPTION", "GPU_ENERGY_JOULES_TOTAL"),
    ("utilization_percent.gpu", "%", "gauge", "GPU_UTIL", "GPU_UTIL_RATIO"),
    ("utilization_percent.memory", "%", "gauge", "MEM_COPY_UTIL", "MEMORY_UTIL_RATIO"),
    ("engine_utilization_percent.encoder", "%", "gauge", "ENC_UTIL", "ENC_UTIL_RATIO"),
    ("engine_utilization_percent.decoder", "%", "gauge", "DEC_UTIL", "DEC_UTIL_RATIO"),
    ("memory_bytes.total", "B", "gauge", "FB_TOTAL", "FB_CAPACITY_BYTES"),
    ("memory_bytes.free", "B", "gauge", "FB_FREE", "FB_FREE_BYTES"),
    ("memory_bytes.used", "B", "gauge", "FB_USED", "FB_USED_BYTES"),
    ("memory_bytes.reserved", "B", "gauge", "FB_RESERVED", "FB_RESERVED_BYTES"),
    ("last_xid", "Xid", "gauge", "XID_ERRORS", "XID_ERROR"),
    ("recovery_action", "action", "gauge", "GET_GPU_RECOVERY_ACTION", "GPU_RECOVERY_ACTION"),
    ("ecc_mode.enabled", "0 or 1", "gauge", "ECC_CURRENT", "ECC_MODE"),
    ("ecc_mode.pending", "0 or 1", "gauge", "ECC_PENDING", "ECC_PENDING"),
    ("ecc_volatile.corrected", "errors", "counter", "ECC_SBE_VOL_TOTAL", "ECC_SBE_VOL_TOTAL"),
    ("ecc_volatile.uncorrected", "errors", "counter", "ECC_DBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL"),
    ("ecc_aggregate.corrected", "errors", "counter", "ECC_SBE_AGG_TOTAL", "ECC_SBE_AGG_TOTAL"),
    ("ecc_aggregate.uncorrected", "errors", "counter", "ECC_DBE_AGG_TOTAL", "ECC_DBE_AGG_TOTAL"),
    ("ecc_sram.threshold_exceeded", "0 or 1", "gauge", "THRESHOLD_SRM", "SRAM_EXCEEDED"),
    ("retired_pages.single_bit", "pages", "counter", "RETIRED_SBE", "PAGE_RETIRED_SBE_TOTAL"),
    ("retired_pages.double_bit", "pages", "counter", "RETIRED_DBE", "PAGE_RETIRED_DBE_TOTAL"),
    ("retired_pages.pending", "0 or 1", "gauge", "RETIRED_PENDING", "PAGE_RETIRED_PENDING"),
    ("remapped_rows.correctable", "rows", "counter", "CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL"),
    ("remapped_rows.uncorrectable", "rows", "counter", "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL"),
    ("remapped_rows.failure", "0 or 1", "gauge", "ROW_REMAP_FAILURE", "ROW_REMAP_FAILED"),
    ("remapped_rows.pending", "0 or 1", "gauge", "ROW_REMAP_PENDING", "ROW_REMAP_PENDING"),
    ("pcie.generation", "generation", "gauge", "PCIE_LINK_GEN", "PCIE_LINK_GEN"),
    ("pcie.generation_max", "generation", "gauge", "PCIE_MAX_LINK_GEN", "PCIE_MAX_LINK_GEN"),
    ("pcie.width", "lanes", "gauge", "PCIE_LINK_WIDTH", "PCIE_LINK_WIDTH"),
    ("pcie.width_max", "lanes", "gauge", "PCIE_MAX_LINK_WIDTH", "PCIE_MAX_LINK_WIDTH"),
    ("pcie_replays", "replays", "counter", "PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL"),
    ("nvlinks.replay_errors", "times", "counter", "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_TOTAL"),
    (
        "nvlinks.recovery_errors",
        "errors",
        "counter",
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "NVLINK_RECOVERY_ERROR_TOTAL",
    ),
    ("persistence_mode", "0 or 1", "gauge", "PERSISTENCE_MODE", "GPU_PERSISTENCE_MODE"),
    ("mig.enabled", "0 or 1", "gauge", "MIG_MODE", "MIG_MODE"),
)
FIELDS = tuple(Field(*row) for row in _FIELDS)

# The metrics whose unit is not that of the reading.
UNITS = {
    "SM_CLOCK_HERTZ": "Hz",
    "MEMORY_CLOCK_HERTZ": "Hz",
    "GPU_ENERGY_JOULES_TOTAL": "J",
    "GPU_UTIL_RATIO": "ratio",
    "MEMORY_UTIL_RATIO": "ratio",
    "ENC_UTIL_RATIO": "ratio",
    "DEC_UTIL_RATIO": "ratio",
    "FB_TOTAL": "MiB",
    "FB_FREE": "MiB",
    "FB_USED": "MiB",
    "FB_RESERVED": "MiB",
}
# (unit of the reading, unit of the metric) -> how one becomes the other.
CONVERSIONS: dict[tuple[str, str], Callable[[float], float]] = {
    ("MHz", "Hz"): lambda value: value * 1_000_000,
    ("mJ", "J"): lambda value: value / 1000,
    ("%", "ratio"): lambda value: value / 100,
    # Whole MiB, as the exporter has them.
    ("B", "MiB"): lambda value: value // (1 << 20),
}
HELP = {
    "clocks_mhz.sm": "Clock of the SMs",
    "clocks_mhz.memory": "Clock of the memory",
    "clocks_event_reasons": "What holds the clocks down",
    "temperature_c": "Temperature of the GPU",
    "memory_temperature_c": "Temperature of the memory",
    "temperature_limits_c.slowdown": "Temperature at which the GPU slows down",
    "temperature_limits_c.shutdown": "Temperature at which the GPU shuts down",
    "power_w": "Power draw",
    "power_limit_w": "Power limit that is enforced",
    "energy_mj": "Energy since the driver was loaded",
    "utilization_percent.gpu": "Share of time in which a kernel ran",
    "utilization_percent.memory": "Share of time in which memory was read or written",
    "engine_utilization_percent.encoder": "Load of the video encoder",
    "engine_utilization_percent.decoder": "Load of the video decoder",
    "memory_bytes.total": "Memory of the GPU",
    "memory_bytes.free": "Memory that is free",
    "memory_bytes.used": "Memory that is used",
    "memory_bytes.reserved": "Memory that the driver keeps for itself",
    "last_xid": "The last Xid since the host booted",
    "recovery_action": "What the driver recommends to do about the GPU",
    "ecc_mode.enabled": "Whether error correction is on",
    "ecc_mode.pending": "Whether error correction is on after a reset",
    "ecc_volatile.corrected": "Corrected memory errors since the driver was loaded",
    "ecc_volatile.uncorrected": "Uncorrected memory errors since the driver was loaded",
    "ecc_aggregate.corrected": "Corrected memory errors in the life of the GPU",
    "ecc_aggregate.uncorrected": "Uncorrected memory errors in the life of the GPU",
    "ecc_sram.threshold_exceeded": "Whether the SRAM has had too many errors",
    "retired_pages.single_bit": "Pages retired for corrected errors",
    "retired_pages.double_bit": "Pages retired for uncorrected errors",
    "retired_pages.pending": "Whether a retirement waits for a reboot",
    "remapped_rows.correctable": "Rows remapped for corrected errors",
    "remapped_rows.uncorrectable": "Rows remapped for uncorrected errors",
    "remapped_rows.failure": "Whether a row could not be remapped",
    "remapped_rows.pending": "Whether a remapping waits for a reset",
    "pcie.generation": "Generation of the PCIe link",
    "pcie.generation_max": "Generation that the PCIe link can have",
    "pcie.width": "Lanes of the PCIe link",
    "pcie.width_max": "Lanes that the PCIe link can have",
    "pcie_replays": "PCIe packets that were sent again",
    "nvlinks.replay_errors": "Replays of all NVLinks",
    "nvlinks.recovery_errors": "Recoveries of all NVLinks",
    "persistence_mode": "Whether persistence mode is on",
    "mig.enabled": "Whether MIG is on",
}

# Of a GPU that MIG has cut, the exporter tells these of each GPU instance, and not of the whole.
OF_INSTANCES = ("memory_bytes.total", "memory_bytes.free", "memory_bytes.used")
INSTANCE = ("GPU_I_ID", "GPU_I_PROFILE")
# The labels of a metric, by the set of names. The exporter had `Hostname` before version 4.8.3, and `hostname` since.
# As 4.8.3 and 4.8.4 have the classic names too, these come with both.
IDENTITY = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname")
LABELS = {
    CLASSIC: (*IDENTITY, "Hostname", "DCGM_FI_DRIVER_VERSION"),
    CURRENT: (*IDENTITY, "DCGM_FI_SYSTEM_DRIVER_VERSION"),
}


def _labels_of(field: Field, name: str) -> tuple[str, ...]:
    """The labels of a metric; one that has the same name in both sets can have those of both."""
    own = INSTANCE if field.reading in OF_INSTANCES else ()
    told = (label for names in LABELS if field.name(names) == name for label in LABELS[names])
    return tuple(dict.fromkeys((*told, *own)))


# name -> (type, labels, help), as in METRICS of publish.py.
METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    field.name(names): (
        field.kind,
        _labels_of(field, field.name(names)),
        f"{HELP[field.reading]} ({field.unit_of(names)}).",
    )
    for field in FIELDS
    for names in LABELS
}


def converted(value: float, unit: str, to: str) -> float:
    """The value in another unit. Raises KeyError where there is no way from one unit to the other."""
    return value if unit == to else CONVERSIONS[unit, to](value)


def reading_of(values: dict[str, Any], reading: str) -> float | None:
    """What Field.reading names; None where the GPU does not tell it."""
    key, _dot, part = reading.partition(".")
    value = values.get(key)
    if value is None or not part:
        return value
    if isinstance(value, list):
        parts = [row[part] for row in value if row.get(part) is not None]
        return sum(parts) if parts else None
    found: float | None = value.get(part)
    return found


def gpu_instances(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the MIG devices of a GPU the first of each GPU instance, whose memory they share."""
    found: dict[int, dict[str, Any]] = {}
    for row in values.get("mig", {}).get("instances", ()):
        found.setdefault(row["gpu_instance"], row)
    return list(found.values())


def gpu_instance_profile(row: dict[str, Any]) -> str:
    """Its profile, without that of the compute instance: 3g.20gb of 1c.3g.20gb."""
    return re.sub(r"^\d+c\.", "", str(row["profile"]))


def last_xid(device: dict[str, Any], xids: list[dict[str, Any]], since: float) -> int | None:
    """The Xid that a GPU had last, of those since a time in Unix seconds; None if it had none."""
    rows = [
        row
        for row in xids
        if row["last"] >= since
        and (row["uuid"] == device["uuid"] if row["uuid"] else row["pci_address"] == device["pci_address"])
    ]
    return max(rows, key=lambda row: float(row["last"]))["xid"] if rows else None


def _bus_id(address: str) -> str:
    """An address as NVML writes it: eight digits of domain and capitals."""
    domain, _colon, place = address.partition(":")
    return f"{domain:0>8}:{place}".upper()


def _labels(device: dict[str, Any], driver: str | None, sets: tuple[str, ...]) -> dict[str, Any]:
    """The labels that a metric of these sets of names has; None where the GPU does not tell one."""
    host = os.uname().nodename
    minor, address = device.get("minor"), device.get("pci_address")
    known = {
        "gpu": device.get("index"),
        "UUID": device.get("uuid"),
        "pci_bus_id": address and _bus_id(address),
        "device": None if minor is None else f"nvidia{minor}",
        "modelName": device.get("name"),
        "hostname": host,
        "Hostname": host,
        "DCGM_FI_DRIVER_VERSION": driver,
        "DCGM_FI_SYSTEM_DRIVER_VERSION": driver,
    }
    return {label: known[label] for names in sets for label in LABELS[names]}


def samples(result: dict[str, Any], choice: str) -> Iterator[tuple[str, dict[str, Any], float]]:
    """(metric, labels, value) of each reading that there is. `choice` is a key of CHOICES.

    A metric that has the same name in both sets comes once, with the labels of both, so that no sum counts it twice.
    """
    sets = CHOICES[choice]
    if not sets:
        return
    look = result["snapshot"]
    driver = (look.get("driver") or {}).get("loaded")
    # A second, as the kernel's log is not timed by the same clock.
    booted = result["time"] - result["uptime"] - 1
    for device in look.get("devices", ()):
        values = {key: row["value"] for key, row in device.get("readings", {}).items() if row.get("value") is not None}
        values["last_xid"] = last_xid(device, result["agent"].get("xids", []), booted)
        instances = gpu_instances(values)
        for field in FIELDS:
            told: list[tuple[dict[str, Any], float | None]]
            if instances and field.reading in OF_INSTANCES:
                told = [(_instance_labels(row), _instance_value(row, field.reading)) for row in instances]
            else:
                told = [({}, reading_of(values, field.reading))]
            for name in dict.fromkeys(map(field.name, sets)):
                having = tuple(names for names in sets if field.name(names) == name)
                labels = _labels(device, driver, having)
                for more, value in told:
                    if value is not None:
                        yield name, {**labels, **more}, float(converted(value, field.unit, field.unit_of(having[0])))


def _instance_labels(row: dict[str, Any]) -> dict[str, Any]:
    return {"GPU_I_ID": row["gpu_instance"], "GPU_I_PROFILE": gpu_instance_profile(row)}


def _instance_value(row: dict[str, Any], reading: str) -> float:
    part = reading.rpartition(".")[2]
    memory = row["memory_bytes"]
    return float(memory["used"] + memory["free"] if part == "total" else memory[part])
