# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks something in a child process, which may hang or crash in place of the caller."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any


class Failed(Exception):
    """The child gave no answer."""


class TimedOut(Failed):
    """It did not answer in time."""


class DoesNotEnd(Failed):
    """It has closed its end without an answer, and does not come to its end."""


class Crashed(Failed):
    """It ended without an answer; the message says how."""


def answer(work: Callable[[], dict[str, Any]], deadline_s: float) -> dict[str, Any]:
    """Runs `work` in a forked child and returns its JSON-able answer. Raises Failed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            # A child that hangs in the kernel outlives the caller; it must not hold the caller's pipes open.
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            text = json.dumps(work()).encode()
            while text:
                text = text[os.write(writer, text) :]
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    chunks = []
    end = time.monotonic() + deadline_s
    try:
        while True:
            ready, _writable, _failed = select.select([reader], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(child, signal.SIGKILL)
                raise TimedOut(f"no answer within {deadline_s:g} s")
            chunk = os.read(reader, 65536)
            if not chunk:
                break
            chunks.append(chunk)
    finally:
        os.close(reader)
        ended = reap(child)
    if not chunks:
        if ended is None:
            os.kill(child, signal.SIGKILL)
            raise DoesNotEnd("it has gone silent and does not come to its end")
        raise Crashed(f"by signal {os.WTERMSIG(ended)}" if os.WIFSIGNALED(ended) else "without a word")
    told: dict[str, Any] = json.loads(b"".join(chunks).decode())
    return told


def reap(child: int) -> int | None:
    """Status of a child that ends, None if it does not within a second.

    A process in an uninterruptible call cannot be waited for.
    """
    pause = 0.0005
    while pause < 0.6:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause *= 2
    return None
