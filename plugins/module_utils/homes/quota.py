# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file system below a directory, and the quotas of users on it, by the kernel's own call.

The call: quotactl(2); its numbers and structures: linux/quota.h and linux/dqblk_xfs.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

USERS = 0
GET, SET, STATE = 0x800007, 0x800008, 0x5805
# Flags of STATE: the kernel counts what users have, and refuses more.
ENFORCED = 0x1 | 0x2
# struct if_dqblk: the hard limit in blocks of 1 KiB first, then used bytes; what of it is valid comes last.
LIMITS = struct.Struct("=8QI4x")
BLOCK, LIMIT_IS_VALID = 1024, 1
NONE = (errno.ENOENT, errno.ESRCH)

# Command, device, number of the user and structure. Raises OSError.
Call = Callable[[int, str, int, bytes], bytes]


@dataclass(frozen=True)
class FileSystem:
    """What a directory lies on.

    :ivar path: where it is mounted.
    :ivar source: the device as people know it; device is what the kernel takes.
    """

    path: str
    kind: str
    device: str
    source: str


def of(directory: str, table: str = "/proc/self/mountinfo") -> FileSystem:
    """The file system of a directory, which need not exist yet."""
    # What is not there will be made on the file system of what is.
    real = os.path.realpath(directory)
    found = FileSystem("/", "", "", "")
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields, _dash, more = line.partition(" - ")
            words = fields.split(" ")
            path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
            # The last mount at a path is what one sees.
            if f"{real}/".startswith(f"{path.rstrip('/')}/") and len(path) >= len(found.path):
                kind, source = more.split(" ")[:2]
                number = f"/dev/block/{words[2]}"
                found = FileSystem(path, kind, number if os.path.exists(number) else source, source)
    return found


def call(command: int, device: str, number: int, content: bytes) -> bytes:
    """quotactl(2) for users."""
    place = ctypes.create_string_buffer(content, len(content))
    function = ctypes.CDLL(None, use_errno=True).quotactl
    done = function(ctypes.c_int((command << 8 | USERS) & 0xFFFFFFFF), device.encode(), ctypes.c_int(number), place)
    if done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return place.raw


def rounded(size: int) -> int:
    """The next size that a quota can have."""
    return -(-size // BLOCK) * BLOCK


class Quotas:
    """The quotas of users on one file system."""

    def __init__(self, file_system: FileSystem, call: Call = call) -> None:
        self.file_system = file_system
        self._call = call

    def check(self, setting: str) -> None:
        """:raises Refused: if the kernel does not enforce quotas there.

        :param setting: what to set where there are to be none.
        """
        found = self.file_system
        try:
            # struct fs_quota_stat: the flags are its second field.
            flags = struct.unpack_from("=H", self._call(STATE, found.device, 0, bytes(256)), 2)[0]
        except OSError:
            flags = 0
        if flags & ENFORCED == ENFORCED:
            return
        ways = {
            "ext4": f"unmount {found.path}, run `sudo tune2fs -O quota {found.source}`, add `usrquota` to its options"
            " in /etc/fstab and mount it again",
            "xfs": f"add `uquota` to the options of {found.path} in /etc/fstab, unmount it and mount it again; the root"
            " file system takes `rootflags=uquota` of the kernel's command line, and a reboot",
        }
        if (found.path, found.kind) == ("/", "ext4"):
            # What cannot be unmounted has its quotas in a file.
            ways["ext4"] = (
                "install the package quota, add `usrjquota=aquota.user,jqfmt=vfsv1` to the options of / in /etc/fstab,"
                " and run `sudo mount -o remount / && sudo quotacheck -cum / && sudo quotaon /`; better, put the homes"
                " on a file system of their own"
            )
        way = ways.get(found.kind, "put the homes on a file system of their own, ext4 with the feature quota or xfs")
        raise Refused(
            f"{found.path} ({found.kind}) does not enforce quotas of users",
            f"{way}. Or set `{setting}: false` for homes without quotas",
            code="no_quotas",
            subject=found.path,
            evidence=found.kind,
        )

    def read(self, uid: int) -> tuple[int, int]:
        """What a user may have, 0 without a limit, and what the user has, in bytes."""
        try:
            fields = LIMITS.unpack(self._call(GET, self.file_system.device, uid, bytes(LIMITS.size)))
        except OSError as why:
            if why.errno in NONE:
                return 0, 0
            raise
        return fields[0] * BLOCK, fields[2]

    def set(self, uid: int, size: int) -> None:
        """Let a user have so many bytes; 0 for no limit."""
        blocks = rounded(size) // BLOCK
        self._call(SET, self.file_system.device, uid, LIMITS.pack(blocks, blocks, *[0] * 6, LIMIT_IS_VALID))
