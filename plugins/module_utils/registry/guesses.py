# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has nginx look at no further passwords from where too many were wrong.

nginx tells of each wrong one at a socket, as syslog, and looks before a password whether there is a file with the
address, or with the name and the address.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.attempts import Attempts, Rate
from ansible_collections.baremetal.gpu.plugins.module_utils.logs import loop

# Passwords of users are long and drawn, and behind an address may be all users of a node.
ADDRESS, NAME, BOTH = Rate(60, 2.0), Rate(20, 30.0), Rate(10, 30.0)
FILE = "guess-"
LINE_AT_MOST = 4096
_LINE = re.compile(rb"<[0-9]{1,3}>[^\n]{1,40}? guess: ([0-9A-Fa-f:.]{2,45}) ([^\n]{1,2000})\n?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)


class Guesses:
    """Keeps the files."""

    def __init__(
        self, refused: str, attempts: Attempts | None = None, say: Callable[[str, str], None] = loop.say
    ) -> None:
        self._refused, self._say = refused, say
        self._attempts = attempts or Attempts(ADDRESS, NAME, BOTH)
        # Whom a file shuts out: its name -> address, name.
        self._out: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def heard(self, line: bytes) -> None:
        """A line of nginx's."""
        found = _LINE.fullmatch(line)
        if found is None:
            return
        address, name = found[1].decode("ascii"), found[2].decode("utf-8", "replace")
        name = name if _NAME.fullmatch(name) else "none"
        with self._lock:
            self._attempts.count(address, name)
            whole, here = self._attempts.closed(address, name)
            if whole:
                self._shut(f"{FILE}{address}", address, "")
            elif here:
                self._shut(f"{FILE}{name}-{address}", address, name)

    def _shut(self, file: str, address: str, name: str) -> None:
        if file in self._out:
            return
        os.makedirs(self._refused, mode=0o755, exist_ok=True)
        with open(os.path.join(self._refused, file), "w", encoding="ascii"):
            self._out[file] = (address, name)
        self._say(
            f"too many wrong passwords {f'for {name} ' if name else ''}from {address}: none is looked at", loop.NOTICE
        )

    def forgive(self) -> None:
        """Let those in again whose time is over, and whom an earlier program had shut out."""
        with self._lock:
            for file, (address, name) in list(self._out.items()):
                if not self._attempts.closed(address, name)[bool(name)]:
                    del self._out[file]
            with contextlib.suppress(FileNotFoundError):
                for file in os.listdir(self._refused):
                    if file.startswith(FILE) and file not in self._out:
                        os.unlink(os.path.join(self._refused, file))


def listen(path: str, guesses: Guesses) -> threading.Thread:
    """Hear what nginx tells, beside everything else. Signals stay with who has called."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    before = os.umask(0o117)
    try:
        made.bind(path)
    finally:
        os.umask(before)

    def hear() -> None:
        while True:
            try:
                line = made.recv(LINE_AT_MOST)
            except OSError as why:
                loop.say(f"wrong passwords are counted no more: {why}")
                return
            try:
                guesses.heard(line)
            except (OSError, ValueError) as why:
                # The next one counts again.
                loop.say(f"a wrong password was not counted: {why}")

    before_thread = signal.pthread_sigmask(signal.SIG_BLOCK, loop.STOP)
    try:
        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before_thread)
    return thread
