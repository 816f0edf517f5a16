# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a timer runs on a host: an archive of what it alone knows, of which the last few are kept: SETTINGS."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import make, parts, shelf
from ansible_collections.baremetal.gpu.plugins.module_utils.host import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed, parse_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run as run_program

ENDING = ".tar.gz"
METRICS: exposition.Metrics = {
    "baremetal_gpu_backup_timestamp_seconds": ("gauge", (), "When an archive of the host was made last."),
    "baremetal_gpu_backup_bytes": ("gauge", (), "Size of the newest archive of the host."),
}


def nightly(settings: dict[str, Any], run: Run, now: float) -> str:
    """The path of the archive that was made. Raises Refused, OSError and Malformed; the earlier ones are all there."""
    directory, host = settings["path"], settings["host"]
    host_files.make_directories(directory, 0o700)
    path = os.path.join(directory, shelf.name_of(host, ENDING, now))
    make.make(path, host, parts.read(settings["parts"]), run, now)
    shelf.prune(directory, host, ENDING, settings["keep"], path)
    if settings["metrics"]:
        rows: list[exposition.Sample] = [
            ("baremetal_gpu_backup_timestamp_seconds", {}, now),
            ("baremetal_gpu_backup_bytes", {}, os.path.getsize(path)),
        ]
        host_files.write(settings["metrics"], exposition.exposition(rows, METRICS), 0o644)
    return path


def main(words: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if words is None else list(words)
    if len(given) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    before = os.umask(0o077)
    try:
        sys.stdout.write(f"{nightly(parse_object(host_files.read(given[0])), run_program, time.time())}\n")
    except (Refused, OSError, Malformed) as why:
        sys.stderr.write(f"no archive was made, and the earlier ones are kept: {why}\n")
        return 1
    finally:
        os.umask(before)
    return 0
