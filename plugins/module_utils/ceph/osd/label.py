# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The label at the start of a BlueStore device, read without any tool of Ceph.

A line of text, the UUID of the OSD, and then, in Ceph's encoding, `bluestore_bdev_label_t` of
https://github.com/ceph/ceph/blob/main/src/os/bluestore/bluestore_types.h.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

MAGIC = b"bluestore block device\n"
LABEL_BYTES = 4096


class LabelError(ValueError):
    """It begins as a BlueStore device does, and goes on otherwise."""


def parse(data: bytes) -> dict[str, Any] | None:
    """The label in the first bytes of a device; None where there is none.

    :return: osd_uuid, size (bytes), description, and meta as Ceph's tools show it: whoami, ceph_fsid, mkfs_done...
    :raises LabelError: if it is cut short or of another format.
    """
    if not data.startswith(MAGIC):
        return None
    # The text is followed by the UUID as text and a line feed.
    reader = _Reader(data, len(MAGIC) + 37)
    try:
        version, _compatible, _length = reader.numbers("<BBI")
        osd_uuid = str(uuid.UUID(bytes=reader.take(16)))
        (size,) = reader.numbers("<Q")
        reader.take(8)
        description = reader.text()
        meta = {}
        if version >= 2:
            (left,) = reader.numbers("<I")
            while left:
                left -= 1
                key = reader.text()
                meta[key] = reader.text()
    except (struct.error, UnicodeDecodeError, ValueError) as wrong:
        raise LabelError(f"a BlueStore label that cannot be read ({wrong})") from None
    return {"osd_uuid": osd_uuid, "size": size, "description": description, "meta": meta}


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError("it is cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        return self.take(self.numbers("<I")[0]).decode()
