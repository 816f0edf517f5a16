# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of Debian's packages that bring a daemon with them: the packages are unpacked and not installed, so that
the daemon does not start on the machine of whoever runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[1] / ".cache" / "debian"
# Program -> package.
PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "prometheus-node-exporter": "prometheus-node-exporter",
}


def path_of(program: str) -> str | None:
    """Where a program is; None if it has to be fetched."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), str(DIRECTORY / "usr" / "bin"))))


def fetch() -> str:
    """Unpack what is missing, with the machine's own sources of packages; what went wrong, or nothing."""
    wanted = sorted({package for program, package in PACKAGES.items() if path_of(program) is None})
    if not wanted:
        return ""
    if shutil.which("apt-get") is None:
        return f"{', '.join(wanted)}: only apt-get can fetch them"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        done = subprocess.run(
            ["apt-get", "download", *wanted], cwd=downloads, check=False, capture_output=True, text=True
        )
        if done.returncode:
            return f"{', '.join(wanted)}: {done.stderr.strip()}"
        for file in Path(downloads).glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", file, DIRECTORY], check=True)
    return ""
