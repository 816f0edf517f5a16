# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command of the host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Optional

# Argument vector, standard input and time limit in seconds; exit status, stdout and stderr.
Run = Callable[[list[str], Optional[str], float], "tuple[int, str, str]"]

TIMED_OUT, NOT_FOUND = 124, 127


def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
    """Run a command; exit status 124 for one that takes too long, 127 for one that is not there."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv, input=stdin or "", capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT, "", f"it did not end within {timeout:.0f} s"
    except OSError as wrong:
        return NOT_FOUND, "", f"{argv[0]}: {wrong.strerror}"
    return done.returncode, done.stdout, done.stderr
