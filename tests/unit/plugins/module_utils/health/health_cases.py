# SPDX-License-Identifier: GPL-3.0-or-later
"""Every fault that a look can show: code, how a host comes to it, verdict, action, and the evidence's value."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.unit.plugins.health_host import Change, address, error


class Case(NamedTuple):
    code: str
    change: Change
    verdict: str
    action: str
    value: Any
    scope: str = "device"


def _down(*links: int) -> Change:
    def change(host):
        for link in host.devices[0]["readings"]["nvlinks"]["value"]:
            link["active"] = link["link"] not in links

    return change


def _over_the_gpu(name: str) -> Change:
    """A look came to nothing over the GPU."""
    return lambda h: h.fail({**error(None, name), "device": 0, "asked": "power_w"})


CASES = [
    Case("driver_library_missing", lambda h: h.fail(error(12)), "fatal", "inspect", 12, "node"),
    Case("driver_not_loaded", lambda h: h.fail(error(9)), "fatal", "inspect", 9, "node"),
    Case("driver_library_mismatch", lambda h: h.fail(error(18)), "fatal", "reboot", 18, "node"),
    Case(
        "driver_library_mismatch",
        lambda h: h.fail(error(None, "library_too_old")),
        "fatal",
        "reboot",
        "library_too_old",
        "node",
    ),
    Case("nvml_hang", lambda h: h.fail(error(None, "timeout")), "fatal", "reboot", "timeout", "node"),
    Case("nvml_crash", lambda h: h.fail(error(None, "crashed")), "fatal", "inspect", "crashed", "node"),
    Case("nvml_crash", lambda h: h.fail(error(None, "garbage")), "fatal", "inspect", "garbage", "node"),
    Case("nvml_error", lambda h: h.fail(error(999)), "fatal", "reboot", 999, "node"),
    Case("gpu_count", lambda h: h.policy.update(expected={"gpus": 8}), "fatal", "inspect", 1, "node"),
    Case(
        "fabric_manager_down",
        lambda h: h.fabric_manager.update(needed=True, running=False),
        "fatal",
        "inspect",
        False,
        "node",
    ),
    Case(
        "node_device_file_missing",
        lambda h: h.device_files.update({"/dev/nvidia-uvm": False}),
        "fatal",
        "inspect",
        ["/dev/nvidia-uvm"],
        "node",
    ),
    Case("gpu_missing", lambda h: h.devices.clear(), "fatal", "reboot", address(0)),
    Case("gpu_lost", lambda h: h.lose(), "fatal", "reboot", 15),
    Case("gpu_reset_required", lambda h: h.lose(code=16), "fatal", "reset_gpu", 16),
    Case("gpu_power_missing", lambda h: h.lose(code=8), "fatal", "inspect", 8),
    Case("gpu_hang", _over_the_gpu("timeout"), "fatal", "reboot", "power_w"),
    Case("gpu_crash", _over_the_gpu("crashed"), "fatal", "inspect", "power_w"),
    Case("gpu_error", lambda h: h.lose(code=999), "fatal", "reboot", 999),
    Case("ecc_uncorrected", lambda h: h.change("ecc_volatile", uncorrected=1), "fatal", "reset_gpu", 1),
    Case("ecc_sram_uncorrected", lambda h: h.change("ecc_sram", volatile_uncorrected=2), "degraded", "reset_gpu", 2),
    Case("memory_unrepairable", lambda h: h.read("memory_unrepairable", True), "fatal", "rma", True),
    Case(
        "memory_repair_pending",
        lambda h: h.change("memory_repair", tpc_pending=True),
        "degraded",
        "reset_gpu",
        ["tpc_pending"],
    ),
    Case("gpu_recovery_action", lambda h: h.read("recovery_action", 2), "fatal", "reboot", 2),
    Case("ecc_sram_threshold", lambda h: h.change("ecc_sram", threshold_exceeded=True), "fatal", "rma", True),
    Case("row_remap_pending", lambda h: h.change("remapped_rows", pending=True), "degraded", "reset_gpu", True),
    Case("row_remap_failed", lambda h: h.change("remapped_rows", failure=True), "fatal", "rma", True),
    Case(
        "retired_pages_pending",
        lambda h: h.read("retired_pages", {"single_bit": 1, "double_bit": 0, "pending": True}),
        "degraded",
        "reset_gpu",
        True,
    ),
    Case(
        "retired_pages_limit",
        lambda h: h.read("retired_pages", {"single_bit": 40, "double_bit": 23, "pending": False}),
        "fatal",
        "rma",
        63,
    ),
    Case("thermal_slowdown", lambda h: h.read("clocks_event_reasons", 0x48), "degraded", "inspect", "0x48"),
    Case("thermal_slowdown", lambda h: h.read("clocks_event_reasons", 0x8), "degraded", "inspect", "0x8"),
    Case("temperature_limit", lambda h: h.read("temperature_c", 92), "degraded", "inspect", 92),
    Case("temperature_limit", lambda h: h.read("memory_temperature_c", 96), "degraded", "inspect", 96),
    Case("power_brake", lambda h: h.read("clocks_event_reasons", 0x88), "degraded", "inspect", "0x88"),
    Case("pcie_width", lambda h: h.change("pcie", width=8), "degraded", "inspect", 8),
    Case(
        "pcie_generation",
        lambda h: (h.change("pcie", generation=3), h.change("utilization_percent", gpu=90)),
        "degraded",
        "inspect",
        3,
    ),
    Case("nvlink_down", _down(4, 5), "degraded", "inspect", 10),
    Case(
        "fabric_state",
        lambda h: h.read("fabric", {"state": "in_progress", "status": 0, "unhealthy": []}),
        "fatal",
        "inspect",
        "in_progress",
    ),
    Case(
        "fabric_state",
        lambda h: h.read("fabric", {"state": "completed", "status": 15, "unhealthy": []}),
        "fatal",
        "inspect",
        "completed with status 15",
    ),
    Case(
        "fabric_unhealthy",
        lambda h: h.read("fabric", {"state": "completed", "status": 0, "unhealthy": ["degraded_bandwidth"]}),
        "degraded",
        "inspect",
        ["degraded_bandwidth"],
    ),
    Case("persistence_mode", lambda h: h.read("persistence_mode", False), "degraded", "inspect", False),
    Case(
        "clocks_locked", lambda h: h.change("application_clocks_mhz", graphics=765), "degraded", "inspect", [765, 1215]
    ),
    Case("mig_mode", lambda h: h.policy.update(expected={"mig": True}), "degraded", "inspect", False),
    Case("mig_mode", lambda h: h.change("mig", pending=True), "degraded", "reset_gpu", False),
    Case("inforom_corrupt", lambda h: h.read("inforom_valid", False), "degraded", "rma", False),
    Case(
        "zombie_process",
        lambda h: h.read("processes", [{"pid": 4711, "name": None, "memory_mib": 900, "exists": False}]),
        "degraded",
        "reset_gpu",
        [4711],
    ),
    Case(
        "device_file_missing",
        lambda h: h.device_files.update({"/dev/nvidia0": False}),
        "fatal",
        "inspect",
        "/dev/nvidia0",
    ),
]
# Shares of time and rates cannot be told by one look, nor which links of a GPU should be up.
NEEDS_HISTORY = ("thermal_slowdown", "temperature_limit", "power_brake", "nvlink_down")
