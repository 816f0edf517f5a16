# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of GPUs that a job can change: read before it, compared and put back after it.

NVML is called through ctypes and not through pynvml, whose source takes longer to compile than a job takes to start.
Everything runs in a child with a deadline, because a GPU that is lost can make a call hang.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import child

LIBRARY = "libnvidia-ml.so.1"
DEADLINE_S = 4.0
SUCCESS, INSUFFICIENT_SIZE = 0, 7
CLOCK_GRAPHICS, CLOCK_MEMORY = 0, 2
# Put back in this order. What else a job has changed is only told.
PUT_BACK = ("compute_mode", "application_clocks", "power_limit_mw")
TOLD = ("persistence_mode", "mig")
MEMORY_TOLERANCE = 64 << 20
PROCESSES_AT_MOST = 1024


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _FirstProcess(ctypes.Structure):
    """As drivers before branch 450 have it."""

    _fields_ = (("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong))


PROCESSES: tuple[tuple[str, Any], ...] = (
    ("nvmlDeviceGetComputeRunningProcesses_v3", _Process),
    ("nvmlDeviceGetComputeRunningProcesses_v2", _Process),
    ("nvmlDeviceGetComputeRunningProcesses", _FirstProcess),
)


class Failed(Exception):
    """NVML did not answer; the message says how."""


class _Library:
    """NVML, opened. What a GPU or a driver does not have is None."""

    def __init__(self, path: str) -> None:
        try:
            self._calls = ctypes.CDLL(path)
        except OSError as failure:
            raise Failed(f"there is no NVML: {failure}") from None
        code = self.call("nvmlInit_v2")
        if code != SUCCESS:
            raise Failed(f"NVML does not start: {code}")

    def call(self, name: str, *arguments: Any) -> int | None:
        """The return code; None where the driver's library does not have the function."""
        try:
            function = getattr(self._calls, name)
        except AttributeError:
            return None
        return int(function(*arguments))

    def numbers(self, name: str, gpu: Any, count: int = 1, *arguments: Any) -> list[int] | None:
        values = [ctypes.c_uint() for _number in range(count)]
        code = self.call(name, gpu, *arguments, *map(ctypes.byref, values))
        return [value.value for value in values] if code == SUCCESS else None

    def number(self, name: str, gpu: Any, *arguments: Any) -> int | None:
        found = self.numbers(name, gpu, 1, *arguments)
        return found[0] if found else None

    def by_minor(self, minors: Iterable[int]) -> dict[int, Any]:
        """The handles of GPUs; one that does not answer is left out."""
        wanted, found, count = set(minors), {}, ctypes.c_uint()
        if self.call("nvmlDeviceGetCount_v2", ctypes.byref(count)) != SUCCESS:
            return {}
        for index in range(min(count.value, 64)):
            gpu = ctypes.c_void_p()
            if self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(gpu)) != SUCCESS:
                continue
            minor = self.number("nvmlDeviceGetMinorNumber", gpu)
            if minor in wanted:
                found[minor] = gpu
            if len(found) == len(wanted):
                break
        return found

    def settings(self, gpu: Any) -> dict[str, Any]:
        clocks = [self.number("nvmlDeviceGetApplicationsClock", gpu, clock) for clock in (CLOCK_MEMORY, CLOCK_GRAPHICS)]
        memory = _Memory()
        has_memory = self.call("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory)) == SUCCESS
        return {
            "compute_mode": self.number("nvmlDeviceGetComputeMode", gpu),
            "application_clocks": None if None in clocks else clocks,
            "power_limit_mw": self.number("nvmlDeviceGetPowerManagementLimit", gpu),
            "persistence_mode": self.number("nvmlDeviceGetPersistenceMode", gpu),
            "mig": self.numbers("nvmlDeviceGetMigMode", gpu, 2),
            "memory_used": memory.used if has_memory else None,
        }

    def processes(self, gpu: Any) -> list[int]:
        """The PIDs of who computes on a GPU."""
        for name, kind in PROCESSES:
            count, rows = ctypes.c_uint(PROCESSES_AT_MOST), (kind * PROCESSES_AT_MOST)()
            code = self.call(name, gpu, ctypes.byref(count), rows)
            if code == SUCCESS:
                return [row.pid for row in rows[: count.value]]
        return []

    def put_back(self, gpu: Any, name: str, value: Any) -> int | None:
        if name == "compute_mode":
            return self.call("nvmlDeviceSetComputeMode", gpu, ctypes.c_uint(value))
        if name == "application_clocks":
            return self.call("nvmlDeviceSetApplicationsClocks", gpu, *map(ctypes.c_uint, value))
        return self.call("nvmlDeviceSetPowerManagementLimit", gpu, ctypes.c_uint(value))


def _ask(work: Callable[[_Library], dict[str, Any]], library: str, deadline_s: float) -> dict[str, Any]:
    def guarded() -> dict[str, Any]:
        try:
            return work(_Library(library))
        except Failed as failure:
            return {"error": str(failure)}

    try:
        found = child.answer(guarded, deadline_s)
    except child.Failed as failure:
        raise Failed(f"NVML: {failure}") from None
    if "error" in found:
        raise Failed(found["error"])
    return found


def read(minors: Sequence[int], library: str = LIBRARY, deadline_s: float = DEADLINE_S) -> dict[str, dict[str, Any]]:
    """Minor, as a text -> the GPU's settings, and as `processes` the PIDs of who computes on it. Raises Failed."""

    def work(nvml: _Library) -> dict[str, Any]:
        handles = nvml.by_minor(minors)
        return {str(minor): {**nvml.settings(gpu), "processes": nvml.processes(gpu)} for minor, gpu in handles.items()}

    return _ask(work, library, deadline_s)


def put_back(
    changes: Mapping[str, Mapping[str, Any]], library: str = LIBRARY, deadline_s: float = DEADLINE_S
) -> dict[str, dict[str, int]]:
    """Sets what is given, by the minor as a text, and answers the codes of what NVML refused. Raises Failed."""

    def work(nvml: _Library) -> dict[str, Any]:
        handles = nvml.by_minor(map(int, changes))
        refused: dict[str, Any] = {}
        for minor, values in changes.items():
            gpu = handles.get(int(minor))
            for name, value in values.items():
                code = nvml.put_back(gpu, name, value) if gpu is not None else -1
                if code != SUCCESS:
                    refused.setdefault(minor, {})[name] = -1 if code is None else code
        return refused

    return _ask(work, library, deadline_s)


def _is_same_kind(one: Any, other: Any) -> bool:
    """Whether a value that was written down is one that can be set."""
    if isinstance(other, list):
        return isinstance(one, list) and len(one) == len(other) and all(map(_is_number, one))
    return _is_number(one) and _is_number(other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def to_put_back(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one GPU that are to be set again, with the values from before the job."""
    return {
        name: before[name]
        for name in PUT_BACK
        if _is_same_kind(before.get(name), now.get(name)) and before[name] != now[name]
    }


def to_tell(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What else a job has left changed, as [before, now]."""
    found = {
        name: [before[name], now[name]]
        for name in TOLD
        if _is_same_kind(before.get(name), now.get(name)) and before[name] != now[name]
    }
    had, has = before.get("memory_used"), now.get("memory_used")
    # With processes left it is they who have it.
    if isinstance(had, int) and isinstance(has, int) and has > had + MEMORY_TOLERANCE and not now.get("processes"):
        found["memory_used"] = [had, has]
    return found
