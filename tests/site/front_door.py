# SPDX-License-Identifier: GPL-3.0-or-later
"""A site that `gpuops init` made and `gpuops up` brings up, as its operator and its users have it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.site.plays import ROOT

LONGEST_RUN_S = 5400


class Site:
    """:ivar addresses: of the machines. ``key``: the private key of its users."""

    def __init__(self, directory: Path, addresses: dict[str, str], key: str) -> None:
        self.directory, self.addresses, self.key = directory, addresses, key

    def gpuops(self, *words: str, status: int | None = 0) -> str:
        """What a command prints that is called in the directory of the site."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", *words],
            cwd=self.directory if self.directory.exists() else ROOT,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_RUN_S,
        )
        assert status in (None, done.returncode), done.stdout[-8000:] + done.stderr[-4000:]
        return done.stdout

    def changed(self) -> int:
        """How many tasks a run of the whole site changes."""
        self.gpuops("up")
        runs = sorted((self.directory / "inventory" / ".gpuops" / "runs").iterdir())
        return int(json.loads((runs[-1] / "run.json").read_text())["changed"])

    def login(self, user: str, command: str, machine: str) -> tuple[int, str]:
        """How a command of a user ends who comes by SSH, and what it prints."""
        options = ["IdentitiesOnly=yes", "BatchMode=yes", "ConnectTimeout=10", "StrictHostKeyChecking=no"]
        options += ["UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        words = ["ssh", "-F", "/dev/null", "-i", self.key, *(word for option in options for word in ("-o", option))]
        words += [f"{user}@{self.addresses[machine]}", f"bash -lc {shlex.quote(command)}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL)
        return done.returncode, (done.stdout + done.stderr).strip()

    def does(self, user: str, command: str, machine: str) -> str:
        status, told = self.login(user, command, machine)
        assert status == 0, told
        return told
