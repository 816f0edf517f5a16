# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a service tells systemd, and is asked by it."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Tell systemd, if it started this process. Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    # Where nobody listens any more, the agent's work does not depend on it.
    with socket.socket(socket.AF_UNIX, kind) as to, contextlib.suppress(OSError):
        to.sendto(state.encode("utf-8"), "\0" + address[1:] if address.startswith("@") else address)


def watchdog_interval() -> float | None:
    """How often systemd wants to hear of the process: twice in the time after which it would kill it."""
    microseconds = os.environ.get("WATCHDOG_USEC")
    return int(microseconds) / 2e6 if microseconds else None
