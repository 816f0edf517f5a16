# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words for what NVML answers: its errors with their remedies, and the names of models.

They stand apart from what asks NVML, since whoever reads the facts of a fleet needs nothing else of it.
"""

from __future__ import annotations

import re
from typing import Any

# NVML return code -> (name, remedy).
REMEDIES: dict[int, tuple[str, str]] = {
    4: ("no_permission", "ask as root, with `sudo`"),
    9: (
        "driver_not_loaded",
        "load the module with `sudo modprobe nvidia`; if that fails, `sudo dmesg` says why: no module for this kernel, "
        "nouveau still bound to the GPU, or Secure Boot refusing an unsigned module",
    ),
    10: ("timeout", "look for an Xid in `sudo dmesg`; reboot the host if the GPU does not come back"),
    11: ("irq_issue", "the kernel lost the GPU's interrupt: reboot, and look at the BIOS settings if it returns"),
    12: ("library_not_found", "install the driver's libraries (libnvidia-ml.so.1): run `gpuops up --tags driver`"),
    13: ("function_not_found", "the library is older than the question: update the driver"),
    14: ("corrupted_inforom", "flash the InfoROM or have the GPU replaced"),
    15: (
        "gpu_is_lost",
        "the GPU fell off the bus: reboot the host; if it happens again, reseat the GPU and check its power, "
        "then have it replaced",
    ),
    16: (
        "reset_required",
        "drain the host and reset the GPU with `sudo nvidia-smi --gpu-reset -i UUID`; reboot where the GPU cannot be "
        "reset",
    ),
    17: ("operating_system", "the operating system blocks the driver: look into `sudo dmesg`"),
    18: (
        "lib_rm_version_mismatch",
        "the library and the loaded kernel module are of different versions: stop what uses the GPUs and reload "
        "the module, or reboot",
    ),
    20: ("memory", "the host is short of memory: see `free -m`, and end what takes it"),
    999: (
        "unknown",
        "look into `sudo dmesg` for Xid and NVRM lines and check the nodes /dev/nvidia*; reboot the host if nothing "
        "else "
        "is found",
    ),
}
# The GPU or this driver does not have what was asked for; that is an answer and no fault.
# Not supported, function not found, vGPU ECC not supported, deprecated.
NOT_APPLICABLE = (3, 13, 22, 26)
# What concerns the GPU as a whole, so that asking on is of no use.
FATAL = (15, 16)


def error(code: int | None, name: str, text: str, remedy: str) -> dict[str, Any]:
    return {"code": code, "name": name, "text": text, "remedy": remedy}


def error_from_code(code: int, said: str) -> dict[str, Any]:
    name, remedy = REMEDIES.get(code, (f"nvml_{code}", "look into `sudo dmesg` for what the driver says"))
    return error(code, name, said, remedy)


def slug(name: str) -> str:
    """A name for files, attributes and labels: `NVIDIA A100-SXM4-40GB` becomes `a100-sxm4-40gb`."""
    short = re.sub(r"^NVIDIA\s+", "", name.strip())
    return re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-")
