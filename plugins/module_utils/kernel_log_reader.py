# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads /dev/kmsg as it grows. Source: Documentation/ABI/testing/dev-kmsg of the Linux kernel."""

from __future__ import annotations

import errno
import os

RECORD_AT_MOST = 8192
BATCH_AT_MOST = 2000


class KernelLogReader:
    """The records of the kernel's log from the beginning of its buffer on, those of NVIDIA's driver only.

    `descriptor` is for poll(2). `gaps` counts the times that the kernel overwrote records before they were read.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.gaps = 0
        self._rest = b""

    def read(self) -> list[str]:
        """What has come since the last call, at most BATCH_AT_MOST records, without waiting for more."""
        records: list[str] = []
        for _record in range(BATCH_AT_MOST):
            try:
                chunk = os.read(self.descriptor, RECORD_AT_MOST)
            except BlockingIOError:
                break
            except OSError as failure:
                if failure.errno == errno.EPIPE:
                    # The next read gives the oldest record that is still there.
                    self.gaps += 1
                    continue
                raise
            if not chunk:
                break
            # The kernel gives one record with each read, with further lines of its own; a pipe gives what is there.
            lines = (self._rest + chunk).split(b"\n")
            self._rest = lines.pop()
            records += [line.decode("utf-8", "replace") for line in lines if b"NVRM" in line]
        return records

    def close(self) -> None:
        os.close(self.descriptor)
