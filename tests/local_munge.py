# SPDX-License-Identifier: GPL-3.0-or-later
"""A real munged as a process, beside that of the host: each is the munged of one host of a cluster."""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge
from tests import debian_programs


class NotHere(Exception):
    """There is no munged to be had on this machine; the text says why."""


@functools.cache
def programs() -> Path:
    """The directory with munge, unmunge and munged, which every user can run. This process calls them there.

    Of packages that are only unpacked they are copied out of the checkout, into which not every user can see.
    """
    found = debian_programs.path_of("munged")
    if found is None:
        raise NotHere("there is no munged: make test fetches it with apt-get")
    usr = Path(found).parents[1]
    base = Path(tempfile.mkdtemp(prefix="munge-programs-"))
    atexit.register(shutil.rmtree, base)
    base.chmod(0o755)
    for library in usr.glob("lib/*-linux-gnu/libmunge.so.2"):
        shutil.copy(library, base)
    for program in (usr / "bin" / "munge", usr / "bin" / "unmunge", Path(found)):
        shutil.copy(program, base / f"{program.name}.program")
        (base / program.name).write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={base} exec {base}/{program.name}.program "$@"\n')
        (base / program.name).chmod(0o755)
    munge.MUNGE, munge.UNMUNGE = str(base / "munge"), str(base / "unmunge")
    return base


class LocalMunge:
    """The munged of a host with this address. `key` is that of the cluster; None for another one."""

    def __init__(self, origin: str, key: bytes | None = None) -> None:
        if os.geteuid() != 0:
            raise NotHere("only credentials of root count, and these tests are not run as root")
        self.program = programs() / "munged"
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
                [self.program, "--foreground", "--force", *(f"--{name}={value}" for name, value in words.items())],
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
