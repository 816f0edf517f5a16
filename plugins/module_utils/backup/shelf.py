# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The archives in a directory: their names, which of them stay, and which is the newest."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files

_STAMP = "%Y%m%d-%H%M%S"


def name_of(prefix: str, ending: str, now: float) -> str:
    return f"{prefix}-{time.strftime(_STAMP, time.gmtime(now))}{ending}"


def kept(directory: str, prefix: str, ending: str) -> list[str]:
    """The paths of the archives, the oldest first. What has another name is left alone."""
    known = re.compile(rf"{re.escape(prefix)}-\d{{8}}-\d{{6}}{re.escape(ending)}", re.ASCII)
    with suppress(FileNotFoundError):
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if known.fullmatch(name)]
    return []


def prune(directory: str, prefix: str, ending: str, count: int, newest: str) -> list[str]:
    """Remove all but the last `count`; never the one that was just made and compared."""
    gone = [path for path in kept(directory, prefix, ending)[: -max(1, count)] if path != newest]
    for path in gone:
        host_files.remove(path)
    with host_files.place(newest) as there:
        there.clean()
    return gone
