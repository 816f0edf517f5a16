# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's drivers say in the kernel's log: Xids, GPUs that fell off the bus, and SXids of NVSwitches.

An event is {kind: xid|off_bus|sxid, pci_address, uuid (null where the log does not tell), xid (null but for xid), sxid
(of sxid only), text, sequence and uptime (seconds since boot) of the record, boot_id, detail}. `detail` holds what the
text adds. Of an Xid: pid, process; instance, compute_instance of MIG; unit, fatal, link of an NVLink 5 error;
recovery_from and recovery_to of Xid 154. Of an SXid: switch, severity (fatal, nonfatal, correctable or unknown), links.

The log is public: whoever may run a program can make the kernel quote a text of his (a mount option, the name of a
process), whoever sets rules of the packet filter has it log one, and root in a container may write to /dev/kmsg. So
only a whole record of the kernel itself counts, and only one that begins as the driver begins it. What is quoted
further on in a record, line breaks included, is a part of that one message and never a message of its own.

Source: Documentation/ABI/testing/dev-kmsg of the Linux kernel; NVIDIA's open kernel modules (kernel_rc.c,
common_nvswitch.h, error_nvswitch.c) for what they print; NVIDIA's Xid documentation; the captured lines in the tests.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import SAYS_FATAL

# Patterns, compiled by `re` where one is needed first: a host that has nothing to say pays for none. Numbers are
# bounded, since Python refuses to read one of thousands of digits.
_RECORD = (
    r"(?s)^(?P<priority>[0-9]{1,10}),(?P<sequence>[0-9]{1,20}),(?P<microseconds>[0-9]{1,20}),(?P<flag>[^,;]*)[^;]*;"
    r"(?P<text>.*)$"
)
# A record of userspace has a facility of its own, and the kernel lets none of it pass for its own.
_KERNEL_FACILITY = 0
# A record may be a piece that another one began. The driver writes whole lines, so such a piece is not the driver's.
_WHOLE = ("", "-")
_GPU, _SWITCH = "NVRM: ", "nvidia-nvswitch"
DRIVERS = (_GPU, _SWITCH)

_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
# The parenthesis may hold more than the address: the instance of MIG, and what a later driver adds.
_XID = (
    rf"^NVRM:\s+Xid\s+\((?:PCI:)?\s*(?P<address>{_ADDRESS})(?P<more>[ ,][^)]*)?\)\s*:\s*(?P<xid>[0-9]{{1,4}})(?![0-9])"
)
_INSTANCE = r"\bGPU-I:\s*(?P<instance>[0-9]{1,6})"
_COMPUTE_INSTANCE = r"\bGPU-CI:\s*(?P<instance>[0-9]{1,6})"
_OFF_BUS = rf"(?i)^NVRM:\s+GPU\s+(?P<address>{_ADDRESS}):\s+GPU has fallen off the bus"
# This form has three lines, which come as one record or as one each, and only the first names the GPU.
_OFF_BUS_WHOLE = rf"(?i)^NVRM: The NVIDIA GPU (?P<address>{_ADDRESS})(?=[\s(]).{{0,200}}?\bfallen off the bus\b"
_PCI_ID = r"(?:\(PCI ID: ?[0-9a-f:]{1,12}\))?"
_OFF_BUS_BEGIN = (
    rf"(?i)^NVRM: The NVIDIA GPU (?P<address>{_ADDRESS})\s*{_PCI_ID}\s*(?:installed in this)?\s*(?:system)?\s*(?:has)?$"
)
_OFF_BUS_GOES_ON = rf"(?i)^NVRM:\s+{_PCI_ID}\s*(?:installed in this)?\s*(?:system)?\s*(?:has)?$"
_OFF_BUS_END = rf"(?i)^NVRM:\s+{_PCI_ID}\s*(?:installed in this )?(?:system )?(?:has )?fallen off the bus\b"
_UUID = (
    rf"^NVRM: GPU at PCI:\s*(?P<address>{_ADDRESS}):\s+"
    r"(?P<uuid>GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)
# The name of a process may hold colons and commas, and a pid that is not known is in quotes.
_PROCESS = r"\bpid='?(?P<pid>[^',]{1,32})'?, name=(?P<process>.*?)(?:, |$)"
_LINK = (
    r"\b(?P<unit>[A-Z][A-Z0-9_]*)\s+(?P<word>[A-Za-z][A-Za-z_-]*)\s+XC\w*\s+(?:\S+\s+){0,6}?"
    r"Link:?\s+(?P<link>-?[0-9]{1,4})\b"
)
_RECOVERY = (
    r"(?i)recovery action changed from\s+(?:0x)?(?P<before>[0-9a-f]{1,8})\b[^,]{0,80}?"
    r"\bto\s+(?:0x)?(?P<after>[0-9a-f]{1,8})\b"
)
_SXID = (
    rf"^nvidia-(?P<switch>nvswitch[0-9]{{1,4}}):?\s+SXid \((?:PCI:)?\s*(?P<address>{_ADDRESS})[^)]*\):"
    r"\s*(?P<sxid>[0-9]{1,6})(?![0-9])[,:]?\s*(?P<rest>.*)$"
)
# Lines that add to an SXid that was told: the raw data, and the severity as a number, of which 0 is not fatal.
_SXID_DATA = r"^Data\s*\{"
_SXID_SEVERITY = r"^Severity\s+(?P<severity>[0-9]{1,4})\b"
_SXID_WORD = r"(?i)^\s*(?P<word>non[-_ ]?fatal|fatal|correctable|corrected)\b"
_SXID_LINK = r"\bLinks?:?\s+(?P<link>[0-9]{1,3})\b"
SEVERITIES = {"fatal": "fatal", "nonfatal": "nonfatal", "correctable": "correctable", "corrected": "correctable"}
# The packet filter writes a text of whoever may set its rules, and then this. It is longer than a process's name may
# be, so nobody hides an Xid of his own behind it.
_PACKET = r"\bIN=\S{0,16} OUT=\S{0,16} .{0,200}?(?:\bSRC=\S+ DST=\S|\bARP HTYPE=|\bMACSRC=)"
# dev-kmsg writes what cannot be printed, and the backslash itself, as \xNN.
_ESCAPED = rb"\\x([0-9a-f]{2})"
# The lines of one message come in records that follow one another.
_LINES_MOST = 3
# The kernel's own limit for a record, and what is read of a longer line that is none.
RECORD_AT_MOST = 8192
BATCH_AT_MOST = 2000
# More than the kernel's largest buffer holds: a log that is written faster than it is read has no end.
READS_MOST = 1 << 20
# Of a driver's message.
TEXT_MOST, PROCESS_MOST = 500, 64
# More GPUs are not in one host.
UUIDS_MOST = 256


def address(text: str) -> str:
    """The kernel's way to write an address, with a function, which an Xid leaves out."""
    return normal_address(text if "." in text else f"{text}.0")


def _last(pattern: str, text: str) -> re.Match[str] | None:
    """The last match: the driver's own words come after the name of a process, which anybody chooses."""
    found = None
    for match in re.finditer(pattern, text):
        found = match
    return found


def _severity(word: str) -> str:
    return SEVERITIES.get(re.sub(r"[^a-z]", "", word.lower()), "unknown")


def detail(rest: str, place: str = "") -> dict[str, Any]:
    """What the text behind an Xid's number adds, and what stands beside the address of the GPU."""
    found: dict[str, Any] = {}
    for key, pattern in (("instance", _INSTANCE), ("compute_instance", _COMPUTE_INSTANCE)):
        instance = re.search(pattern, place)
        if instance:
            found[key] = int(instance["instance"])
    process = re.search(_PROCESS, rest)
    if process:
        pid = process["pid"]
        found["pid"] = int(pid) if re.match(r"^[0-9]{1,10}$", pid) else None
        found["process"] = None if process["process"] == "<unknown>" else one_line(process["process"], PROCESS_MOST)
    link = _last(_LINK, rest)
    if link:
        severity = _severity(link["word"])
        # Null is a word that is not known, which must not be taken for a milder one.
        fatal = None if severity == "unknown" else severity == "fatal"
        found.update(unit=link["unit"], fatal=fatal, link=int(link["link"]))
    recovery = _last(_RECOVERY, rest)
    if recovery:
        found.update(recovery_from=int(recovery["before"], 16), recovery_to=int(recovery["after"], 16))
    return found


def _plain(text: str) -> str:
    """A record's text as one printable line, with its escapes undone. Line breaks are blanks."""
    raw = re.sub(_ESCAPED, lambda code: bytes([int(code[1], 16)]), text.encode("utf-8", "replace"))
    return one_line(raw, RECORD_AT_MOST).strip()


def _message(body: str) -> str:
    """The message of a record, without the lines of its dictionary, which begin with a blank."""
    lines = body.split("\n")
    end = next((number for number, line in enumerate(lines) if number and line.startswith(" ")), len(lines))
    return "\n".join(lines[:end])


class Parser:
    """Makes events of the records of one boot, given in their order.

    It remembers which UUID the driver named for an address, and the first line of a message of several lines.
    """

    def __init__(self, boot_id: str | None) -> None:
        self.boot_id = boot_id
        self.uuids: dict[str, str] = {}
        # The address, the record's number and how many lines there were, of a message that goes on in the next record.
        self._falling: tuple[str, int, int] | None = None

    def events(self, records: Iterable[str]) -> list[dict[str, Any]]:
        """`records` are as /dev/kmsg gives them; other lines are passed over."""
        found: list[dict[str, Any]] = []
        for record in records:
            match = re.match(_RECORD, record)
            if not match:
                continue
            sequence = int(match["sequence"])
            by_kernel = int(match["priority"]) >> 3 == _KERNEL_FACILITY and match["flag"] in _WHOLE
            body = match["text"]
            if not by_kernel or not body.startswith(DRIVERS):
                continue
            line = _plain(_message(body))
            event = None if re.search(_PACKET, line) else self._line(line, sequence)
            if event:
                event.update(
                    sequence=sequence,
                    uptime=int(match["microseconds"]) / 1e6,
                    boot_id=self.boot_id,
                    uuid=self.uuids.get(event["pci_address"]),
                )
                found.append(event)
        return found

    def _line(self, line: str, sequence: int) -> dict[str, Any] | None:
        falling, self._falling = self._falling, None
        if line.startswith(_SWITCH):
            return _sxid(line)
        named = re.match(_UUID, line)
        if named:
            where = address(named["address"])
            if where in self.uuids or len(self.uuids) < UUIDS_MOST:
                self.uuids[where] = named["uuid"]
            return None
        xid = re.match(_XID, line)
        if xid:
            number, told = int(xid["xid"]), detail(line[xid.end() :], xid["more"] or "")
            if number in SAYS_FATAL:
                told.setdefault("fatal", None)
            return _event("xid", address(xid["address"]), line, number, told)
        fallen = re.match(_OFF_BUS, line) or re.match(_OFF_BUS_WHOLE, line)
        if fallen:
            return _off_bus(address(fallen["address"]))
        begins = re.match(_OFF_BUS_BEGIN, line)
        if begins:
            self._falling = address(begins["address"]), sequence, 1
            return None
        if falling and sequence == falling[1] + 1:
            where, _before, lines = falling
            if re.match(_OFF_BUS_END, line):
                return _off_bus(where)
            if lines + 1 < _LINES_MOST and re.match(_OFF_BUS_GOES_ON, line):
                self._falling = where, sequence, lines + 1
        return None


def _event(
    kind: str, pci_address: str, text: str, xid: int | None = None, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "kind": kind,
        "pci_address": pci_address,
        "xid": xid,
        "text": one_line(text, TEXT_MOST),
        "detail": more or {},
    }


def _off_bus(where: str) -> dict[str, Any]:
    return _event("off_bus", where, f"NVRM: GPU {where}: GPU has fallen off the bus")


def _sxid(line: str) -> dict[str, Any] | None:
    match = re.match(_SXID, line)
    if not match:
        return None
    rest = match["rest"]
    if re.match(_SXID_DATA, rest):
        return None
    links = [int(found["link"]) for found in re.finditer(_SXID_LINK, rest)]
    number = re.match(_SXID_SEVERITY, rest)
    if number:
        if int(number["severity"]) == 0:
            # The line before told the same in words.
            return None
        severity = "fatal" if int(number["severity"]) == 1 else "unknown"
    else:
        words = [word["word"] for word in (re.match(_SXID_WORD, part) for part in rest.split(",")) if word]
        severity = _severity(words[0]) if words else "unknown"
    event = _event("sxid", address(match["address"]), line)
    event["sxid"] = int(match["sxid"])
    event["detail"] = {"switch": match["switch"], "severity": severity, "links": sorted(set(links))}
    return event


class Log:
    """The records of the kernel's log from the beginning of its buffer on, those of NVIDIA's drivers only.

    `descriptor` is for poll(2), which takes it where `pollable` says so: a plain file in the log's place has no end to
    wait for. `ended` says that nothing comes any more, which the kernel's own log never says, but a pipe or a file in
    its place does. Raises OSError where there is no reading it.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.pollable = not stat.S_ISREG(os.fstat(self.descriptor).st_mode)
        self.ended = False
        self._rest = b""
        # A line that is longer than a record can be, and whose end has not come yet.
        self._too_long = False

    def read(self, at_most: int | None = BATCH_AT_MOST) -> list[str]:
        """What has come since the last call, without waiting for more; of the kernel's records `at_most` are read."""
        records: list[str] = []
        refused = 0
        for _read in range(READS_MOST if at_most is None else at_most):
            try:
                chunk = os.read(self.descriptor, RECORD_AT_MOST)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten before it was read; the next read gives the oldest record that is left.
                continue
            except OSError as failure:
                # The kernel has a record that is longer than asked for, and goes on to the next one.
                refused += 1
                if failure.errno != errno.EINVAL or refused > BATCH_AT_MOST:
                    raise
                continue
            if not chunk:
                self.ended = True
                break
            records += self._records(chunk)
        return records

    def _records(self, chunk: bytes) -> list[str]:
        """The kernel gives one record with each read, with further lines of its own; a pipe gives what is there."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if self._too_long and lines:
            del lines[0]
            self._too_long = False
        if len(self._rest) > RECORD_AT_MOST:
            self._rest, self._too_long = b"", True
        return [line.decode("utf-8", "replace") for line in lines if _is_drivers(line)]

    def close(self) -> None:
        os.close(self.descriptor)


_OF_DRIVERS = tuple(name.encode() for name in DRIVERS)


def _is_drivers(line: bytes) -> bool:
    return len(line) <= RECORD_AT_MOST and line.partition(b";")[2].startswith(_OF_DRIVERS)


def read(path: str = "/dev/kmsg") -> list[str]:
    """Every record of NVIDIA's drivers that the kernel still has. Raises OSError where there is no reading it."""
    log = Log(path)
    try:
        return log.read(at_most=None)
    finally:
        log.close()
