# SPDX-License-Identifier: GPL-3.0-or-later
"""The entries that journalctl has printed. What a host wrote is text from outside, down to its name and the time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import (
    mapping,
    moment,
    parse,
    text,
    texts,
)
from gpuops.run import events

MESSAGE_AT_MOST = 4096
# Of one message.
LINES_AT_MOST = 40
# As syslog counts them.
ERROR, WARNING = 3, 4


@dataclass(frozen=True)
class Entry:
    """:ivar time: in Unix seconds, as the host had it. ``host``: the name that it gives itself."""

    time: float
    host: str
    unit: str
    identifier: str
    pid: str
    priority: int
    kernel: bool
    message: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[Line]:
        """As people read it: a line, and one for each further line of the message."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        name = self.identifier or self.unit or ("kernel" if self.kernel else "?")
        first, *more = self.message.split("\n")
        style = "bad" if self.priority <= ERROR else "changed" if self.priority == WARNING else "plain"
        head: Line = [("faint", f"{when} "), ("plain", f"{self.host} {name}{f'[{self.pid}]' if self.pid else ''}: ")]
        left = len(more) - LINES_AT_MOST
        tail = [f"… and {left} more lines"] if left > 0 else []
        return [[*head, (style, first)], *([(style, f"    {line}")] for line in (*more[:LINES_AT_MOST], *tail))]


class Reader:
    """Takes the events of the playbook baremetal.gpu.read_logs.

    :ivar entries: the oldest first.
    :ivar unreadable: how many lines of the answer are none.
    :ivar problem: why there is no answer; empty if there is one.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.unreadable = 0
        self.problem = "the log host was not asked"

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult):
            return
        if not event.succeeded:
            self.problem = text(event.result.get("msg")) or f"{event.host} is not reached"
            return
        if texts(event.result.get("cmd"))[:1] != ["journalctl"]:
            self.problem = "the answer is too large. Give --since or --grep, or fewer --lines"
            return
        said = text(event.result.get("stderr"))
        # Where nothing fits, journalctl ends with 1 and says nothing.
        self.problem = said if event.result.get("rc") not in (0, 1) or said else ""
        self._read(texts(event.result.get("stdout_lines")))

    def _read(self, printed: Iterable[str]) -> None:
        found: dict[tuple[Any, ...], Entry] = {}
        for line in printed:
            row: dict[str, Any] = {}
            with contextlib.suppress(ValueError):
                row = mapping(parse(line))
            entry = _entry(row)
            if entry is None:
                self.unreadable += 1
                continue
            # A host that was cut off sends the last ones again.
            key = (entry.time, row.get("_BOOT_ID"), row.get("__MONOTONIC_TIMESTAMP"), entry.host, entry.message)
            found.setdefault(key, entry)
        # The newest come first.
        self.entries = list(reversed(found.values()))


def _entry(row: Mapping[str, Any]) -> Entry | None:
    stamp = text(row.get("__REALTIME_TIMESTAMP"))
    when = moment(int(stamp) / 1e6) if stamp.isascii() and stamp.isdigit() and len(stamp) < 20 else None
    if when is None:
        return None
    priority = text(row.get("PRIORITY"))
    return Entry(
        when,
        _field(row, "_HOSTNAME") or "?",
        _field(row, "_SYSTEMD_UNIT"),
        _field(row, "SYSLOG_IDENTIFIER"),
        _field(row, "_PID") or _field(row, "SYSLOG_PID"),
        int(priority) if priority in tuple("01234567") else 6,
        row.get("_TRANSPORT") == "kernel",
        untrusted_text.several_lines(_message(row.get("MESSAGE")), MESSAGE_AT_MOST),
    )


def _field(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return untrusted_text.one_line(_message(value), 100) if value is not None else ""


def _message(value: Any) -> str | bytes:
    """A field as journalctl prints it in JSON: a text, bytes where it is no text, a list where there are several."""
    if value is None:
        return "(it is longer than 4096 bytes)"
    if isinstance(value, list) and value and all(isinstance(part, int) and 0 <= part < 256 for part in value):
        return bytes(value)
    if isinstance(value, list):
        return " ".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else str(value)
