# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which boot of the host it is, so that everybody on it says the same.

In a container, the boot is the container's: systemd-nspawn binds a file of its own over the kernel's boot_id. A unit
with ProtectKernelTunables= has /proc/sys mounted anew, sees the kernel's, and takes all that others wrote in this boot
for an earlier one's. PID 1 sees what everybody sees, and puts it into a unit where the unit file says %b. So a unit of
ours that is protected in this way has the line UNIT_LINE, and its word counts for more than the file.
"""

from __future__ import annotations

import os
import re

VARIABLE = "BAREMETAL_GPU_BOOT_ID"
UNIT_LINE = f"Environment={VARIABLE}=%b"
FILE = "proc/sys/kernel/random/boot_id"


def boot_id(root: str = "/") -> str | None:
    """The boot as a UUID in small letters; None where it cannot be told."""
    # A tree that is no host's own has a boot of its own.
    told = os.environ.get(VARIABLE, "") if os.path.realpath(root) == "/" else ""
    if not told:
        try:
            with open(os.path.join(root, FILE), encoding="ascii") as file:
                told = file.read(100)
        except (OSError, ValueError):
            return None
    return _uuid(told.strip())


def _uuid(text: str) -> str | None:
    """systemd writes the number without hyphens, and the kernel with them."""
    digits = text.replace("-", "").lower()
    if not re.match(r"^[0-9a-f]{32}$", digits):
        return text or None
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
