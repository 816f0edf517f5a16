# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the head of a journal file says of its entries, by the file format that systemd documents and keeps stable.

journald and systemd-journal-remote update the head with each entry, so that it holds for a file in use too.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

HEAD_BYTES = 200
_SIGNATURE = b"LPKSHHRH"
# n_entries, tail_entry_seqnum, head_entry_seqnum, entry_array_offset, head_entry_realtime, tail_entry_realtime
_COUNTS = struct.Struct("<6Q")
_FILE_ID, _SEQNUM_ID, _COUNTS_AT = slice(24, 40), slice(72, 88), 152
# systemd writes there when a file was made, by the clock of the host.
_MADE = "user.crtime_usec"
# NAME.journal is written to. NAME@….journal has been, and so has NAME@….journal~, whose writer did not close it.
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)(?P<archived>@[0-9a-f-]+)?\.journal(?P<unclean>~?)", re.ASCII)


class Head(NamedTuple):
    """Times are in microseconds, by the clock of the host that wrote the entries."""

    file_id: str
    seqnum_id: str
    entries: int
    head_seqnum: int
    tail_seqnum: int
    head_realtime: int
    tail_realtime: int


class Named(NamedTuple):
    """A journal file by its name.

    :ivar of: what the name begins with, such as system, or the host that a file is of.
    :ivar is_active: whether it may be written to.
    """

    path: str
    of: str
    is_active: bool


def parse(content: bytes) -> Head | None:
    """None for what is no journal file."""
    if len(content) < HEAD_BYTES or content[:8] != _SIGNATURE:
        return None
    entries, tail, head, _array, head_time, tail_time = _COUNTS.unpack_from(content, _COUNTS_AT)
    file_id, seqnum_id = content[_FILE_ID].hex(), content[_SEQNUM_ID].hex()
    return Head(file_id, seqnum_id, entries, head, tail, head_time, tail_time)


def read(path: str) -> Head | None:
    """None also for a file that cannot be read, or was removed meanwhile."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(HEAD_BYTES))
    except OSError:
        return None


def listed(directory: str) -> Iterator[Named]:
    """The journal files of a directory; none without it."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found:
            is_active = not found["archived"] and not found["unclean"]
            yield Named(os.path.join(directory, name), found["name"], is_active)


def made_at(path: str) -> float | None:
    """When a file was made, in Unix seconds; None where the file system does not keep it."""
    try:
        content = os.getxattr(path, _MADE)
    except OSError:
        return None
    return int.from_bytes(content, "little") / 1e6 if len(content) == 8 else None


def archived_name(path: str, head: Head) -> str:
    """The name that systemd would give to the file once nobody writes to it any more."""
    return f"{path[: -len('.journal')]}@{head.seqnum_id}-{head.head_seqnum:016x}-{head.head_realtime:016x}.journal"
