# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a host's cards, for the rules that judge their health.

A snapshot is {schema, boot_id, time (Unix seconds), uptime (seconds since boot, time asleep included), driver and pci
as in gpu_facts (pci is null where the bus cannot be read), device_files: {path: whether it is there with its right
number}, fabric_manager: {needed, running}, devices}. A device is {index, uuid, minor, pci_address, name, slug,
architecture, compute_capability, memory_mib, numa_node, cpus, error, readings}.

A reading is {"value": ...}, or {"state", "code", "text"} with the state not_applicable (this card or driver has no such
thing), lost (the card no longer answers) or unknown (the question failed). What is only asked in a slow look is absent
from a quick one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import compatibility, devices, driver, nvml, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.snapshot_readings import QUICK, SLOW

SCHEMA = 1
FABRIC_MANAGER_PID = "run/nvidia-fabricmanager/nv-fabricmanager.pid"
# Library, driver and cards are the same as in the look before, as long as these answers are.
_STATIC = ("uuid", "minor", "pci_address", "name", "architecture", "compute_capability", "memory_mib")


def boot_id(root: str = "/") -> str | None:
    try:
        with open(os.path.join(root, "proc/sys/kernel/random/boot_id"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def uptime() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _fabric_manager(bus: list[dict[str, Any]] | None, root: str) -> dict[str, Any]:
    """NVSwitches need Fabric Manager, which writes its PID into a file."""
    if not any(row["kind"] == "nvswitch" for row in bus or ()):
        return {"needed": False, "running": None}
    try:
        with open(os.path.join(root, FABRIC_MANAGER_PID), encoding="ascii") as file:
            pid = int(file.read())
    except (OSError, ValueError):
        return {"needed": True, "running": False}
    return {"needed": True, "running": os.path.exists(os.path.join(root, "proc", str(pid)))}


def _device_files(root: str) -> dict[str, bool]:
    try:
        wanted = devices.expected_nodes(root)
    except devices.DriverNotLoaded:
        return {}
    wrong = {problem.path for problem in devices.compare(wanted, root) if problem.kind != "link_missing"}
    found = {node.path: node.path not in wrong for node in wanted}
    # CUDA needs it, and nothing asks for it as long as its module is not loaded.
    found.setdefault("/dev/nvidia-uvm", False)
    return found


def without_nvml(error: dict[str, Any] | None, root: str = "/") -> dict[str, Any]:
    """A snapshot of what can be told without NVML; `error` says why it was not asked, as nvml_error in gpu_facts."""
    bus: list[dict[str, Any]] | None
    try:
        bus = pci.scan(root)
    except pci.BusUnreadable:
        bus = None
    state = driver.read(root, os.uname().release)
    state["cuda"] = compatibility.newest_cuda(state["branch"])
    state["nvml_error"] = error
    return {
        "schema": SCHEMA,
        "boot_id": boot_id(root),
        "time": time.time(),
        "uptime": uptime(),
        "driver": state,
        "pci": bus,
        "device_files": _device_files(root),
        "fabric_manager": _fabric_manager(bus, root),
        "devices": [],
    }


def _reading(lib: Any, ask: Callable[[Any, Any], Any], handle: Any) -> dict[str, Any]:
    """The answer to one question, or why there is none."""
    try:
        return {"value": ask(lib, handle)}
    except (lib.NVMLLibraryMismatchError, AttributeError) as failure:
        # The library, or the pynvml of the host, is older than the question.
        return {"state": "not_applicable", "code": None, "text": nvml.text(failure)}
    except lib.NVMLError as failure:
        code = int(failure.value)
        state = "not_applicable" if code in nvml.NOT_APPLICABLE else "lost" if code in nvml.FATAL else "unknown"
        return {"state": state, "code": code, "text": nvml.text(failure)}
    except (ValueError, TypeError, OverflowError) as failure:
        return {"state": "unknown", "code": None, "text": f"no sense can be made of the answer: {failure}"}


class Reader:
    """Asks NVML again and again, and keeps it open in between. Not for the process that must not hang: see agent.py.

    `lib` is pynvml. Opening costs seconds per card without persistence mode, a look some milliseconds.
    """

    def __init__(self, lib: Any, root: str = "/") -> None:
        self.lib = lib
        self.root = root
        self.opened = False
        self.handles: dict[int, Any] = {}
        self.rows: dict[int, dict[str, Any]] = {}

    def read(self, slow: bool = False) -> dict[str, Any]:
        """One snapshot; `slow` asks also what costs the card something. What a card does raises nothing."""
        found = without_nvml(None, self.root)
        error = self._open()
        if error is None:
            count = _reading(self.lib, lambda lib, _handle: int(lib.nvmlDeviceGetCount()), None)
            if "value" in count:
                found["devices"] = [self._device(index, slow) for index in range(count["value"])]
            else:
                error = nvml.error_from_code(count["code"] or 999, count["text"])
        if error:
            self._close()
        found["driver"]["nvml_error"] = error
        return found

    def _open(self) -> dict[str, Any] | None:
        if self.opened:
            return None
        try:
            self.lib.nvmlInit()
        except self.lib.NVMLError as failure:
            return nvml.error_from_code(int(failure.value), nvml.text(failure))
        except self.lib.NVMLLibraryMismatchError as failure:
            return nvml.library_too_old(failure)
        self.opened = True
        return None

    def _close(self) -> None:
        """So that the next look begins anew: cards may be others, or be back."""
        if self.opened:
            _reading(self.lib, lambda lib, _handle: lib.nvmlShutdown(), None)
        self.opened = False
        self.handles, self.rows = {}, {}

    def _device(self, index: int, slow: bool) -> dict[str, Any]:
        if index not in self.handles:
            answer = _reading(self.lib, lambda lib, _handle: lib.nvmlDeviceGetHandleByIndex(index), None)
            if "value" not in answer:
                return {"index": index, "error": self._error(answer), "readings": {}}
            self.handles[index] = answer["value"]
        handle = self.handles[index]
        if index not in self.rows:
            row = nvml.device(self.lib, index, self.root)
            kept = {key: row.get(key) for key in ("index", *_STATIC, "slug", "numa_node")}
            kept["error"] = row.get("error")
            address = row.get("pci_address")
            kept["cpus"] = pci.cpus(address, self.root) if address else None
            if kept["error"] is None:
                self.rows[index] = kept
        else:
            kept = self.rows[index]
        readings = {}
        questions = {**QUICK, **(SLOW if slow else {})}
        for key, ask in questions.items():
            readings[key] = _reading(self.lib, ask, handle)
            if readings[key].get("state") == "lost":
                # It answers nothing any more. A handle of it may be of no use when it is back.
                lost = readings[key]
                self.handles.pop(index, None)
                self.rows.pop(index, None)
                return {**kept, "error": self._error(lost), "readings": readings}
        return {**kept, "readings": readings}

    @staticmethod
    def _error(answer: dict[str, Any]) -> dict[str, Any]:
        code = answer["code"]
        return nvml.error_from_code(999 if code is None else code, answer["text"])

    def events(self, wait_ms: int) -> Iterator[dict[str, Any]]:
        """Xids as NVML reports them, in the form of kernel_log's events without a sequence; ends where it has none."""
        lib = self.lib
        try:
            events = lib.nvmlEventSetCreate()
            for handle in self.handles.values():
                if lib.nvmlDeviceGetSupportedEventTypes(handle) & lib.nvmlEventTypeXidCriticalError:
                    lib.nvmlDeviceRegisterEvents(handle, lib.nvmlEventTypeXidCriticalError, events)
        except (lib.NVMLError, lib.NVMLLibraryMismatchError, AttributeError):
            return
        while True:
            try:
                event = lib.nvmlEventSetWait_v2(events, wait_ms)
                address = pci.normal_address(nvml.text(lib.nvmlDeviceGetPciInfo(event.device).busId))
            except lib.NVMLError as failure:
                if int(failure.value) == lib.NVML_ERROR_TIMEOUT:
                    continue
                return
            yield {
                "kind": "nvml_xid",
                "pci_address": address,
                "uuid": None,
                "xid": int(event.eventData),
                "text": f"NVML reports Xid {int(event.eventData)}",
                "sequence": None,
                "uptime": uptime(),
                "boot_id": boot_id(self.root),
                "detail": {},
            }
