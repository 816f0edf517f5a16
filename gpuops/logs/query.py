# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of the log host, as arguments of journalctl."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.logs.store import DIRECTORY
from ansible_collections.baremetal.gpu.plugins.plugin_utils.logs import site

LINES_AT_MOST = 5000
TEXT_AT_MOST = 300
# As systemd.time(7) has it: a date, a time, a word such as yesterday, or a span such as -2h.
_TIME = re.compile(r"[A-Za-z0-9:+ .@-]{1,60}", re.ASCII)
_UNIT = re.compile(r"[A-Za-z0-9:_.@*?\\-]{1,255}", re.ASCII)


class QueryError(Exception):
    """Something cannot be asked in this way; the text says what to give."""


@dataclass(frozen=True)
class Query:
    """:ivar hosts: those whose journals are read; all of them if there are none."""

    hosts: Sequence[str] = ()
    since: str = ""
    grep: str = ""
    units: Sequence[str] = ()
    kernel: bool = False
    lines: int = 200

    def arguments(self) -> list[str]:
        """Arguments of journalctl, one word each, whatever is in it. Raises QueryError."""
        if self.since and not _TIME.fullmatch(self.since):
            raise QueryError("--since is a time such as '2026-11-28 14:00', yesterday or -2h")
        if len(self.grep) > TEXT_AT_MOST or not self.grep.isprintable():
            raise QueryError(f"--grep is a regular expression of {TEXT_AT_MOST} printable characters at most")
        if not 1 <= self.lines <= LINES_AT_MOST:
            raise QueryError(f"--lines is a number from 1 to {LINES_AT_MOST}")
        if self.kernel and self.units:
            raise QueryError("no message of the kernel is of a unit; give --kernel or --unit")
        for unit in self.units:
            if not _UNIT.fullmatch(unit) or unit.startswith("-"):
                raise QueryError(f"{unit!r} is not the name of a unit, such as slurmd or 'ceph-osd@*'")
        for host in self.hosts:
            if not site.NAME.fullmatch(host):
                raise QueryError(f"{host!r} is not a host that sends its journal")
        files = [f"--file={site.files_of(*dict.fromkeys(self.hosts))}"] if self.hosts else []
        return [
            *(files or [f"--directory={DIRECTORY}"]),
            f"--lines={self.lines}",
            *([f"--since={self.since}"] if self.since else []),
            *([f"--grep={self.grep}"] if self.grep else []),
            *(f"--unit={unit}" for unit in self.units),
            # Not --dmesg, which is of the last boot of the host that it runs on.
            *(["_TRANSPORT=kernel"] if self.kernel else []),
        ]

    def variable(self) -> str:
        """The arguments as the playbook takes them: Ansible would take braces in a text for a template."""
        return base64.b64encode(json.dumps(self.arguments()).encode()).decode()
