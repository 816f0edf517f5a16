# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A unit of systemd on this host: whether it runs, and whether it was started with the files that are there now."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

# waitid(2): a process that ended by itself, and not by a signal.
CLD_EXITED = "1"
# What Mesos, Marathon and ZooKeeper log of every look at them.
ASKED = re.compile(r'HTTP (GET|HEAD) for /|"(GET|HEAD) \S+ HTTP/|Processing [a-z]{4} command from ')


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def parse_stamp(text: str) -> dict[str, str]:
    """What `sha256sum` wrote when the server was started."""
    return {path: checksum for checksum, path in re.findall(r"^([0-9a-f]{64})[ *]{2}(.+)$", text, re.MULTILINE)}


def is_due(files: Sequence[str], stamp: str) -> bool:
    """Whether files are others than those that the server was started with."""
    now = {path: _sha256(path) for path in files}
    return parse_stamp(read_text(stamp)) != {path: checksum for path, checksum in now.items() if checksum}


class Unit:
    """A service of this host.

    :param run: runs a command of the host.
    """

    def __init__(self, unit: str, run: Run) -> None:
        self.unit, self.run = unit, run

    def is_running(self) -> bool:
        return self.run(["systemctl", "is-active", "--quiet", self.unit], None, 30)[0] == 0

    def up_s(self) -> float | None:
        """For how many seconds it has been active without a break; None for one that is not."""
        names = ("ActiveState", "ActiveEnterTimestampMonotonic")
        _code, said, _error = self.run(["systemctl", "show", f"--property={','.join(names)}", self.unit], None, 30)
        told = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        since = told.get("ActiveEnterTimestampMonotonic", "")
        if told.get("ActiveState") != "active" or not since.isdigit():
            return None
        return max(0.0, time.monotonic() - int(since) / 1e6)

    def systemctl(self, verb: str) -> None:
        """:raises Refused: if systemd cannot do it."""
        code, _out, error = self.run(["systemctl", verb, self.unit], None, 120)
        if code:
            raise Refused(f"systemctl {verb} {self.unit} ended with {code}: {error.strip()} {self.journal()}")

    def ended(self) -> tuple[str, int | None]:
        """(its state in systemd's word, the exit status of its last process if that ended by itself)."""
        names = ("ActiveState", "ExecMainCode", "ExecMainStatus")
        _code, said, _error = self.run(["systemctl", "show", f"--property={','.join(names)}", self.unit], None, 30)
        told = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        status = told.get("ExecMainStatus", "")
        by_itself = told.get("ExecMainCode") == CLD_EXITED and status.isdigit()
        return told.get("ActiveState", ""), int(status) if by_itself else None

    def journal(self) -> str:
        """The last lines of its log, without those that only tell that somebody asked it, as checks do all the time."""
        argv = ["journalctl", "--no-pager", "--quiet", "--lines=4000", "--output=cat", "--unit", self.unit]
        lines = [line for line in self.run(argv, None, 30)[1].splitlines() if line.strip() and not ASKED.search(line)]
        return " | ".join(lines[-15:])[-2000:]
