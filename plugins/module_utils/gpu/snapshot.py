# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a host's GPUs, for the rules that judge their health.

A snapshot is {schema, boot_id, time (Unix seconds), uptime (seconds since boot, time asleep included), driver and pci
as in gpu_facts (pci is null where the bus cannot be read), device_files: {path: whether it is there with its right
number}, fabric_manager: {needed, running}, devices}. A device is {index, uuid, minor, pci_address, name, slug,
architecture, compute_capability, memory_mib, numa_node, cpus, not_applicable, error, readings}.

A reading is {"value": ...}, or {"state", "code", "text"} with the state not_applicable (this GPU or driver has no such
thing), lost (the GPU no longer answers) or unknown (the question failed, or its answer makes no sense). What is only
asked in a slow look is absent from a quick one. Of a GPU that is lost, what is known of it without NVML is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import compatibility, device_nodes, driver, nvml, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.readings import QUICK, SLOW, Question
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.session import Session
from ansible_collections.baremetal.gpu.plugins.module_utils.host.boot import boot_id
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text

SCHEMA = 1
FABRIC_MANAGER_PID = "run/nvidia-fabricmanager/nv-fabricmanager.pid"


def bus(root: str = "/") -> list[dict[str, Any]] | None:
    """NVIDIA's devices on the PCI bus; None where it cannot be read."""
    try:
        return pci.scan(root)
    except pci.BusUnreadable:
        return None


def uptime() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _fabric_manager(bus: list[dict[str, Any]] | None, root: str) -> dict[str, Any]:
    """NVSwitches need Fabric Manager, which writes its PID into a file."""
    if not pci.needs_fabric_manager(bus):
        return {"needed": False, "running": None}
    try:
        pid = int(read_text(os.path.join(root, FABRIC_MANAGER_PID)))
    except ValueError:
        return {"needed": True, "running": False}
    return {"needed": True, "running": os.path.exists(os.path.join(root, "proc", str(pid)))}


class _Files:
    """What the host's files say. What is installed changes seldom and takes long to find, so it is kept between looks
    until another module is loaded or a slow look is taken."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._driver: dict[str, Any] | None = None
        self._nodes_of: Any = None
        self._nodes: list[device_nodes.Node] = []

    def read(self, error: dict[str, Any] | None = None, slow: bool = True) -> dict[str, Any]:
        """A snapshot without devices; `error` says why NVML was not asked, as nvml_error in gpu_facts."""
        there = bus(self.root)
        return {
            "schema": SCHEMA,
            "boot_id": boot_id(self.root),
            "time": time.time(),
            "uptime": uptime(),
            "driver": {**self._read_driver(slow), "nvml_error": error},
            "pci": there,
            # Where a call of NVML hangs, reading the driver's files may hang too.
            "device_files": {} if error and error["name"] == "timeout" else self._device_files(slow),
            "fabric_manager": _fabric_manager(there, self.root),
            "devices": [],
        }

    def _read_driver(self, slow: bool) -> dict[str, Any]:
        known = self._driver
        if known is None or slow or driver.loaded(self.root)[0] != known["loaded"]:
            known = driver.read(self.root, os.uname().release)
            known["cuda"] = compatibility.newest_cuda(known["branch"])
            self._driver = known
        else:
            known["nouveau_loaded"] = "nouveau" in driver.loaded_modules(self.root)
        return known

    def _device_files(self, slow: bool) -> dict[str, bool]:
        """Capabilities of MIG are a file each, so they are listed anew only where the GPUs or modules are others."""
        now = device_nodes.registered(self.root)
        if slow or now != self._nodes_of:
            try:
                self._nodes = device_nodes.expected_nodes(self.root)
            except device_nodes.DriverNotLoaded:
                self._nodes = []
            self._nodes_of = now
        if not self._nodes:
            return {}
        # No job fails for want of the others, which NVIDIA's own tools make only when they are used.
        found = {node.path: device_nodes.is_right(node, self.root) for node in self._nodes if node.for_jobs}
        # CUDA needs it, and nothing asks for it as long as its module is not loaded.
        found.setdefault("/dev/nvidia-uvm", False)
        return found


def refused(look: dict[str, Any]) -> bool:
    """Whether NVML as a whole could not be asked, on a host that has GPUs."""
    return bool((look.get("driver") or {}).get("nvml_error") and pci.gpus(look.get("pci") or []))


def without_nvml(error: dict[str, Any] | None, root: str = "/") -> dict[str, Any]:
    """A snapshot of what can be told without NVML; `error` says why it was not asked, as nvml_error in gpu_facts."""
    return _Files(root).read(error)


class Reader:
    """Takes looks, and keeps NVML open in between. Not for the process that must not hang: see nvml.in_child.

    `lib` is pynvml; `trace` is told each question, so that whoever waits knows which GPU hangs. `avoid` are the GPUs
    that are not to be asked: {index: the error to tell in their place}. Opening costs seconds per GPU without
    persistence mode, a look some milliseconds.
    """

    def __init__(self, lib: Any, root: str = "/", trace: nvml.Trace | None = None) -> None:
        self.root = root
        self.trace = trace
        self.avoid: dict[int, dict[str, Any]] = {}
        self.session = Session(lib, root)
        self._files = _Files(root)

    def read(self, slow: bool = False, more: Mapping[str, Question] | None = None) -> dict[str, Any]:
        """One snapshot; `slow` asks also what costs the GPU something, `more` are questions that no look asks.

        What a GPU does raises nothing.
        """
        found = self._files.read(slow=slow)
        bus = found["pci"]
        self.session.trace, self.session.avoid = self.trace, self.avoid
        error = self.session.open([(row["address"], row["driver"]) for row in pci.gpus(bus)])
        answer: dict[str, Any] = {"error": error, "devices": []}
        if error is None:
            answer = self.session.devices({**(more or {}), **(SLOW if slow else QUICK)}, bus)
        found["driver"]["cuda"] = self.session.cuda or found["driver"]["cuda"]
        found["driver"]["nvml_error"] = answer["error"]
        found["devices"] = answer["devices"]
        return found

    def close(self) -> None:
        """Lets go of the GPUs: a GPU cannot be reset while a process has it open."""
        self.session.close()

    def events(self, wait_ms: int) -> Iterator[dict[str, Any]]:
        """Xids as NVML reports them, in the form of kernel_log's events without a sequence, for a thread of its own."""
        for event in self.session.events(wait_ms):
            yield {
                "kind": "nvml_xid",
                "uuid": None,
                **event,
                "text": f"NVML reports Xid {event['xid']}",
                "sequence": None,
                "uptime": uptime(),
                "boot_id": boot_id(self.root),
                "detail": {},
            }
