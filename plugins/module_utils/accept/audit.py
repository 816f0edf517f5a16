# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of a cluster of Slurm by cmax, a program of the package clustermax that others wrote."""

from __future__ import annotations

import re
import shutil
import tempfile
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

PROGRAM, PROGRAM_PATH = "cmax", "/usr/local/sbin:/usr/local/bin:" + run.SYSTEM_PATH
# It asks every node in turn.
TIMEOUT_S = 1800
OUTPUT_MOST, ROWS_MOST = 4 << 20, 1000
_HEADING = re.compile(r"(PASS|WARNING|FAIL|SKIPPED) +(.{1,200}?)  \[([A-Za-z0-9._-]{1,100})\]")
_OBSERVED = "Observed: "


def audit(execute: Callable[..., tuple[int, bytes, bytes]] = run.execute, path: str = PROGRAM_PATH) -> dict[str, Any]:
    """{installed, error, rows}; rows are {id, title, status, observed}. What the program writes is removed."""
    program = shutil.which(PROGRAM, path=path)
    found: dict[str, Any] = {"installed": program is not None, "error": None, "rows": []}
    if program is None:
        return found
    # timeout ends its children, too.
    argv = ["timeout", "--kill-after=10", str(TIMEOUT_S), program, "audit", "--slurm", "--yes"]
    with tempfile.TemporaryDirectory() as directory:
        environment = {"HOME": directory, "CLUSTERMAX_RUNS_ROOT": directory, "PATH": path}
        try:
            status, said, _error = execute(
                argv, TIMEOUT_S + 60, environment=environment, directory=directory, merged=True
            )
        except (run.TimedOut, OSError) as failure:
            found["error"] = one_line(failure, 300)
            return found
    text = run.text(said[-OUTPUT_MOST:])
    found["rows"] = rows(text)
    if status == run.TIMED_OUT:
        found["error"] = f"it did not end within {TIMEOUT_S} s"
    elif not found["rows"]:
        found["error"] = one_line((text.split("\n\n")[-1].strip() or "it said nothing").splitlines()[-1], 300)
    return found


def rows(report: str) -> list[dict[str, str]]:
    """The checks of a report as the program prints it."""
    found: list[dict[str, str]] = []
    for line in report.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            status, title, key = heading.groups()
            found.append({"id": key, "title": one_line(title, 200), "status": status, "observed": ""})
        elif found and line.strip().startswith(_OBSERVED):
            found[-1]["observed"] = one_line(line.strip()[len(_OBSERVED) :], 300)
    return found[:ROWS_MOST]
