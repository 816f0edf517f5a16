# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host already has of ZooKeeper."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_foreign_text, read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import conf as zookeeper_conf


def kept_id(data_dir: str) -> int | None:
    """The id in a data directory; None where there is none, or the text of a package's example."""
    text = read_foreign_text(os.path.join(data_dir, "myid")).strip()
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def has_data(*directories: str) -> bool:
    """Whether a server has ever run in these directories, ``dataDir`` and ``dataLogDir``."""
    return any(
        glob.glob(os.path.join(glob.escape(one), "version-2", pattern))
        for one in directories
        if one
        for pattern in ("snapshot.*", "log.*", "currentEpoch")
    )


def current(paths: Iterable[str]) -> dict[str, Any]:
    """The configuration that the server has now, from the first file that is there; empty without one."""
    for path in paths:
        text = read_text(path)
        if text:
            return {**zookeeper_conf.parse(text), "path": path}
    return {}
