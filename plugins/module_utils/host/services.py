# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether services of this host do their work: their units run, and something answers at their ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

CONNECT_S = 5


def answers(port: int) -> bool:
    """Whether a connection to a port of this host is taken, at its loopback address."""
    try:
        socket.create_connection(("127.0.0.1", port), CONNECT_S).close()
    except OSError:
        return False
    return True


def problems(
    services: Iterable[Mapping[str, Any]], host: str, run: Run, asked: Callable[[int], bool] = answers
) -> list[Problem]:
    """What does not work, each with where to look."""
    found = []
    for row in services:
        unit, port = row["unit"], row.get("port")
        code, state, _error = run(["systemctl", "is-active", unit], None, 30)
        see = f"see 'sudo journalctl -u {unit}' on {host}, then 'sudo systemctl restart {unit}'"
        if code:
            state = state.strip() or "not known"
            found.append(Problem("unit_down", unit, f"{unit} of {host} is {state}", state, see))
        elif port and not asked(port):
            cause = f"{unit} of {host} runs, and nothing answers at its port {port}"
            found.append(Problem("no_answer", unit, cause, str(port), see))
    return found
