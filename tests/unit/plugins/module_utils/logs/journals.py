# SPDX-License-Identifier: GPL-3.0-or-later
"""Heads of journal files, made up by the format that systemd documents."""

from __future__ import annotations

import os
import struct
from pathlib import Path


def head(
    number: int, first: int, last: int, *, series: int = 1, entries: int = -1, realtime: tuple[int, int] = (0, 0)
) -> bytes:
    """The head of a file with the entries `first` to `last`, by default all of these.

    :param number: makes the id of the file.
    :param series: makes the id of the series of numbers.
    :param realtime: of the first entry and the last, in microseconds; by default their numbers in seconds.
    """
    content = bytearray(272)
    content[:8] = b"LPKSHHRH"
    content[24:40] = number.to_bytes(16, "big")
    content[72:88] = series.to_bytes(16, "big")
    begin, end = realtime if any(realtime) else (first * 1_000_000, last * 1_000_000)
    count = entries if entries >= 0 else last - first + 1
    struct.pack_into("<6Q", content, 152, count, last, first, 0, begin, end)
    return bytes(content)


def cursor(seqnum: int, *, series: int = 1, realtime: int = -1) -> str:
    """The file of systemd-journal-upload after the entry with this number."""
    when = realtime if realtime >= 0 else seqnum * 1_000_000
    name = series.to_bytes(16, "big").hex()
    return (
        f"# This is private data. Do not parse.\nLAST_CURSOR=s={name};i={seqnum:x};b={'ab' * 16};m=1;t={when:x};x=2\n"
    )


def file(path: Path, content: bytes, mebibytes: int = 0, modified: float = 0) -> Path:
    """A file with this head that takes so much space."""
    with path.open("wb") as opened:
        opened.write(content)
        if mebibytes:
            os.posix_fallocate(opened.fileno(), 0, mebibytes << 20)
    if modified:
        os.utime(path, (modified, modified))
    return path
