# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Free space on the disks of a host."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below


def disk(paths: Iterable[str], root: str = "/") -> dict[str, dict[str, Any]]:
    """Free space by path, with the file system's number, since several paths often share one."""
    answer = {}
    for path in paths:
        place = below(root, path)
        while not os.path.exists(place) and len(place) > len(root):
            place = os.path.dirname(place)
        try:
            space = os.statvfs(place)
            device = os.stat(place).st_dev
        except OSError:
            continue
        answer[path] = {"free_mib": space.f_bavail * space.f_frsize >> 20, "device": device}
    return answer
