# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The codes of the health checks: what each means, how bad it is, how sure one has to be, and what to do.

Codes are stable: alerts, policies and runbooks name them. docs/health-codes.md is checked against this table.
"""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("ok", "fail", "unknown", "not_applicable")

_RESET = "drain the GPU and reset it with `sudo nvidia-smi --gpu-reset -i UUID`; reboot the host if it cannot be reset"
# Action -> what to do, where the code has no words of its own for it; from the mildest to the most expensive.
_REMEDIES = {
    "none": "nothing has to be done now",
    "restart_app": "restart the application; if it happens again, look for the error in the application",
    "inspect": "look at the GPU: its seat, its power cables, its bridges and cables; then reboot the host",
    "reset_gpu": _RESET,
    "reboot": "drain the host and reboot it",
    "rma": "have the GPU replaced: resets and reboots have not helped",
}
ACTIONS = tuple(_REMEDIES)

# How a fault ends: by so many good looks in a row; or by good looks after the next boot only.
BY_LOOKS, BY_BOOT = "looks", "boot"

_RESEAT = (
    "reseat the GPU and its cables at the next opportunity; if that does not help, try another slot, then replace the "
    "GPU"
)
_COOLING = "check fans, filters, air flow and the temperature of the room, and whether other GPUs are hot too"
_NODE_ROLE = "run `gpuops up --tags driver` for the host"


@dataclass(frozen=True)
class Code:
    """`looks` looks in a row must fail before it counts; with `share` it is a share of time instead (see policy.py).

    `action` comes first, and `remedy` has the words for it; see `remedy()`.
    """

    code: str
    scope: str
    meaning: str
    threshold: str
    verdict: str
    action: str
    remedy: str
    looks: int = 1
    share: bool = False
    ends: str = BY_LOOKS


_NODE = (
    Code(
        "driver_library_missing",
        "node",
        "the host has GPUs, but the driver's library libnvidia-ml.so.1 is not there",
        "NVML's code 12",
        "fatal",
        "inspect",
        _NODE_ROLE,
    ),
    Code(
        "driver_not_loaded",
        "node",
        "the host has GPUs, but the driver's kernel module is not loaded",
        "NVML's code 9",
        "fatal",
        "inspect",
        "load it with `sudo modprobe nvidia`; if that fails, `sudo dmesg` says why: no module for this kernel, "
        "nouveau bound to the GPU, or Secure Boot",
    ),
    Code(
        "driver_library_mismatch",
        "node",
        "the driver's library and the loaded kernel module have different versions, as after an update",
        "NVML's code 18, or a library without the functions of this driver",
        "fatal",
        "reboot",
        "drain the host, then reload the module or reboot",
    ),
    Code(
        "nvml_hang",
        "node",
        "a call of NVML does not return; one faulty GPU can cause this for the whole host",
        "no answer within the deadline",
        "fatal",
        "reboot",
        "look for an Xid in `sudo dmesg`, drain the host and reboot it",
        looks=2,
    ),
    Code(
        "nvml_crash",
        "node",
        "the process that reads NVML crashes or gets unusable answers",
        "no usable answer",
        "fatal",
        "inspect",
        "reinstall the driver's libraries: " + _NODE_ROLE,
        looks=3,
    ),
    Code(
        "nvml_error",
        "node",
        "NVML refuses to start",
        "any other code of NVML",
        "fatal",
        "reboot",
        "look into `sudo dmesg` for Xid and NVRM lines; reboot the host if nothing else is found",
        looks=3,
    ),
    Code(
        "gpu_count",
        "node",
        "the PCI bus has fewer or more GPUs than the site says",
        "`expected.gpus` of the policy",
        "fatal",
        "inspect",
        "find the GPU that is missing on the bus, reseat it and check its power; or correct `expected.gpus`",
    ),
    Code(
        "fabric_manager_down",
        "node",
        "the NVSwitches of the host need the Fabric Manager, and it does not run",
        "not running, `fabric_grace_s` after boot",
        "fatal",
        "inspect",
        "`sudo systemctl start nvidia-fabricmanager`; it needs the version of the driver, and `sudo journalctl -u "
        "nvidia-fabricmanager` says why it ended",
        looks=3,
    ),
    Code(
        "sxid_fatal",
        "node",
        "an NVSwitch reported an error after which the NVLinks through it cannot be trusted",
        "one SXid whose line says Fatal, or no severity that is known",
        "fatal",
        "reboot",
        "drain the host and reboot it; if it happens again, have the NVSwitch and the GPUs at the links checked",
        ends=BY_BOOT,
    ),
    Code(
        "sxid_degraded",
        "node",
        "an NVSwitch reported an error that does not stop its work",
        "one SXid whose line says Non-fatal",
        "degraded",
        "inspect",
        "see `sudo journalctl -u nvidia-fabricmanager` and look for Xids of the GPUs at the links; if it happens "
        "again, reset the GPUs together with the NVSwitches",
        ends=BY_BOOT,
    ),
    Code(
        "node_device_file_missing",
        "node",
        "a file of all GPUs, such as /dev/nvidiactl, is missing or has a wrong number",
        "every file that jobs open",
        "fatal",
        "inspect",
        "run `sudo nvidia-modprobe -c 0 -u`, or `gpuops up --tags driver` for the host",
    ),
    Code(
        "check_failed",
        "node",
        "a health check failed with an error of its own, so its result is unknown",
        "every check",
        "degraded",
        "inspect",
        "see the traceback in `sudo journalctl -u baremetal-gpu-agent`, and report it to the collection's maintainers",
    ),
)

_DEVICE = (
    Code(
        "gpu_missing",
        "device",
        "a GPU that is on the PCI bus is not listed by NVML, or a known GPU is no longer on the bus",
        "every GPU on the bus and every known GPU",
        "fatal",
        "reboot",
        "drain the host and reboot it; if the GPU is still missing, reseat it and check its power. If it was removed "
        "on purpose, run `sudo gpu-agent clear` on the host",
    ),
    Code(
        "gpu_lost",
        "device",
        "NVML lists the GPU, but it cannot be reached any more",
        "NVML's code 15",
        "fatal",
        "reboot",
        "drain the host and reboot it; if it happens again, reseat the GPU and check its power, then replace it",
        ends=BY_BOOT,
    ),
    Code(
        "gpu_reset_required",
        "device",
        "the GPU says that it has to be reset",
        "NVML's code 16",
        "fatal",
        "reset_gpu",
        _RESET,
    ),
    Code(
        "gpu_off_bus",
        "device",
        "the kernel's log says that the GPU fell off the PCI bus",
        "one line, with or without Xid 79 beside it",
        "fatal",
        "reboot",
        "drain the host and reboot it; if it happens again, reseat the GPU and check its power, then replace it",
        ends=BY_BOOT,
    ),
    Code(
        "gpu_power_missing",
        "device",
        "the GPU lacks power from its own cable",
        "NVML's code 8",
        "fatal",
        "inspect",
        "connect the GPU's power cables, and check that the power supply is strong enough",
    ),
    Code(
        "gpu_error",
        "device",
        "NVML lists the GPU, but gives no access to it",
        "any other code of NVML",
        "fatal",
        "reboot",
        "look into `sudo dmesg` for Xid and NVRM lines; drain the host and reboot it",
        looks=2,
    ),
    Code(
        "gpu_hang",
        "device",
        "a call of NVML about this GPU does not return",
        "no answer within the deadline",
        "fatal",
        "reboot",
        "look for an Xid in `sudo dmesg`, drain the host and reboot it; if it happens again, replace the GPU",
        looks=2,
    ),
    Code(
        "gpu_crash",
        "device",
        "the process that reads NVML crashes at this GPU",
        "no usable answer",
        "fatal",
        "inspect",
        "reinstall the driver's libraries: "
        + _NODE_ROLE
        + "; if only this GPU is affected, drain the host and reboot it",
        looks=2,
    ),
    Code(
        "xid_fatal",
        "device",
        "the driver reported an Xid after which the GPU cannot be trusted",
        "one Xid that the table or the policy calls fatal",
        "fatal",
        "reset_gpu",
        _RESET,
        ends=BY_BOOT,
    ),
    Code(
        "xid_degraded",
        "device",
        "the driver reported an Xid after which the GPU works, but should be looked after",
        "one Xid that the table or the policy calls degraded",
        "degraded",
        "reset_gpu",
        _RESET,
        ends=BY_BOOT,
    ),
    Code(
        "ecc_uncorrected",
        "device",
        "memory errors that could not be corrected since the driver was loaded",
        "more than `ecc_volatile_uncorrected`",
        "fatal",
        "reset_gpu",
        _RESET,
    ),
    Code(
        "ecc_sram_uncorrected",
        "device",
        "errors in the GPU's SRAM that could not be corrected since the driver was loaded",
        "more than `ecc_sram_uncorrected`",
        "degraded",
        "reset_gpu",
        _RESET,
        looks=3,
    ),
    Code(
        "ecc_sram_threshold",
        "device",
        "the GPU has had more errors in its SRAM than NVIDIA allows",
        "the GPU's own flag",
        "fatal",
        "rma",
        "have the GPU replaced",
    ),
    Code(
        "row_remap_pending",
        "device",
        "the next reset replaces a row of memory by a spare one (A100 and later)",
        "the GPU's own flag",
        "degraded",
        "reset_gpu",
        _RESET,
        looks=3,
    ),
    Code(
        "row_remap_failed",
        "device",
        "a row of memory could not be replaced: no spare row is left",
        "the GPU's own flag",
        "fatal",
        "rma",
        "have the GPU replaced",
    ),
    Code(
        "retired_pages_pending",
        "device",
        "the next load of the driver retires a page of memory (before A100)",
        "the GPU's own flag",
        "degraded",
        "reset_gpu",
        _RESET,
        looks=3,
    ),
    Code(
        "retired_pages_limit",
        "device",
        "the GPU has retired as many pages of memory as it can",
        "`retired_pages` or more",
        "fatal",
        "rma",
        "have the GPU replaced",
    ),
    Code(
        "memory_unrepairable",
        "device",
        "the GPU's memory has faults that cannot be repaired (Hopper and later, driver 580 and later)",
        "the GPU's own flag",
        "fatal",
        "rma",
        "have the GPU replaced",
    ),
    Code(
        "memory_repair_pending",
        "device",
        "the next reset repairs a part of the GPU (driver 580 and later)",
        "the GPU's own flags",
        "degraded",
        "reset_gpu",
        _RESET,
        looks=3,
    ),
    Code(
        "gpu_recovery_action",
        "device",
        "the driver recommends a recovery of the GPU: a reset, a drain or a reboot (driver 570 and later)",
        "any recommendation but none",
        "fatal",
        "reset_gpu",
        _RESET,
    ),
    Code(
        "thermal_slowdown",
        "device",
        "the GPU slows itself down because it is too hot; the driver's power cap is normal and does not count",
        "hardware slowdown for `share_bad_s` of the last `share_window_s`",
        "degraded",
        "inspect",
        _COOLING,
        share=True,
    ),
    Code(
        "temperature_limit",
        "device",
        "the GPU or its memory is at the temperature at which it slows down",
        "the GPU's own limit less `temperature_margin_c`, for `share_bad_s` of the last `share_window_s`",
        "degraded",
        "inspect",
        _COOLING,
        share=True,
    ),
    Code(
        "power_brake",
        "device",
        "the power supply of the machine slows the GPU down",
        "power brake for `share_bad_s` of the last `share_window_s`",
        "degraded",
        "inspect",
        "check the power supplies and their cables, and the power budget of the chassis and the rack",
        share=True,
    ),
    Code(
        "pcie_width",
        "device",
        "the PCIe link has fewer lanes than GPU and slot support",
        "width below the maximum",
        "degraded",
        "inspect",
        _RESEAT,
        looks=3,
    ),
    Code(
        "pcie_generation",
        "device",
        "the PCIe link is slower than GPU and slot support, although the GPU is busy",
        "generation below the maximum at a load of `load_percent` or more",
        "degraded",
        "inspect",
        _RESEAT,
        looks=3,
    ),
    Code(
        "pcie_replays",
        "device",
        "the PCIe link resends many packets",
        "`pcie_replays_per_lane` of the generation, times the lanes, in a minute",
        "degraded",
        "inspect",
        _RESEAT,
        looks=2,
    ),
    Code(
        "nvlink_down",
        "device",
        "an NVLink is down that was up before, or that is up on other GPUs of this model",
        "every such link",
        "degraded",
        "inspect",
        "look for Xid 74 in `sudo dmesg`; reset the GPU, then check bridges and NVSwitches",
        looks=3,
    ),
    Code(
        "nvlink_errors",
        "device",
        "the NVLinks of the GPU have errors",
        "`nvlink_crc_errors`, `nvlink_replay_errors` or `nvlink_recovery_errors` in a minute",
        "degraded",
        "inspect",
        "reset the GPU; if that does not help, check bridges and NVSwitches, then replace the GPU",
        looks=2,
    ),
    Code(
        "fabric_state",
        "device",
        "the GPU has not joined the NVSwitch fabric, so CUDA does not start on it",
        "not completed, `fabric_grace_s` after boot",
        "fatal",
        "inspect",
        "check nvidia-fabricmanager with `sudo journalctl -u nvidia-fabricmanager`, and that it has the version of "
        "the driver; then reset the GPUs",
        looks=3,
    ),
    Code(
        "fabric_unhealthy",
        "device",
        "the NVSwitch fabric of the GPU reports a fault",
        "every flag of the fabric's health",
        "degraded",
        "inspect",
        "see `sudo journalctl -u nvidia-fabricmanager`; reset the GPUs",
        looks=3,
    ),
    Code(
        "persistence_mode",
        "device",
        "persistence mode is off, so the first use of an idle GPU takes seconds",
        "`expected.persistence_mode` of the policy",
        "degraded",
        "inspect",
        "run `gpuops up --tags driver` for the host, which starts nvidia-persistenced",
        looks=3,
    ),
    Code(
        "clocks_locked",
        "device",
        "the application clocks are not the GPU's default clocks",
        "the GPU's default clocks",
        "degraded",
        "inspect",
        "set them back with `sudo nvidia-smi --reset-applications-clocks -i UUID`",
        looks=3,
    ),
    Code(
        "mig_mode",
        "device",
        "the MIG mode is not what the policy says, or a change of it waits for a reset",
        "`expected.mig` of the policy",
        "degraded",
        "inspect",
        "drain the GPU, set the mode with `nvidia-smi -i UUID -mig 0` or `-mig 1`, and reset the GPU",
        looks=3,
    ),
    Code(
        "inforom_corrupt",
        "device",
        "the GPU's InfoROM, where it keeps its error counts and settings, is corrupt",
        "the GPU's own checksum",
        "degraded",
        "rma",
        "reset the GPU; if that does not help, ask its vendor to rewrite the InfoROM or to replace the GPU",
        looks=2,
    ),
    Code(
        "zombie_process",
        "device",
        "memory of the GPU is held by a process that no longer exists",
        "every such process",
        "degraded",
        "reset_gpu",
        "drain the GPU and reset it, or reboot the host",
        looks=3,
    ),
    Code(
        "device_file_missing",
        "device",
        "the file /dev/nvidiaN of the GPU is missing or has a wrong number",
        "the file of every GPU",
        "fatal",
        "inspect",
        "run `sudo nvidia-modprobe -c N`, or `gpuops up --tags driver` for the host",
    ),
)

NODE_CODES = {row.code: row for row in _NODE}
DEVICE_CODES = {row.code: row for row in _DEVICE}
CODES = {**NODE_CODES, **DEVICE_CODES}
# Set by what was logged instead of by what was read.
EVENT_CODES = ("gpu_off_bus", "xid_fatal", "xid_degraded", "sxid_fatal", "sxid_degraded")


def remedy(code: str, action: str, gpu: str | None = "UUID") -> str:
    """What to do about a reason: the one text for the agent, the alerts and the documentation.

    :param gpu: what nvidia-smi takes for the GPU; None for a reason of the host, which is about all of them.
    """
    row = CODES.get(code)
    text = row.remedy if row and row.action == action else _REMEDIES[action]
    return text.replace(" -i UUID", f" -i {gpu}" if gpu else "")
