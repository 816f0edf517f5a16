# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the clock of a host is kept in step."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below


def time_synchronised(root: str = "/", clock: Callable[[], int | None] | None = None) -> bool | None:
    """Whether something keeps the kernel's clock in step; None where that cannot be told.

    Every time daemon tells the kernel, so the kernel's own status is asked first.
    """
    status = (clock or _clock_status)()
    if status is not None and not status & 0x40:
        return True
    if os.path.exists(below(root, "run/systemd/timesync/synchronized")):
        return True
    return None if status is None else False


def _clock_status() -> int | None:
    """The STA_ flags of adjtimex(2); with modes = 0 it only reads."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(256)
        if library.adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    # struct timex: modes, then offset, freq, maxerror and esterror as longs, then status.
    return int(struct.unpack_from("@I4li", buffer.raw)[5])
