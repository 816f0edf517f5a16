# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of a host."""

from __future__ import annotations

import os
import re

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text


def memory_mib(root: str = "/") -> int:
    """Memory of the host in MiB; 0 where it cannot be told."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read_text(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0
