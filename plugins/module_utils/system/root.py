# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and programs of a host whose root directory need not be /; for what only reads."""

from __future__ import annotations

import os
import subprocess
from typing import Callable

# Argument vector; exit status and standard output.
Run = Callable[[list[str]], "tuple[int, str]"]


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Exit status and standard output; status 127 where there is no such command."""
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return 127, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))
