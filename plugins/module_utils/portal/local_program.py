# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks a program that systemd starts for each question, at its socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any


def exchange(path: str, question: Mapping[str, Any], timeout_s: float, at_most: int) -> bytes:
    """What the program answers, of which no more than so many bytes are read. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(timeout_s)
        made.connect(path)
        made.sendall(json.dumps(question).encode())
        made.shutdown(socket.SHUT_WR)
        with made.makefile("rb") as answer:
            return answer.read(at_most)
