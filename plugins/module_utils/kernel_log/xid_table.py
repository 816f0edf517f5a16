# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's driver means by its Xid numbers, and what is done about each.

Only data; xid.py applies it, and a site overrides single rows with its policy. Meaning and first action follow NVIDIA's
public documentation; where it gives no action to a number, or several, the row takes the one that keeps a sick GPU
from getting work.
"""

from __future__ import annotations

from typing import NamedTuple

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/ (Xid catalogue of October 2025)"
HEADERS = "NVIDIA/open-gpu-kernel-modules, src/common/sdk/nvidia/inc/nverror.h"


class Row(NamedTuple):
    """`verdict` is fatal or degraded; application: the program's own doing; none: only counted.

    `action` comes first, `escalation` (or None) where the same Xid is back after it.
    """

    name: str
    verdict: str
    action: str
    escalation: str | None
    gpus: str


# Xid -> name, verdict, action, escalation, the GPUs and drivers that it applies to (empty for all).
_ROWS: dict[int, tuple[str, str, str, str | None, str]] = {
    1: ("push buffer stream invalid", "application", "restart_app", None, "Volta and older"),
    2: ("push buffer stream invalid", "application", "restart_app", None, "Volta and older"),
    3: ("push buffer stream invalid", "application", "restart_app", None, "Volta and older"),
    4: ("push buffer stream invalid / channel busy", "application", "restart_app", None, "Volta and older"),
    5: ("unassigned legacy code", "none", "none", None, "Volta and older"),
    6: ("push buffer parse error", "application", "restart_app", None, "Volta and older"),
    7: ("push buffer address invalid", "application", "restart_app", None, "Volta and older"),
    8: ("channel idle timeout, work stopped", "application", "restart_app", "reset_gpu", ""),
    9: ("driver failed to program the GPU", "degraded", "reboot", None, "Volta and older"),
    10: ("unassigned legacy code", "none", "none", None, "Volta and older"),
    11: ("bad push buffer stream", "application", "restart_app", None, ""),
    12: ("driver failed handling a GPU exception", "degraded", "reboot", None, "Volta and older"),
    13: ("exception in the graphics or compute engine", "application", "restart_app", "reset_gpu", ""),
    14: ("test/fake channel error", "none", "none", None, ""),
    15: ("unassigned legacy code", "none", "none", None, "Volta and older"),
    16: ("display vblank callback timed out", "none", "none", None, "Volta and older"),
    17: ("unassigned legacy code", "none", "none", None, "Volta and older"),
    18: ("PCI bus mastering timed out / disabled", "degraded", "reboot", "inspect", "Volta and older"),
    19: ("display missed a notifier", "none", "none", None, "Volta and older"),
    20: ("MPEG engine software method error", "application", "restart_app", None, "Volta and older"),
    21: ("motion-estimation engine software method error", "application", "restart_app", None, "Volta and older"),
    22: ("video processor software method error", "application", "restart_app", None, "Volta and older"),
    23: ("unassigned legacy code", "none", "none", None, "Volta and older"),
    24: ("GPU semaphore wait timed out", "application", "restart_app", None, "Volta and older"),
    25: ("illegal push buffer notify", "application", "restart_app", None, ""),
    26: ("frame-buffer interface timeout", "degraded", "reset_gpu", "reboot", "Volta and older"),
    27: ("video engine error", "application", "restart_app", None, "Volta and older"),
    28: ("video engine error", "application", "restart_app", None, "Volta and older"),
    29: ("video engine error", "application", "restart_app", None, "Volta and older"),
    30: ("semaphore access to a bad address", "degraded", "reboot", None, "Volta and older"),
    31: ("GPU MMU fault (bad virtual address)", "application", "restart_app", "reset_gpu", ""),
    32: ("PBDMA / push buffer corruption", "application", "restart_app", "inspect", ""),
    33: ("internal security micro-controller error", "degraded", "reset_gpu", None, "Volta and older"),
    34: ("video engine error", "application", "restart_app", None, "Volta and older"),
    35: ("video engine error", "application", "restart_app", None, "Volta and older"),
    36: ("video engine error", "application", "restart_app", None, "Volta and older"),
    37: ("front-end firmware: unimplemented method", "none", "none", None, ""),
    38: ("front-end firmware watchdog timed out", "none", "none", "reset_gpu", ""),
    39: ("copy engine 0 fault", "application", "restart_app", "reset_gpu", ""),
    40: ("copy engine 1 fault", "application", "restart_app", "reset_gpu", ""),
    41: ("copy engine 2 fault", "application", "restart_app", "reset_gpu", ""),
    42: ("video engine error", "application", "restart_app", None, "Volta and older"),
    43: ("channel reset by driver after a user fault", "application", "restart_app", None, ""),
    44: ("fault during graphics context switch", "none", "none", "reset_gpu", ""),
    45: ("channels torn down after an earlier error", "application", "none", "reset_gpu", ""),
    46: ("GPU timed out / stopped processing", "fatal", "reset_gpu", "rma", ""),
    47: ("video encoder 0 fault", "application", "restart_app", "reset_gpu", ""),
    48: ("uncorrectable (double-bit) ECC error", "fatal", "reset_gpu", "rma", "with ECC"),
    49: ("legacy clock/temperature notification", "none", "none", None, "Volta and older"),
    50: ("legacy clock/temperature notification", "none", "none", None, "Volta and older"),
    51: ("legacy clock/temperature notification", "none", "none", None, "Volta and older"),
    52: ("legacy clock/temperature notification", "none", "none", None, "Volta and older"),
    53: ("legacy clock/temperature notification", "none", "none", None, "Volta and older"),
    54: ("auxiliary power cable not detected", "fatal", "inspect", "rma", "with a power cable of their own"),
    55: ("legacy clock/temperature notification", "none", "none", None, "Volta and older"),
    56: ("display channel exception", "none", "none", None, ""),
    57: ("video-memory link training failed", "degraded", "reset_gpu", "rma", "Volta and older"),
    58: ("video-memory interface unstable", "degraded", "reset_gpu", "rma", "Volta and older"),
    59: ("power micro-controller (PMU) error, old drivers", "degraded", "reset_gpu", "reboot", "Volta and older"),
    60: ("SEC2/video processor exception", "application", "restart_app", None, ""),
    61: ("PMU breakpoint/warning", "degraded", "reset_gpu", "reboot", ""),
    62: ("PMU halted", "fatal", "reset_gpu", "rma", ""),
    63: ("bad memory recorded: page retired or row remap queued", "degraded", "reset_gpu", None, "with ECC"),
    64: ("bad-memory record could not be written / remap failed", "fatal", "reset_gpu", "rma", "with ECC"),
    65: ("video encoder 1 fault", "application", "restart_app", "reset_gpu", ""),
    66: ("driver register access violation", "none", "none", None, ""),
    67: ("driver firmware verification violation", "none", "none", None, ""),
    68: ("video decoder 0 fault", "application", "restart_app", "reset_gpu", ""),
    69: ("graphics class error (bad method/data)", "application", "restart_app", "reset_gpu", ""),
    70: ("copy engine 3 fault", "application", "restart_app", "reset_gpu", ""),
    71: ("copy engine 4 fault", "application", "restart_app", "reset_gpu", ""),
    72: ("copy engine 5 fault", "application", "restart_app", "reset_gpu", ""),
    73: ("video encoder 2 fault", "application", "restart_app", "reset_gpu", ""),
    74: ("NVLink error", "fatal", "reset_gpu", "rma", "Pascal to Hopper with NVLink"),
    75: ("copy engine 6 fault", "application", "restart_app", "reset_gpu", ""),
    76: ("copy engine 7 fault", "application", "restart_app", "reset_gpu", ""),
    77: ("copy engine 8 fault", "application", "restart_app", "reset_gpu", ""),
    78: ("vGPU failed to start", "application", "none", None, "vGPU"),
    79: ("GPU dropped off the PCIe bus", "fatal", "reboot", "inspect", ""),
    80: ("data corrupted on the way to the GPU", "application", "restart_app", "inspect", ""),
    81: ("VGA subsystem error", "degraded", "reset_gpu", "rma", "Volta and older"),
    82: ("JPEG engine 0 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    83: ("video decoder 1 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    84: ("video decoder 2 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    85: ("copy engine 9 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    86: ("optical-flow engine 0 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    87: ("driver telemetry report", "none", "none", None, ""),
    88: ("video decoder 3 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    89: ("video decoder 4 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    90: ("L2 cache (LTC) error", "degraded", "reset_gpu", "rma", "Ampere and later"),
    91: ("reserved", "none", "none", None, ""),
    92: ("high rate of correctable (single-bit) ECC errors", "none", "none", "rma", "with ECC"),
    93: ("InfoROM write-wear limit exceeded", "none", "none", "rma", "Volta"),
    94: ("contained uncorrectable memory error", "application", "restart_app", "reset_gpu", "A100, Hopper, Blackwell"),
    95: ("uncontained uncorrectable memory error", "fatal", "reset_gpu", "rma", "A100, Hopper, Blackwell"),
    96: ("video decoder 5 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    97: ("video decoder 6 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    98: ("video decoder 7 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    99: ("JPEG engine 1 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    100: ("JPEG engine 2 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    101: ("JPEG engine 3 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    102: ("JPEG engine 4 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    103: ("JPEG engine 5 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    104: ("JPEG engine 6 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    105: ("JPEG engine 7 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    106: ("out-of-band (SMBPBI) test message", "none", "none", None, ""),
    107: ("out-of-band (SMBPBI) silent test message", "none", "none", None, ""),
    108: ("remote NVLink address translation error", "application", "restart_app", None, "Hopper and later"),
    109: ("context switch timed out", "application", "restart_app", "rma", ""),
    110: ("security fault", "fatal", "reset_gpu", "rma", "Ampere and later"),
    111: ("display subsystem error", "none", "none", None, ""),
    112: ("display subsystem error", "none", "none", None, ""),
    113: ("display subsystem error", "none", "none", None, ""),
    114: ("display subsystem error", "none", "none", None, ""),
    115: ("display subsystem error", "none", "none", None, ""),
    116: ("display subsystem error", "none", "none", None, ""),
    117: ("display subsystem error", "none", "none", None, ""),
    118: ("display subsystem error", "none", "none", None, ""),
    119: ("GSP firmware RPC timed out", "fatal", "reset_gpu", "reboot", "Turing and later, driver 510 and later"),
    120: ("GSP firmware error", "fatal", "reset_gpu", "reboot", "Turing and later, driver 510 and later"),
    121: ("CPU-GPU C2C link error (corrected)", "none", "none", "reboot", "GH200 and GB200"),
    122: ("PMU flash read failed", "none", "none", None, ""),
    123: ("PMU flash write failed", "degraded", "reboot", "rma", ""),
    124: ("PMU flash erase failed", "none", "none", None, ""),
    125: ("InfoROM file-system error", "degraded", "reset_gpu", "rma", ""),
    126: ("copy engine 10 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    127: ("copy engine 11 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    128: ("copy engine 12 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    129: ("copy engine 13 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    130: ("copy engine 14 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    131: ("copy engine 15 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    132: ("copy engine 16 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    133: ("copy engine 17 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    134: ("copy engine 18 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    135: ("copy engine 19 fault", "application", "restart_app", "reset_gpu", "Hopper and later"),
    136: ("NVLink training failed", "fatal", "reset_gpu", "inspect", "Hopper and later"),
    137: ("NVLink access denied at the remote end", "application", "restart_app", None, "Hopper and later"),
    138: ("deep-learning accelerator error", "none", "none", None, "SoC only"),
    139: ("optical-flow engine 1 fault", "application", "restart_app", "reset_gpu", "Turing and later"),
    140: ("uncorrectable ECC error that escaped recovery", "fatal", "reset_gpu", "rma", "Ampere and later"),
    141: ("CUDA fast-path error", "none", "none", None, "Hopper and later"),
    142: ("video encoder 3 fault", "application", "restart_app", "reset_gpu", "Ampere and later"),
    143: ("GPU initialisation failed", "fatal", "reset_gpu", "rma", "Ampere and later"),
    144: ("NVLink5 SAW (switch address window) error", "degraded", "reset_gpu", "inspect", "Blackwell"),
    145: ("NVLink5 RLW (receive link wrapper) error", "degraded", "reset_gpu", "inspect", "Blackwell"),
    146: ("NVLink5 TLW (transmit link wrapper) error", "degraded", "reset_gpu", "inspect", "Blackwell"),
    147: ("NVLink5 TREX (address routing) error", "none", "none", "inspect", "Blackwell"),
    148: ("NVLink5 NVLPW (port wrapper) error", "none", "none", "inspect", "Blackwell"),
    149: ("NVLink5 NETIR (link/port events) error", "degraded", "reset_gpu", "inspect", "Blackwell"),
    150: ("NVLink5 MSE (link management engine) watchdog", "fatal", "reset_gpu", "rma", "Blackwell"),
    151: ("confidential-computing key rotation failed", "degraded", "reboot", None, "Hopper and later"),
    152: ("DLA SMMU error", "none", "none", None, "SoC only"),
    153: ("DLA timeout", "none", "none", None, "SoC only"),
    154: ("driver changed its recommended recovery action", "degraded", "reset_gpu", "reboot", "driver 570 and later"),
    155: ("NVLink software-defined error", "fatal", "reset_gpu", "reboot", "Blackwell"),
    156: ("memory/resource retired", "degraded", "reset_gpu", None, "Blackwell"),
    157: ("memory/resource retirement failed", "degraded", "none", "rma", "Blackwell"),
    158: ("GPU fatal timeout", "fatal", "reset_gpu", "rma", "Hopper and later"),
    159: ("CHI non-data bus error", "application", "restart_app", "reboot", "Grace-attached"),
    160: ("memory channel retired", "none", "none", "reboot", "Blackwell"),
    161: ("memory channel retirement failed", "none", "none", "rma", "Blackwell"),
    162: ("power-smoothing hardware back on", "none", "none", None, "Blackwell"),
    163: ("power-smoothing hardware off", "degraded", "reset_gpu", None, "Blackwell"),
    164: ("power-smoothing hardware lifetime low", "none", "none", "rma", "Blackwell"),
    165: ("power-smoothing hardware lifetime used up", "degraded", "none", "rma", "Blackwell"),
    166: ("NVLink traffic before encryption was set up", "degraded", "reset_gpu", None, "Blackwell"),
    167: ("PCIe fatal timeout", "fatal", "reboot", "inspect", "Blackwell"),
    168: ("GPU came up with reduced memory (bad protected region)", "degraded", "reset_gpu", "rma", "Blackwell"),
    169: ("SEC2 micro-controller halted", "degraded", "reset_gpu", "reboot", "Blackwell"),
    170: ("NVLink interrupt in confidential mode", "application", "restart_app", None, "Blackwell"),
    171: ("detail for 48: the error was in DRAM", "fatal", "reset_gpu", "rma", "Blackwell"),
    172: ("detail for 48: the error was in SRAM", "fatal", "reset_gpu", "rma", "Blackwell"),
    173: ("CPU-GPU C2C link failed", "fatal", "reboot", "rma", "GH200 and GB200"),
    174: ("channel killed without a message", "none", "none", None, "driver 595 and later"),
    175: ("memory subsystem error", "degraded", "reset_gpu", "rma", "driver 595 and later"),
    176: ("PCIe correctable-error fault", "degraded", "inspect", "rma", "driver 595 and later"),
}
XIDS = {number: Row(*row) for number, row in _ROWS.items()}

# These say in their text how bad it is: the word Fatal or Nonfatal of an NVLink 5 error. A line without such a word, or
# with one that is not known, may mean the worst.
SAYS_FATAL = (144, 145, 146, 147, 148, 149)

# What the driver recommends, as Xid 154 and NVML tell it: its number -> verdict and action.
# Source: NVML_GPU_RECOVERY_ACTION_* in nvml.h of branch 570 and later.
RECOVERY_XID = 154
RECOVERY_ACTIONS = {
    0: ("none", "none"),
    1: ("fatal", "reset_gpu"),
    2: ("fatal", "reboot"),
    3: ("fatal", "reset_gpu"),
    4: ("fatal", "reset_gpu"),
    5: ("fatal", "inspect"),
    6: ("fatal", "reboot"),
    7: ("fatal", "reboot"),
}
RECOVERY_NAMES = {
    0: "none",
    1: "reset of the GPU",
    2: "reboot of the host",
    3: "drain of peer-to-peer work",
    4: "drain, and reset of the GPU",
    5: "recovery of the IMEX domain",
    6: "reset of the bus",
    7: "reboot of the system",
}
# An action that is not known yet is not taken for a mild one.
RECOVERY_UNKNOWN = ("fatal", "reboot")

# NVML has flags of its own for these, which also tell when they are over; the Xid counts only where NVML cannot tell.
TOLD_BY_NVML = {
    63: ("row_remap_pending", "retired_pages_pending"),
    125: ("inforom_corrupt",),
    156: ("row_remap_pending",),
}
