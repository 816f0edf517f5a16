# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's driver says in the kernel's log: Xids, and cards that fell off the bus.

An event is {kind: xid|off_bus, pci_address, uuid (null where the log does not tell), xid (null for off_bus), text,
sequence and uptime (seconds since boot) of the record, boot_id, detail}. `detail` holds what the text of some Xids
adds: pid, process; unit, fatal, link of an NVLink 5 error; recovery_from and recovery_to of Xid 154.

Source: Documentation/ABI/testing/dev-kmsg of the Linux kernel; NVIDIA's Xid documentation; the captured lines in the
tests.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import pci

# Patterns, compiled by `re` where one is needed first: a host that has nothing to say pays for none.
_RECORD = r"(?s)^(?P<priority>\d+),(?P<sequence>\d+),(?P<microseconds>\d+),[^;]*;(?P<text>.*)$"
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
_XID = rf"^NVRM: Xid \((?:PCI:)?(?P<address>{_ADDRESS})\): (?P<xid>\d+),?\s*(?P<rest>.*)$"
_OFF_BUS = rf"(?i)^NVRM: GPU (?P<address>{_ADDRESS}): GPU has fallen off the bus"
# This form is spread over three lines, and only the first names the card.
_OFF_BUS_BEGIN = rf"^NVRM: The NVIDIA GPU (?P<address>{_ADDRESS})\b"
_OFF_BUS_END = r"^(?:NVRM: )?\s*fallen off the bus and is not responding"
_UUID = rf"^NVRM: GPU at PCI:(?P<address>{_ADDRESS}): (?P<uuid>GPU-[0-9a-f-]+)"
# The name of a process may hold colons and commas, and a pid that is not known is in quotes.
_PROCESS = r"\bpid='?(?P<pid>[^',]+)'?, name=(?P<process>.*?)(?:, |$)"
_LINK = r"\b(?P<unit>[A-Z]+(?:_[A-Z]+)*) (?P<word>Fatal|Nonfatal) XC\d+ i\d+ Link (?P<link>-?\d+)"
_RECOVERY = r"(?i)recovery action changed from 0x(?P<before>[0-9a-f]+) \(.*?\) to 0x(?P<after>[0-9a-f]+)"
# dev-kmsg writes what cannot be printed, and the backslash itself, as \xNN.
_ESCAPED = r"\\x([0-9a-f]{2})"
# The three lines of one message come together; others may get between them.
_LINES_BETWEEN = 8
RECORD_AT_MOST = 8192
BATCH_AT_MOST = 2000


def address(text: str) -> str:
    """The kernel's way to write an address, with a function, which an Xid leaves out."""
    return pci.normal_address(text if "." in text else f"{text}.0")


def detail(rest: str) -> dict[str, Any]:
    """What the text behind an Xid's number adds."""
    found: dict[str, Any] = {}
    process = re.search(_PROCESS, rest)
    if process:
        pid = process["pid"]
        found["pid"] = int(pid) if pid.isdigit() else None
        found["process"] = None if process["process"] == "<unknown>" else process["process"]
    link = re.search(_LINK, rest)
    if link:
        found.update(unit=link["unit"], fatal=link["word"] == "Fatal", link=int(link["link"]))
    recovery = re.search(_RECOVERY, rest)
    if recovery:
        found.update(recovery_from=int(recovery["before"], 16), recovery_to=int(recovery["after"], 16))
    return found


class Parser:
    """Makes events of the records of one boot, given in their order.

    It remembers which UUID the driver named for an address, and the first line of a message of several lines.
    """

    def __init__(self, boot_id: str | None) -> None:
        self.boot_id = boot_id
        self.uuids: dict[str, str] = {}
        self._falling: str | None = None
        self._patience = 0

    def events(self, records: Iterable[str]) -> list[dict[str, Any]]:
        """`records` are as /dev/kmsg gives them; other lines are passed over."""
        found: list[dict[str, Any]] = []
        for record in records:
            match = re.match(_RECORD, record)
            if not match:
                continue
            text = re.sub(_ESCAPED, lambda code: chr(int(code[1], 16)), match["text"])
            for line in text.splitlines():
                event = self._line(line)
                if event:
                    event.update(
                        sequence=int(match["sequence"]),
                        uptime=int(match["microseconds"]) / 1e6,
                        boot_id=self.boot_id,
                        uuid=self.uuids.get(event["pci_address"]),
                    )
                    found.append(event)
        return found

    def _line(self, line: str) -> dict[str, Any] | None:
        self._patience -= 1
        if self._patience < 0:
            self._falling = None
        named = re.match(_UUID, line)
        if named:
            self.uuids[address(named["address"])] = named["uuid"]
            return None
        xid = re.match(_XID, line)
        if xid:
            return _event("xid", address(xid["address"]), line, int(xid["xid"]), detail(xid["rest"]))
        fallen = re.match(_OFF_BUS, line)
        if fallen:
            return _event("off_bus", address(fallen["address"]), line)
        begins = re.match(_OFF_BUS_BEGIN, line)
        if begins:
            self._falling, self._patience = address(begins["address"]), _LINES_BETWEEN
            return None
        if self._falling and re.match(_OFF_BUS_END, line):
            where, self._falling = self._falling, None
            return _event("off_bus", where, f"NVRM: The NVIDIA GPU {where} has fallen off the bus")
        return None


def _event(
    kind: str, pci_address: str, text: str, xid: int | None = None, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"kind": kind, "pci_address": pci_address, "xid": xid, "text": text, "detail": more or {}}


class Log:
    """The records of the kernel's log from the beginning of its buffer on, those of NVIDIA's driver only.

    `descriptor` is for poll(2). `ended` says that nothing comes any more, which the kernel's own log never says, but a
    pipe or a file in its place does. Raises OSError where there is no reading it.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.ended = False
        self._rest = b""

    def read(self, at_most: int | None = BATCH_AT_MOST) -> list[str]:
        """What has come since the last call, without waiting for more; of the kernel's records `at_most` are read."""
        records: list[str] = []
        for _read in itertools.count() if at_most is None else range(at_most):
            try:
                chunk = os.read(self.descriptor, RECORD_AT_MOST)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten before it was read; the next read gives the oldest record that is left.
                continue
            if not chunk:
                self.ended = True
                break
            # The kernel gives one record with each read, with further lines of its own; a pipe gives what is there.
            lines = (self._rest + chunk).split(b"\n")
            self._rest = lines.pop()
            records += [line.decode("utf-8", "replace") for line in lines if b"NVRM" in line]
        return records

    def close(self) -> None:
        os.close(self.descriptor)


def read(path: str = "/dev/kmsg") -> list[str]:
    """Every record of NVIDIA's driver that the kernel still has. Raises OSError where there is no reading it."""
    log = Log(path)
    try:
        return log.read(at_most=None)
    finally:
        log.close()
