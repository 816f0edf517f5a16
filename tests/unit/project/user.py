# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody has who only wants to use the project: an empty home, and a virtual environment that knows nothing of
this checkout or of the environment that its tests run in."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.unit.project.tree import ROOT

SYSTEM_PATH = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
# Set by whoever runs the tests, and by no user.
OURS = ("ANSIBLE_", "COV_", "GPUOPS_", "PYTEST_", "PYTHON", "VIRTUAL_ENV")


class User:
    """A home directory with a virtual environment in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(OURS)},
            "HOME": str(home),
            "PATH": f"{home / 'venv' / 'bin'}{os.pathsep}{SYSTEM_PATH}",
            "PYTHONUTF8": "1",
            "NO_COLOR": "1",
            "ANSIBLE_NOCOLOR": "1",
        }
        # pip comes from here, which takes a second in place of ten.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)

    def pip_install(self, *packages: str | Path) -> None:
        """At the versions of constraints.txt, with the settings and the cache that pip has here."""
        pip = [sys.executable, "-m", "pip", "--python", self.home / "venv/bin/python", "--disable-pip-version-check"]
        real = {"HOME": os.environ.get("HOME", str(self.home)), "PIP_ROOT_USER_ACTION": "ignore"}
        self._check([*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", *packages], self.home, real)

    def run(self, *words: str | Path, cwd: Path | None = None, **environment: str) -> str:
        """Output of a program; it must end well."""
        return self._check(list(words), cwd or self.home, environment).stdout

    def types(self, line: str, cwd: Path | None = None, **environment: str) -> str:
        """The same for a command line as a shell runs it."""
        return self.run("bash", "-euc", line, cwd=cwd, **environment)

    def _check(
        self, words: list[str | Path], cwd: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        line = shlex.join(map(str, words))
        assert done.returncode == 0, f"{line} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done
