# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The questions that a look asks of every card: one function for each reading, given pynvml and the card's handle.

What a function raises becomes the reading's state. Units are in the names. Source: NVIDIA's NVML API reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import nvml, pci

Question = Callable[[Any, Any], Any]

FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
# Of the fabric's health mask: shift of a field of two bits, of which 1 says yes.
FABRIC_FLAGS = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
# A field of four bits, of which 0 is not supported and 1 is none.
FABRIC_CONFIGURATION = (8, 0xF)
# Field of NVML for the temperature of HBM.
MEMORY_TEMPERATURE = 82
INFOROM_CORRUPTED = 14
# What a card has is fewer; a broken library may answer anything.
MIG_INSTANCES_AT_MOST = 64


def optional(lib: Any, ask: Callable[[], Any]) -> Any:
    """One part of a reading that has several: None where this card or driver has no such thing."""
    try:
        return ask()
    except (lib.NVMLLibraryMismatchError, AttributeError):
        return None
    except lib.NVMLError as failure:
        if int(failure.value) in (2, *nvml.NOT_APPLICABLE):
            return None
        raise


def _temperature(lib: Any, handle: Any) -> int:
    return int(lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU))


def _memory_temperature(lib: Any, handle: Any) -> int:
    (answer,) = lib.nvmlDeviceGetFieldValues(handle, [MEMORY_TEMPERATURE])
    if answer.nvmlReturn:
        raise lib.NVMLError(answer.nvmlReturn)
    value = int(answer.value.uiVal)
    if not value:
        # Cards without HBM answer 0 instead of refusing.
        raise lib.NVMLError(lib.NVML_ERROR_NOT_SUPPORTED)
    return value


def _temperature_limits(lib: Any, handle: Any) -> dict[str, int | None]:
    names = {
        "slowdown": lib.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        "shutdown": lib.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        "gpu_max": lib.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
        "memory_max": lib.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    }
    found = {}
    for name, which in names.items():
        # Some cards answer 0 for a limit that they do not have.
        value = optional(lib, partial(lib.nvmlDeviceGetTemperatureThreshold, handle, which))
        found[name] = int(value) if value else None
    return found


def _clocks_event_reasons(lib: Any, handle: Any) -> int:
    try:
        return int(lib.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except lib.NVMLError as failure:
        if int(failure.value) != lib.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # Its name before driver 535.
        return int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _utilization(lib: Any, handle: Any) -> dict[str, int]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu": int(rates.gpu), "memory": int(rates.memory)}


def _ecc_mode(lib: Any, handle: Any) -> dict[str, bool]:
    current, pending = lib.nvmlDeviceGetEccMode(handle)
    return {"enabled": bool(current), "pending": bool(pending)}


def _ecc(counter: str) -> Question:
    def ask(lib: Any, handle: Any) -> dict[str, int]:
        which = getattr(lib, counter)
        return {
            "corrected": int(lib.nvmlDeviceGetTotalEccErrors(handle, lib.NVML_MEMORY_ERROR_TYPE_CORRECTED, which)),
            "uncorrected": int(lib.nvmlDeviceGetTotalEccErrors(handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, which)),
        }

    return ask


def _ecc_sram(lib: Any, handle: Any) -> dict[str, Any]:
    status = lib.c_nvmlEccSramErrorStatus_v1_t()
    lib.nvmlDeviceGetSramEccErrorStatus(handle, lib.byref(status))
    return {
        "volatile_uncorrected": int(status.volatileUncParity + status.volatileUncSecDed),
        "aggregate_uncorrected": int(status.aggregateUncParity + status.aggregateUncSecDed),
        "threshold_exceeded": bool(status.bThresholdExceeded),
    }


def _remapped_rows(lib: Any, handle: Any) -> dict[str, Any]:
    correctable, uncorrectable, pending, failure = lib.nvmlDeviceGetRemappedRows(handle)
    return {
        "correctable": int(correctable),
        "uncorrectable": int(uncorrectable),
        "pending": bool(pending),
        "failure": bool(failure),
    }


def _retired_pages(lib: Any, handle: Any) -> dict[str, Any]:
    causes = {
        "single_bit": lib.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        "double_bit": lib.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    }
    counts = {name: len(lib.nvmlDeviceGetRetiredPages(handle, cause)) for name, cause in causes.items()}
    return {**counts, "pending": bool(lib.nvmlDeviceGetRetiredPagesPendingStatus(handle))}


def _pcie(lib: Any, handle: Any) -> dict[str, int]:
    return {
        "generation": int(lib.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "generation_max": int(lib.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "width": int(lib.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "width_max": int(lib.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    }


def _nvlinks(lib: Any, handle: Any) -> list[dict[str, Any]]:
    """One row for every link that the card has, whether or not it is up."""
    links: list[dict[str, Any]] = []
    for link in range(nvml.NVLINKS_AT_MOST):
        try:
            active = int(lib.nvmlDeviceGetNvLinkState(handle, link)) == 1
        except lib.NVMLError as failure:
            # Links are counted from 0 on, so the first that the card does not have ends the count.
            if link == 0 or int(failure.value) not in (2, *nvml.NOT_APPLICABLE):
                raise
            break
        links.append({"link": link, "active": active, **_nvlink_errors(lib, handle, link, active)})
    return links


def _nvlink_errors(lib: Any, handle: Any, link: int, active: bool) -> dict[str, Any]:
    def counter(which: int) -> int | None:
        value = optional(lib, lambda: lib.nvmlDeviceGetNvLinkErrorCounter(handle, link, which)) if active else None
        return None if value is None else int(value)

    def remote() -> str:
        return pci.normal_address(nvml.text(lib.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))

    flit, data = counter(lib.NVML_NVLINK_ERROR_DL_CRC_FLIT), counter(lib.NVML_NVLINK_ERROR_DL_CRC_DATA)
    return {
        "remote": optional(lib, remote) if active else None,
        "crc_errors": None if flit is None and data is None else (flit or 0) + (data or 0),
        "replay_errors": counter(lib.NVML_NVLINK_ERROR_DL_REPLAY),
        "recovery_errors": counter(lib.NVML_NVLINK_ERROR_DL_RECOVERY),
    }


def _fabric(lib: Any, handle: Any) -> dict[str, Any]:
    mask = 0
    try:
        info = lib.c_nvmlGpuFabricInfo_v2_t()
        lib.nvmlDeviceGetGpuFabricInfoV(handle, lib.byref(info))
        mask = int(info.healthMask)
    except lib.NVMLError as failure:
        if int(failure.value) != lib.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # Before driver 545 there is no health in it.
        info = lib.c_nvmlGpuFabricInfo_t()
        lib.nvmlDeviceGetGpuFabricInfo(handle, lib.byref(info))
    unhealthy = [name for name, shift in FABRIC_FLAGS.items() if mask >> shift & 3 == 1]
    shift, width = FABRIC_CONFIGURATION
    if mask >> shift & width > 1:
        unhealthy.append(f"incorrect_configuration_{mask >> shift & width}")
    return {"state": FABRIC_STATES[int(info.state)], "status": int(info.status), "unhealthy": unhealthy}


def _application_clocks(lib: Any, handle: Any) -> dict[str, int | None]:
    kinds = {"graphics": lib.NVML_CLOCK_GRAPHICS, "memory": lib.NVML_CLOCK_MEM}
    found = {name: int(lib.nvmlDeviceGetApplicationsClock(handle, kind)) for name, kind in kinds.items()}
    default = {
        f"default_{name}": int(lib.nvmlDeviceGetDefaultApplicationsClock(handle, kind)) for name, kind in kinds.items()
    }
    return {**found, **default}


def _mig(lib: Any, handle: Any) -> dict[str, Any]:
    current, pending = lib.nvmlDeviceGetMigMode(handle)
    instances = []
    count = int(lib.nvmlDeviceGetMaxMigDeviceCount(handle)) if current else 0
    for number in range(min(count, MIG_INSTANCES_AT_MOST)):
        instance = optional(lib, partial(_mig_instance, lib, handle, number))
        if instance:
            instances.append(instance)
    return {"enabled": bool(current), "pending": bool(pending), "instances": instances}


def _mig_instance(lib: Any, handle: Any, number: int) -> dict[str, Any] | None:
    try:
        instance = lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except lib.NVMLError as failure:
        # Numbers of instances need not follow one another.
        if int(failure.value) == lib.NVML_ERROR_NOT_FOUND:
            return None
        raise
    attributes = lib.nvmlDeviceGetAttributes(instance)
    memory_mib = int(attributes.memorySizeMB)
    slices = int(attributes.gpuInstanceSliceCount)
    return {
        "uuid": nvml.text(lib.nvmlDeviceGetUUID(instance)),
        # As NVIDIA names them, in gigabytes: 1g.5gb has 4864 MiB.
        "profile": f"{slices}g.{-(-memory_mib // 1024)}gb",
        "memory_mib": memory_mib,
    }


def _running(lib: Any, handle: Any) -> list[Any]:
    try:
        return list(lib.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except lib.NVMLError as failure:
        if int(failure.value) != lib.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # Before driver 510.
        return list(lib.nvmlDeviceGetComputeRunningProcesses_v2(handle))


def _processes(lib: Any, handle: Any) -> list[dict[str, Any]]:
    found = []
    for process in _running(lib, handle):
        pid = int(process.pid)
        memory = process.usedGpuMemory
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                name: str | None = file.read().strip()
        except OSError:
            name = None
        found.append(
            {
                "pid": pid,
                "name": name,
                "memory_mib": None if memory is None else int(memory) >> 20,
                "exists": os.path.exists(f"/proc/{pid}"),
            }
        )
    return found


def _inforom_valid(lib: Any, handle: Any) -> bool:
    try:
        lib.nvmlDeviceValidateInforom(handle)
    except lib.NVMLError as failure:
        if int(failure.value) == INFOROM_CORRUPTED:
            return False
        raise
    return True


QUICK: dict[str, Question] = {
    "temperature_c": _temperature,
    "memory_temperature_c": _memory_temperature,
    "clocks_event_reasons": _clocks_event_reasons,
    "power_w": lambda lib, handle: lib.nvmlDeviceGetPowerUsage(handle) / 1000.0,
    "utilization_percent": _utilization,
    "ecc_mode": _ecc_mode,
    "ecc_volatile": _ecc("NVML_VOLATILE_ECC"),
    "ecc_aggregate": _ecc("NVML_AGGREGATE_ECC"),
    "ecc_sram": _ecc_sram,
    "remapped_rows": _remapped_rows,
    "retired_pages": _retired_pages,
    "pcie": _pcie,
    "pcie_replays": lambda lib, handle: int(lib.nvmlDeviceGetPcieReplayCounter(handle)),
    "nvlinks": _nvlinks,
    "fabric": _fabric,
    "persistence_mode": lambda lib, handle: bool(lib.nvmlDeviceGetPersistenceMode(handle)),
    "mig": _mig,
    "processes": _processes,
    "temperature_limits_c": _temperature_limits,
    "power_limit_w": lambda lib, handle: lib.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0,
    "application_clocks_mhz": _application_clocks,
}
# Read from flash, and asked for at most twice a minute.
SLOW: dict[str, Question] = {"inforom_valid": _inforom_valid}
