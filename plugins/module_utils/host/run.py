# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program of the host.

`execute` raises what kept a program from its end; with `run` and `ask` an exit status tells it, as in a shell. Code
that runs programs takes a `Run` or a `Call` from its caller, so that a test can answer in a program's place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

# Argument vector, standard input and time limit in seconds; exit status, stdout and stderr.
Run = Callable[[list[str], Optional[str], float], "tuple[int, str, str]"]
# Argument vector; exit status and what the program said.
Call = Callable[[Sequence[str]], "tuple[int, str]"]

TIMED_OUT, NOT_FOUND = 124, 127
ASK_S = 60
# Whatever PATH the caller has, which may be that of cron or of an operator's shell.
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class TimedOut(Exception):
    """The program did not end in time, and was killed."""


def execute(
    argv: Sequence[str],
    timeout: float,
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    directory: str | None = None,
    merged: bool = False,
) -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr of a program. With `merged` stdout has what went to either, in its order.

    The program speaks English in UTF-8; `environment` is added to this process's.

    :raises TimedOut, OSError: without the program, or if it cannot be started.
    """
    # The agent always runs, and seldom runs a program.
    import subprocess

    source: dict[str, Any] = {"input": stdin} if stdin else {"stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            list(argv),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            cwd=directory,
            timeout=timeout,
            check=False,
            **source,
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(f"it did not end within {timeout:g} s") from None
    return done.returncode, done.stdout, done.stderr or b""


def text(output: bytes) -> str:
    """What a program said. A byte that is no UTF-8 becomes U+FFFD, and every end of a line a newline."""
    return output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
    """Run a command; exit status 124 for one that takes too long, 127 for one that is not there."""
    try:
        status, stdout, stderr = execute(argv, timeout, stdin=(stdin or "").encode())
    except TimedOut:
        return TIMED_OUT, "", f"it did not end within {timeout:.0f} s"
    except OSError as wrong:
        return NOT_FOUND, "", f"{argv[0]}: {wrong.strerror}"
    return status, text(stdout), text(stderr)


def ask(argv: Sequence[str]) -> tuple[int, str]:
    """Exit status and standard output of a command that only tells something; 127 if there is none, or no end."""
    try:
        status, stdout, _stderr = execute(argv, ASK_S, environment={"LC_ALL": "C"})
    except (TimedOut, OSError):
        return NOT_FOUND, ""
    return status, text(stdout)
