# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A publisher of agent.py whose work a child process does, so that no server that hangs keeps the agent from its own.

The agent writes what is to be published into a socket, one line of JSON each time. The child writes back {problem}, why
it is not published, or null; and {orders}, what the reconciler says to this host: {order, clear}.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any, Callable

# A child that ended is started again no sooner than this.
RESTART_S = 5.0
MESSAGE_AT_MOST = 1 << 20


class Courier:
    """`describe` makes what is published of the agent's result; `serve` is the child's work with its end of the socket,
    until that is closed, and gives its exit status.

    What comes from the reconciler is given by `hear`, to be called when `pipe` can be read.
    """

    def __init__(
        self,
        describe: Callable[[dict[str, Any]], Mapping[str, Any]],
        serve: Callable[[socket.socket], int],
        to: str,
    ) -> None:
        self.describe, self.serve, self.to = describe, serve, to
        self.pipe: socket.socket | None = None
        self.process: int | None = None
        self.problem: str | None = None
        self._buffer = b""
        self._start_at = 0.0

    def publish(self, result: dict[str, Any]) -> None:
        """Raises OSError with the reason while the verdict is not published."""
        if self.pipe is None and time.monotonic() >= self._start_at:
            self._start()
        if self.pipe is not None:
            line = json.dumps(self.describe(result), separators=(",", ":")).encode() + b"\n"
            try:
                self.pipe.settimeout(1.0)
                self.pipe.sendall(line)
                self.pipe.setblocking(False)
            except OSError:
                # Stuck or gone; a half message would spoil what follows.
                self.close()
                self.problem = f"the process that talks to {self.to} has ended"
        if self.problem:
            raise OSError(self.problem)

    def _start(self) -> None:
        self._start_at = time.monotonic() + RESTART_S
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            status = 1
            try:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    # systemd tells all of the unit at once; this one ends after the agent.
                    signal.signal(number, signal.SIG_IGN)
                signal.set_wakeup_fd(-1)
                _close_all_but(theirs.fileno())
                status = self.serve(theirs)
            finally:
                os._exit(status)
        theirs.close()
        ours.setblocking(False)
        self.pipe, self.process, self._buffer, self.problem = ours, process, b"", None

    def hear(self) -> list[dict[str, Any]]:
        """What the reconciler says to this host: {order, clear}."""
        found: list[dict[str, Any]] = []
        while self.pipe is not None:
            try:
                chunk = self.pipe.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
                self.problem = f"the process that talks to {self.to} has ended"
                break
            *lines, self._buffer = (self._buffer + chunk)[-MESSAGE_AT_MOST:].split(b"\n")
            for line in lines:
                try:
                    told = json.loads(line)
                except (ValueError, RecursionError):
                    # The rest of one that was longer than any is.
                    continue
                if "problem" in told:
                    self.problem = told["problem"]
                elif "orders" in told:
                    found.append(told["orders"])
        return found

    def close(self) -> None:
        """The child ends, and with it the verdict."""
        if self.pipe is not None:
            self.pipe.close()
        if self.process is not None:
            end = time.monotonic() + 2.0
            while os.waitpid(self.process, os.WNOHANG)[0] == 0:
                if time.monotonic() >= end:
                    os.kill(self.process, signal.SIGKILL)
                    os.waitpid(self.process, 0)
                    break
                time.sleep(0.01)
        self.pipe = self.process = None


def _close_all_but(*kept: int) -> None:
    """The agent's descriptors are not the child's: one that it held open would not end with the agent."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in kept:
            try:
                os.close(number)
            except OSError:
                continue
