# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Prolog leaves for the TaskProlog and the Epilog of a job, in files that only root writes.

`job-ID.json` is how the job found its GPUs; `refused-ID` is what the TaskProlog tells the user of a job that may not
run. Both are gone after the Epilog, and with a reboot.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files

DIRECTORY = "/run/baremetal-gpu-slurm"
SIZE_AT_MOST = 256 << 10


class Notes:
    """The notes of one job. `job` is its number."""

    def __init__(self, job: int, directory: str = DIRECTORY) -> None:
        self.found = os.path.join(directory, f"job-{job}.json")
        self.refused = os.path.join(directory, f"refused-{job}")
        self._directory = directory

    def keep(self, before: Mapping[str, Any]) -> None:
        """Raises OSError."""
        host_files.make_directories(self._directory, 0o755)
        host_files.write(self.found, json.dumps(before), mode=0o600, durable=False)

    def refuse(self, lines: Sequence[str]) -> None:
        """Raises OSError."""
        host_files.make_directories(self._directory, 0o755)
        text = "".join(f"print {line}\n" for line in lines)
        host_files.write(self.refused, text, mode=0o644, durable=False)

    def read(self) -> dict[str, Any]:
        """What `keep` kept; empty where there is none that can be understood."""
        try:
            return bounded_json.parse_object(host_files.read(self.found, SIZE_AT_MOST))
        except (OSError, bounded_json.Malformed):
            return {}

    def remove(self) -> None:
        for path in (self.found, self.refused):
            with contextlib.suppress(OSError):
                host_files.remove(path)
