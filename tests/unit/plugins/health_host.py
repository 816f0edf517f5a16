# SPDX-License-Identifier: GPL-3.0-or-later
"""A hand-made host whose health can be looked at: snapshots as in gpu/snapshot.py, and lines of the kernel."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log

BOOT = 1_790_000_000.0

# What an A100 that is well answers, idle.
READINGS: dict[str, Any] = {
    "temperature_c": 34,
    "memory_temperature_c": 36,
    "temperature_limits_c": {"slowdown": 92, "shutdown": 95, "gpu_max": 85, "memory_max": 95},
    "clocks_event_reasons": 0x1,
    "power_w": 52.0,
    "power_limit_w": 400.0,
    "energy_mj": 1_000_000,
    "clocks_mhz": {"sm": 210, "memory": 1215},
    "utilization_percent": {"gpu": 0, "memory": 0},
    "engine_utilization_percent": {"encoder": 0, "decoder": 0},
    "memory_bytes": {"total": 40960 << 20, "used": 0, "free": 40537 << 20, "reserved": 423 << 20},
    "ecc_mode": {"enabled": True, "pending": True},
    "ecc_volatile": {"corrected": 0, "uncorrected": 0},
    "ecc_aggregate": {"corrected": 3, "uncorrected": 0},
    "ecc_sram": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "threshold_exceeded": False},
    "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
    "retired_pages": None,
    "memory_unrepairable": False,
    "memory_repair": {"channel_pending": False, "tpc_pending": False},
    "recovery_action": 0,
    "pcie": {"generation": 1, "generation_max": 4, "width": 16, "width_max": 16},
    "pcie_replays": 0,
    "nvlinks": [
        {
            "link": link,
            "active": True,
            "remote": None,
            "crc_errors": 0,
            "replay_errors": 0,
            "recovery_errors": 0,
        }
        for link in range(12)
    ],
    "fabric": {"state": "not_supported", "status": 0, "unhealthy": []},
    "persistence_mode": True,
    "application_clocks_mhz": {
        "graphics": 1095,
        "memory": 1215,
        "default_graphics": 1095,
        "default_memory": 1215,
    },
    "mig": {"enabled": False, "pending": False, "instances": []},
    "processes": [],
    "inforom_valid": True,
}

NVML_ERRORS = {
    9: ("driver_not_loaded", "Driver Not Loaded"),
    12: ("library_not_found", "NVML Shared Library Not Found"),
    18: ("lib_rm_version_mismatch", "RM has detected an NVML/RM version mismatch."),
    999: ("unknown", "Unknown Error"),
    4: ("no_permission", "Insufficient Permissions"),
}


def error(code: int | None, name: str = "", text: str = "") -> dict[str, Any]:
    known = NVML_ERRORS.get(code or 0, (name or f"nvml_{code}", text or f"code {code}"))
    return {"code": code, "name": name or known[0], "text": text or known[1], "remedy": "mend it"}


def uuid(number: int) -> str:
    return f"GPU-5c3a1f2e-0000-4000-8000-{number:012x}"


def address(number: int) -> str:
    return f"0000:{0x3B + number:02x}:00.0"


class Host:
    """A host with `gpus` GPUs, the judge's history of it, and a clock. What a test changes, the next look shows."""

    def __init__(self, gpus: int = 1, policy: dict[str, Any] | None = None, slug: str = "a100-sxm4-40gb") -> None:
        self.policy = policy or {}
        self.boot_number = 0
        self.uptime = 1000.0
        self.wall_offset = BOOT
        self.sequence = 100
        self.driver: dict[str, Any] = {"installed": "550.163.01", "loaded": "550.163.01", "nvml_error": None}
        self.fabric_manager: dict[str, Any] = {"needed": False, "running": None}
        self.pci = [{"address": address(n), "kind": "gpu", "driver": "nvidia"} for n in range(gpus)]
        self.device_files = {
            "/dev/nvidiactl": True,
            "/dev/nvidia-uvm": True,
            **{f"/dev/nvidia{n}": True for n in range(gpus)},
        }
        self.devices = [
            {
                "index": n,
                "uuid": uuid(n),
                "minor": n,
                "pci_address": address(n),
                "name": "NVIDIA A100-SXM4-40GB",
                "slug": slug,
                "architecture": "ampere",
                "compute_capability": "8.0",
                "memory_mib": 40960,
                "numa_node": 0,
                "cpus": "0-31",
                "not_applicable": [],
                "error": None,
                "readings": {
                    key: {"state": "not_applicable", "code": 3, "text": "Not Supported"}
                    if value is None
                    else {"value": copy.deepcopy(value)}
                    for key, value in READINGS.items()
                },
            }
            for n in range(gpus)
        ]
        self.history: dict[str, Any] = {}
        self.report: dict[str, Any] = {}

    @property
    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self.boot_number:012d}"

    @property
    def time(self) -> float:
        return self.wall_offset + self.uptime

    def read(self, key: str, value: Any, gpu: int = 0) -> None:
        self.devices[gpu]["readings"][key] = {"value": value}

    def change(self, key: str, device: int = 0, **parts: Any) -> None:
        self.devices[device]["readings"][key]["value"].update(parts)

    def lose(self, gpu: int = 0, code: int = 15) -> None:
        """NVML answers to every question about the GPU with this code, and gives no handle."""
        index = self.devices[gpu]["index"]
        unknown = dict.fromkeys(self.devices[gpu])
        self.devices[gpu] = {
            **unknown,
            "index": index,
            "pci_address": address(gpu),
            "error": error(code),
            "readings": {},
        }

    def fail(self, failure: dict[str, Any]) -> None:
        """NVML as a whole cannot be asked."""
        self.driver["nvml_error"] = failure
        self.devices = []

    def snapshot(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "schema": 1,
                "boot_id": self.boot_id,
                "time": self.time,
                "uptime": self.uptime,
                "driver": self.driver,
                "pci": self.pci,
                "device_files": self.device_files,
                "fabric_manager": self.fabric_manager,
                "devices": self.devices,
            }
        )

    def look(self, times: int = 1, interval: float = 15.0) -> dict[str, Any]:
        for _time in range(times):
            self.uptime += interval
            self._judge(self.snapshot(), [])
        return self.report

    def lines(self, *lines: str) -> list[str]:
        """The lines as records of /dev/kmsg, now."""
        records = []
        for line in lines:
            self.sequence += 1
            records.append(f"4,{self.sequence},{int(self.uptime * 1e6)},-;{line}")
        return records

    def log(self, *lines: str) -> dict[str, Any]:
        return self.replay(self.lines(*lines))

    def replay(self, records: list[str]) -> dict[str, Any]:
        """The kernel's records reach the judge, between two looks."""
        return self.tell(kernel_log.Parser(self.boot_id).events(records))

    def tell(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        self._judge(None, events)
        return self.report

    def xid(self, number: int, gpu: int = 0, rest: str = "") -> dict[str, Any]:
        return self.log(f"NVRM: Xid (PCI:{address(gpu)[:-2]}): {number}, {rest}")

    def reboot(self) -> None:
        self.wall_offset += self.uptime
        self.boot_number += 1
        self.uptime, self.sequence = 400.0, 100

    def restart(self) -> None:
        """The process that keeps the history ends and starts; only what JSON carries is left."""
        self.history = json.loads(json.dumps(self.history))

    def clear(self, device: str | None = None, code: str | None = None) -> list[dict[str, Any]]:
        self.history, cleared = health.clear(self.history, device, code)
        self.tell([])
        return cleared

    def _judge(self, look: dict[str, Any] | None, events: list[dict[str, Any]]) -> None:
        now = {"time": self.time, "uptime": self.uptime}
        self.report, self.history = health.judge(look, events, self.history, self.policy, now)

    def gpu(self, number: int = 0) -> dict[str, Any]:
        return next(
            row
            for row in self.report["devices"]
            if row["uuid"] == uuid(number) or row["pci_address"] == address(number)
        )

    def codes(self, number: int | None = 0) -> list[str]:
        part = self.report if number is None else self.gpu(number)
        return [reason["code"] for reason in part["reasons"]]

    def reason(self, code: str, number: int | None = 0) -> dict[str, Any]:
        part = self.report if number is None else self.gpu(number)
        return next(reason for reason in part["reasons"] if reason["code"] == code)


Change = Callable[[Host], Any]
