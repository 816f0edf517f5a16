# SPDX-License-Identifier: GPL-3.0-or-later
"""A real munged as a process, beside that of the host: each is the munged of one host of a cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAM = Path("/usr/sbin/munged")


class NotHere(Exception):
    """There is no munged to be had on this machine; the text says why."""


class LocalMunge:
    """The munged of a host with this address. `key` is that of the cluster; None for another one."""

    def __init__(self, origin: str, key: bytes | None = None) -> None:
        if not PROGRAM.exists():
            raise NotHere("there is no munged; run make test as root, or apt-get install munge")
        if os.geteuid() != 0:
            raise NotHere("only credentials of root count, and these tests are not run as root")
        self.origin, self.key = origin, key or secrets.token_bytes(64)
        # Below the directories of pytest, munged is not reached by other users.
        self.base = Path(tempfile.mkdtemp(prefix="munge-"))
        self.base.chmod(0o755)
        self.socket = str(self.base / "socket")
        (self.base / "key").touch(0o600)
        (self.base / "key").write_bytes(self.key)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        words = {"socket": self.socket, "origin": self.origin}
        words |= {f"{name}-file": self.base / name for name in ("key", "log", "pid", "seed")}
        with (self.base / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [PROGRAM, "--foreground", "--force", *(f"--{name}={value}" for name, value in words.items())],
                stdout=out,
                stderr=out,
            )
        end = time.monotonic() + 30
        while not Path(self.socket).is_socket():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"munged does not start: {(self.base / 'out').read_text()}")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.base)
