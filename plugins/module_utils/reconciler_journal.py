# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One line for everything that the reconciler decides, begins and ends: in a file, and for systemd's journal."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO


class Journal:
    """Lines of JSON: {time, host, what, ...}. What was begun is on the disk before it is done.

    A disk that is full stops nobody: ZooKeeper has what is needed to go on, and the line is told all the same.
    """

    def __init__(self, path: Path | None, out: TextIO = sys.stdout) -> None:
        self.path, self.out = path, out
        self.problem = ""

    def write(self, host: str, what: str, **more: Any) -> dict[str, Any]:
        row = {"time": round(time.time(), 3), "host": host, "what": what, **more}
        line = json.dumps(row, separators=(",", ":"), sort_keys=False)
        self.out.write(f"{line}\n")
        self.out.flush()
        if self.path is not None:
            self._keep(self.path, line, durable=what in ("begin", "end"))
        return row

    def _keep(self, path: Path, line: str, durable: bool) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                os.write(descriptor, f"{line}\n".encode())
                if durable:
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            self.problem = ""
        except OSError as why:
            if not self.problem:
                self.problem = f"{path} cannot be written: {why.strerror}"
                self.out.write(json.dumps({"what": "problem", "why": self.problem}) + "\n")
