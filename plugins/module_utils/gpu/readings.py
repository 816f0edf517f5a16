# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The questions that a look asks of every GPU: one function for each reading, given pynvml and the GPU.

What a function raises becomes the reading's state (see nvml.reading). Units are in the names. A number that no GPU
can mean is refused with ValueError, so that the garbage of a broken library is not taken for an answer.
Source: NVIDIA's NVML API reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml, nvml_messages
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address

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
# The fabric's own summary of it, from driver 580 on: 0 is not supported and 1 is healthy.
FABRIC_SUMMARIES = {2: "unhealthy", 3: "limited_capacity"}
# Fields of NVML: the temperature of HBM, and what the driver recommends to do about the GPU.
MEMORY_TEMPERATURE = 82
RECOVERY_ACTION = 230
INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3
INFOROM_CORRUPTED = 14
# NVML has a function by a newer name or version only from some driver on.
FUNCTION_NOT_FOUND, VERSION_MISMATCH = 13, 25
# The kernel's greatest PID_MAX_LIMIT.
PID_MOST = 1 << 22
MEMORY_MOST_MIB = 1 << 24
# The number of an instance; a GPU has seven of them at most, and numbers are not given out in order.
MIG_MOST = 255
MEMORY_MOST_BYTES = MEMORY_MOST_MIB << 20
CLOCK_MOST_MHZ = 100000
COUNT_MOST = 1 << 48


class Gpu:
    """A GPU as NVML hands it out; `kept` is for what a function need not ask again in the next look."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.kept: dict[Any, Any] = {}


Question = Callable[[Any, Gpu], Any]


def within(value: Any, most: float, least: float = 0) -> Any:
    """The value, if it can be meant."""
    if not least <= value <= most:
        raise ValueError(f"{value} is not within {least} and {most}")
    return value


def count(value: Any) -> int:
    """A counter. All bits set stand for a value that is not available, and no GPU lives to count this far."""
    return int(within(int(value), COUNT_MOST))


def yes_or_no(value: Any) -> bool:
    return bool(within(int(value), 1))


def optional(lib: Any, ask: Callable[[], Any]) -> Any:
    """One part of a reading that has several: None where this GPU or driver has no such thing."""
    try:
        return ask()
    except (lib.NVMLLibraryMismatchError, AttributeError):
        return None
    except lib.NVMLError as failure:
        if int(failure.value) in (2, *nvml_messages.NOT_APPLICABLE):
            return None
        raise


def _some(lib: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """A reading of several parts, of which this GPU has at least one."""
    if all(value is None for value in parts.values()):
        raise lib.NVMLError(lib.NVML_ERROR_NOT_SUPPORTED)
    return parts


def _of_two_names(lib: Any, new: Callable[[], Any], old: Callable[[], Any]) -> Any:
    """What `new` answers, or `old` where the library does not have it yet."""
    try:
        return new()
    except (lib.NVMLLibraryMismatchError, AttributeError):
        return old()
    except lib.NVMLError as failure:
        if int(failure.value) != FUNCTION_NOT_FOUND:
            raise
        return old()


# --- identity: does not change while the driver is loaded -------------------------------------------------------------


def _architecture(lib: Any, gpu: Gpu) -> str | None:
    return nvml.ARCHITECTURES.get(int(lib.nvmlDeviceGetArchitecture(gpu.handle)))


def _compute_capability(lib: Any, gpu: Gpu) -> str:
    major, minor = lib.nvmlDeviceGetCudaComputeCapability(gpu.handle)
    return f"{within(major, 99)}.{within(minor, 9)}"


def _uuid(lib: Any, gpu: Gpu) -> str:
    uuid = nvml.text(lib.nvmlDeviceGetUUID(gpu.handle))
    if not uuid.startswith("GPU-"):
        raise ValueError(f"{uuid!r} is not the UUID of a GPU")
    return uuid


IDENTITY: dict[str, Question] = {
    "uuid": _uuid,
    "minor": lambda lib, gpu: int(within(int(lib.nvmlDeviceGetMinorNumber(gpu.handle)), 253)),
    "pci_address": lambda lib, gpu: normal_address(nvml.text(lib.nvmlDeviceGetPciInfo(gpu.handle).busId)),
    "name": lambda lib, gpu: nvml.text(lib.nvmlDeviceGetName(gpu.handle)),
    "architecture": _architecture,
    "compute_capability": _compute_capability,
    "memory_mib": lambda lib, gpu: within(int(lib.nvmlDeviceGetMemoryInfo(gpu.handle).total) >> 20, MEMORY_MOST_MIB),
}


def serial(lib: Any, gpu: Gpu) -> str:
    return nvml.text(lib.nvmlDeviceGetSerial(gpu.handle))


# --- temperature, power, load -----------------------------------------------------------------------------------------


def _temperature(lib: Any, gpu: Gpu) -> int:
    return int(within(int(lib.nvmlDeviceGetTemperature(gpu.handle, lib.NVML_TEMPERATURE_GPU)), 200))


def _field(lib: Any, gpu: Gpu, number: int) -> int:
    (answer,) = lib.nvmlDeviceGetFieldValues(gpu.handle, [number])
    if answer.nvmlReturn:
        # A driver that is older than the field does not know its number.
        code = NOT_SUPPORTED if answer.nvmlReturn == INVALID_ARGUMENT else answer.nvmlReturn
        raise lib.NVMLError(code)
    return int(answer.value.uiVal)


def _memory_temperature(lib: Any, gpu: Gpu) -> int:
    value = int(within(_field(lib, gpu, MEMORY_TEMPERATURE), 200))
    if not value:
        # GPUs without HBM answer 0 instead of refusing.
        raise lib.NVMLError(lib.NVML_ERROR_NOT_SUPPORTED)
    return value


def _temperature_limits(lib: Any, gpu: Gpu) -> dict[str, int | None]:
    names = {
        "slowdown": lib.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        "shutdown": lib.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        "gpu_max": lib.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
        "memory_max": lib.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    }
    found = {}
    for name, which in names.items():
        # Some GPUs answer 0 for a limit that they do not have.
        value = optional(lib, partial(lib.nvmlDeviceGetTemperatureThreshold, gpu.handle, which))
        found[name] = int(within(int(value), 200)) if value else None
    return _some(lib, found)


def _clocks_event_reasons(lib: Any, gpu: Gpu) -> int:
    reasons = _of_two_names(
        lib,
        lambda: lib.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle),
        # Its name before driver 535.
        lambda: lib.nvmlDeviceGetCurrentClocksThrottleReasons(gpu.handle),
    )
    return int(within(int(reasons), (1 << 32) - 1))


def _power(lib: Any, gpu: Gpu) -> float:
    return float(within(lib.nvmlDeviceGetPowerUsage(gpu.handle) / 1000.0, 10000))


def _power_limit(lib: Any, gpu: Gpu) -> float:
    return float(within(lib.nvmlDeviceGetEnforcedPowerLimit(gpu.handle) / 1000.0, 10000))


def _utilization(lib: Any, gpu: Gpu) -> dict[str, int]:
    rates = lib.nvmlDeviceGetUtilizationRates(gpu.handle)
    return {"gpu": int(within(int(rates.gpu), 100)), "memory": int(within(int(rates.memory), 100))}


def _engine_utilization(lib: Any, gpu: Gpu) -> dict[str, int | None]:
    questions = {"encoder": lib.nvmlDeviceGetEncoderUtilization, "decoder": lib.nvmlDeviceGetDecoderUtilization}
    found: dict[str, int | None] = {}
    for name, ask in questions.items():
        # The load, and the time over which it was measured.
        answer = optional(lib, partial(ask, gpu.handle))
        found[name] = None if answer is None else int(within(int(answer[0]), 100))
    return _some(lib, found)


def _clocks(lib: Any, gpu: Gpu) -> dict[str, int | None]:
    kinds = {"sm": lib.NVML_CLOCK_SM, "memory": lib.NVML_CLOCK_MEM}
    found: dict[str, int | None] = {}
    for name, kind in kinds.items():
        value = optional(lib, partial(lib.nvmlDeviceGetClockInfo, gpu.handle, kind))
        found[name] = None if value is None else int(within(int(value), CLOCK_MOST_MHZ))
    return _some(lib, found)


def _memory(lib: Any, gpu: Gpu) -> dict[str, int | None]:
    """What the driver keeps for itself is told from driver 510 on; before, it counts as used."""
    info = _of_two_names(
        lib,
        lambda: lib.nvmlDeviceGetMemoryInfo(gpu.handle, version=lib.nvmlMemory_v2),
        lambda: lib.nvmlDeviceGetMemoryInfo(gpu.handle),
    )
    reserved = getattr(info, "reserved", None)
    parts = {"total": info.total, "used": info.used, "free": info.free, "reserved": reserved}
    return {
        name: None if value is None else int(within(int(value), MEMORY_MOST_BYTES)) for name, value in parts.items()
    }


def _energy(lib: Any, gpu: Gpu) -> int:
    """Since the driver was loaded."""
    return count(lib.nvmlDeviceGetTotalEnergyConsumption(gpu.handle))


def _application_clocks(lib: Any, gpu: Gpu) -> dict[str, int | None]:
    kinds = {"graphics": lib.NVML_CLOCK_GRAPHICS, "memory": lib.NVML_CLOCK_MEM}
    found: dict[str, int | None] = {}
    for prefix, ask in (
        ("", lib.nvmlDeviceGetApplicationsClock),
        ("default_", lib.nvmlDeviceGetDefaultApplicationsClock),
    ):
        for name, kind in kinds.items():
            found[prefix + name] = int(within(int(ask(gpu.handle, kind)), CLOCK_MOST_MHZ))
    return found


# --- memory that fails ------------------------------------------------------------------------------------------------


def ecc_mode(lib: Any, gpu: Gpu) -> dict[str, bool]:
    current, pending = lib.nvmlDeviceGetEccMode(gpu.handle)
    return {"enabled": yes_or_no(current), "pending": yes_or_no(pending)}


def _ecc(counter: str) -> Question:
    def ask(lib: Any, gpu: Gpu) -> dict[str, int]:
        which = getattr(lib, counter)
        kinds = {
            "corrected": lib.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "uncorrected": lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        return {name: count(lib.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, which)) for name, kind in kinds.items()}

    return ask


ecc_volatile = _ecc("NVML_VOLATILE_ECC")
ecc_aggregate = _ecc("NVML_AGGREGATE_ECC")


def _ecc_sram(lib: Any, gpu: Gpu) -> dict[str, Any]:
    def status() -> dict[str, Any]:
        answer = lib.c_nvmlEccSramErrorStatus_v1_t()
        lib.nvmlDeviceGetSramEccErrorStatus(gpu.handle, lib.byref(answer))
        return {
            "volatile_uncorrected": count(answer.volatileUncParity + answer.volatileUncSecDed),
            "aggregate_uncorrected": count(answer.aggregateUncParity + answer.aggregateUncSecDed),
            "threshold_exceeded": yes_or_no(answer.bThresholdExceeded),
        }

    def counters() -> dict[str, Any]:
        """What drivers before 545 tell."""
        found = {}
        for name, counter in (("volatile", lib.NVML_VOLATILE_ECC), ("aggregate", lib.NVML_AGGREGATE_ECC)):
            found[f"{name}_uncorrected"] = count(
                lib.nvmlDeviceGetMemoryErrorCounter(
                    gpu.handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter, lib.NVML_MEMORY_LOCATION_SRAM
                )
            )
        return {**found, "threshold_exceeded": None}

    found: dict[str, Any] = _of_two_names(lib, status, counters)
    return found


def _remapped_rows(lib: Any, gpu: Gpu) -> dict[str, Any]:
    correctable, uncorrectable, pending, failure = lib.nvmlDeviceGetRemappedRows(gpu.handle)
    return {
        "correctable": count(correctable),
        "uncorrectable": count(uncorrectable),
        "pending": yes_or_no(pending),
        "failure": yes_or_no(failure),
    }


def _retired_pages(lib: Any, gpu: Gpu) -> dict[str, Any]:
    causes = {
        "single_bit": lib.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        "double_bit": lib.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    }
    counts = {name: len(lib.nvmlDeviceGetRetiredPages(gpu.handle, cause)) for name, cause in causes.items()}
    return {**counts, "pending": yes_or_no(lib.nvmlDeviceGetRetiredPagesPendingStatus(gpu.handle))}


def _memory_repair(lib: Any, gpu: Gpu) -> dict[str, bool]:
    channel, tpc = lib.nvmlDeviceGetRepairStatus(gpu.handle)
    return {"channel_pending": yes_or_no(channel), "tpc_pending": yes_or_no(tpc)}


def _recovery_action(lib: Any, gpu: Gpu) -> int:
    """A number that is not known yet is an answer, too; see RECOVERY_ACTIONS."""
    return int(within(_field(lib, gpu, RECOVERY_ACTION), 255))


def _inforom_valid(lib: Any, gpu: Gpu) -> bool:
    try:
        lib.nvmlDeviceValidateInforom(gpu.handle)
    except lib.NVMLError as failure:
        if int(failure.value) == INFOROM_CORRUPTED:
            return False
        raise
    return True


# --- PCIe, NVLink, fabric ---------------------------------------------------------------------------------------------


def pcie(lib: Any, gpu: Gpu) -> dict[str, int | None]:
    questions = {
        "generation": (lib.nvmlDeviceGetCurrPcieLinkGeneration, 16),
        "generation_max": (lib.nvmlDeviceGetMaxPcieLinkGeneration, 16),
        "width": (lib.nvmlDeviceGetCurrPcieLinkWidth, 32),
        "width_max": (lib.nvmlDeviceGetMaxPcieLinkWidth, 32),
    }
    found: dict[str, int | None] = {}
    for name, (ask, most) in questions.items():
        value = optional(lib, partial(ask, gpu.handle))
        found[name] = None if value is None else int(within(int(value), most))
    return _some(lib, found)


def nvlink_states(lib: Any, gpu: Gpu) -> list[dict[str, Any]]:
    """One row for every link that the GPU has, whether or not it is up, with what it leads to."""
    links: list[dict[str, Any]] = []
    for link in range(nvml.NVLINKS_AT_MOST):
        try:
            active = yes_or_no(lib.nvmlDeviceGetNvLinkState(gpu.handle, link))
        except lib.NVMLError as failure:
            # Links are counted from 0 on, so the first that the GPU does not have ends the count.
            if link == 0 or int(failure.value) not in (2, *nvml_messages.NOT_APPLICABLE):
                raise
            break
        links.append({"link": link, "active": active, "remote": _remote(lib, gpu, link) if active else None})
    return links


def _remote(lib: Any, gpu: Gpu, link: int) -> str | None:
    def ask() -> str:
        return normal_address(nvml.text(lib.nvmlDeviceGetNvLinkRemotePciInfo(gpu.handle, link).busId))

    known: str | None = gpu.kept.get(("remote", link))
    if known is None:
        known = gpu.kept[("remote", link)] = optional(lib, ask)
    return known


def _nvlinks(lib: Any, gpu: Gpu) -> list[dict[str, Any]]:
    return [{**row, **_link_errors(lib, gpu, row["link"], row["active"])} for row in nvlink_states(lib, gpu)]


def _link_errors(lib: Any, gpu: Gpu, link: int, active: bool) -> dict[str, int | None]:
    def counter(which: int) -> int | None:
        value = optional(lib, lambda: lib.nvmlDeviceGetNvLinkErrorCounter(gpu.handle, link, which))
        return None if value is None else count(value)

    flit = counter(lib.NVML_NVLINK_ERROR_DL_CRC_FLIT) if active else None
    if flit is None:
        return {"crc_errors": None, "replay_errors": None, "recovery_errors": None}
    return {
        "crc_errors": flit + (counter(lib.NVML_NVLINK_ERROR_DL_CRC_DATA) or 0),
        "replay_errors": counter(lib.NVML_NVLINK_ERROR_DL_REPLAY),
        "recovery_errors": counter(lib.NVML_NVLINK_ERROR_DL_RECOVERY),
    }


def _fabric(lib: Any, gpu: Gpu) -> dict[str, Any]:
    def with_summary() -> Any:
        answer = lib.c_nvmlGpuFabricInfo_v3_t()
        lib.nvmlDeviceGetGpuFabricInfoV(gpu.handle, lib.byref(answer))
        return answer

    def with_health() -> Any:
        answer = lib.c_nvmlGpuFabricInfo_v2_t()
        lib.nvmlDeviceGetGpuFabricInfoV(gpu.handle, lib.byref(answer))
        return answer

    def without() -> Any:
        # Before driver 545 there is no health in it.
        answer = lib.c_nvmlGpuFabricInfo_t()
        lib.nvmlDeviceGetGpuFabricInfo(gpu.handle, lib.byref(answer))
        return answer

    if gpu.kept.get("fabric") is None:
        # Which of its versions the driver knows stays the same as long as it is open.
        try:
            with_summary()
            gpu.kept["fabric"] = with_summary
        except (lib.NVMLLibraryMismatchError, AttributeError):
            gpu.kept["fabric"] = with_health
        except lib.NVMLError as failure:
            if int(failure.value) not in (INVALID_ARGUMENT, FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                raise
            gpu.kept["fabric"] = with_health
    info = _of_two_names(lib, gpu.kept["fabric"], without)
    mask = int(getattr(info, "healthMask", 0))
    unhealthy = [name for name, shift in FABRIC_FLAGS.items() if mask >> shift & 3 == 1]
    shift, width = FABRIC_CONFIGURATION
    if mask >> shift & width > 1:
        unhealthy.append(f"incorrect_configuration_{mask >> shift & width}")
    summary = int(getattr(info, "healthSummary", 0))
    if summary > 1 and not unhealthy:
        # It names no cause, so it is told where nothing else is.
        unhealthy.append(FABRIC_SUMMARIES.get(summary, f"summary_{summary}"))
    # One byte in nvml.h, of which pynvml reads the whole word.
    state = FABRIC_STATES[int(info.state) & 0xFF]
    return {"state": state, "status": int(within(int(info.status), 999)), "unhealthy": unhealthy}


# --- MIG, processes ---------------------------------------------------------------------------------------------------


def mig(lib: Any, gpu: Gpu) -> dict[str, Any]:
    current, pending = (yes_or_no(mode) for mode in lib.nvmlDeviceGetMigMode(gpu.handle))
    instances = []
    for number in range(within(int(lib.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)), 64) if current else 0):
        instance = optional(lib, partial(_mig_instance, lib, gpu, number))
        if instance:
            instances.append(instance)
    return {"enabled": current, "pending": pending, "instances": instances}


def _placement(lib: Any, gpu: Gpu, gpu_instance: int) -> list[int] | None:
    """Where it begins and how much it takes, in the GPU's units of memory; None for who may not know it.

    What is told of the instance without it is not lost for it."""
    try:
        info = lib.nvmlGpuInstanceGetInfo(lib.nvmlDeviceGetGpuInstanceById(gpu.handle, gpu_instance))
    except lib.NVMLError as failure:
        if int(failure.value) in nvml_messages.FATAL:
            raise
        return None
    return [within(int(info.placement.start), MIG_MOST), within(int(info.placement.size), MIG_MOST)]


def _mig_instance(lib: Any, gpu: Gpu, index: int) -> dict[str, Any] | None:
    try:
        instance = lib.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
    except lib.NVMLError as failure:
        # Numbers of instances need not follow one another.
        if int(failure.value) == lib.NVML_ERROR_NOT_FOUND:
            return None
        raise
    name = nvml.text(lib.nvmlDeviceGetName(instance))
    memory = lib.nvmlDeviceGetMemoryInfo(instance)
    total = within(int(memory.total), MEMORY_MOST_BYTES)
    number = within(int(lib.nvmlDeviceGetGpuInstanceId(instance)), MIG_MOST)
    return {
        "uuid": nvml.text(lib.nvmlDeviceGetUUID(instance)),
        # NVIDIA A100-SXM4-40GB MIG 1g.5gb
        "profile": name.rpartition("MIG ")[2],
        "memory_mib": total >> 20,
        # Compute instances of one GPU instance share its memory.
        "gpu_instance": number,
        "compute_instance": within(int(lib.nvmlDeviceGetComputeInstanceId(instance)), MIG_MOST),
        "placement": optional(lib, partial(_placement, lib, gpu, number)),
        "memory_bytes": {"used": within(int(memory.used), total), "free": within(int(memory.free), total)},
    }


def running(lib: Any, gpu: Gpu) -> list[Any]:
    """The compute processes of a GPU."""
    found = _of_two_names(
        lib,
        lambda: lib.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle),
        # Before driver 510.
        lambda: lib.nvmlDeviceGetComputeRunningProcesses_v2(gpu.handle),
    )
    return [process for process in found if within(int(process.pid), PID_MOST, least=1)]


def running_pids(lib: Any, gpu: Gpu) -> list[int]:
    return [int(process.pid) for process in running(lib, gpu)]


def _processes(lib: Any, gpu: Gpu) -> list[dict[str, Any]]:
    found = []
    for process in running(lib, gpu):
        pid, memory = int(process.pid), process.usedGpuMemory
        name, exists = _process(pid)
        found.append(
            {
                "pid": pid,
                "name": name,
                "memory_mib": None if memory is None else within(int(memory) >> 20, MEMORY_MOST_MIB),
                "exists": exists,
            }
        )
    return found


def _process(pid: int) -> tuple[str | None, bool]:
    """Name, and whether it lives: what has ended and is only waiting to be reaped holds nothing by right."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            before, _parenthesis, after = file.read().rpartition(")")
    except OSError:
        # Another user's process may be hidden (hidepid), but it is there.
        return None, _is_there(pid)
    return before.partition("(")[2], after.split()[:1] not in (["Z"], ["X"])


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


QUICK: dict[str, Question] = {
    "temperature_c": _temperature,
    "memory_temperature_c": _memory_temperature,
    "temperature_limits_c": _temperature_limits,
    "clocks_event_reasons": _clocks_event_reasons,
    "power_w": _power,
    "power_limit_w": _power_limit,
    "energy_mj": _energy,
    "clocks_mhz": _clocks,
    "utilization_percent": _utilization,
    "engine_utilization_percent": _engine_utilization,
    "memory_bytes": _memory,
    "ecc_mode": ecc_mode,
    "ecc_volatile": ecc_volatile,
    "ecc_aggregate": ecc_aggregate,
    "ecc_sram": _ecc_sram,
    "remapped_rows": _remapped_rows,
    "retired_pages": _retired_pages,
    "memory_unrepairable": lambda lib, gpu: yes_or_no(lib.nvmlDeviceGetUnrepairableMemoryFlag_v1(gpu.handle)),
    "memory_repair": _memory_repair,
    "recovery_action": _recovery_action,
    "pcie": pcie,
    "pcie_replays": lambda lib, gpu: count(lib.nvmlDeviceGetPcieReplayCounter(gpu.handle)),
    "nvlinks": _nvlinks,
    "fabric": _fabric,
    "persistence_mode": lambda lib, gpu: yes_or_no(lib.nvmlDeviceGetPersistenceMode(gpu.handle)),
    "application_clocks_mhz": _application_clocks,
    "mig": mig,
    "processes": _processes,
}
# Read from flash, and asked for at most twice a minute.
SLOW: dict[str, Question] = {**QUICK, "inforom_valid": _inforom_valid}
