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
# Program -> packages, of which the last has it, or has it from Debian 13 on.
PACKAGES = {
    "prometheus": ("prometheus",),
    "promtool": ("prometheus", "promtool"),
    "amtool": ("prometheus-alertmanager",),
    "docker-registry": ("docker-registry",),
    "nginx": ("nginx",),
    # A library of each comes first.
    "slapd": ("libltdl7", "slapd"),
    "munged": ("libmunge2", "munge"),
    # With its client, of the same version.
    "postgres": ("postgresql-client-15", "postgresql-15", "postgresql-client-17", "postgresql-17"),
}


def path_of(program: str) -> str | None:
    """Where a program is; None if it has to be fetched."""
    places = [os.environ.get("PATH", ""), *(str(DIRECTORY / "usr" / name) for name in ("bin", "sbin"))]
    # Debian has several versions of it side by side.
    places += [str(path) for root in (Path("/"), DIRECTORY) for path in root.glob("usr/lib/postgresql/*/bin")]
    return shutil.which(program, path=os.pathsep.join(places))


def fetch() -> str:
    """Unpack what is missing, with the machine's own sources of packages; what went wrong, or nothing."""
    for program, packages in PACKAGES.items():
        # The next package only where the one before has it not.
        faults = [unpack(package) for package in packages if path_of(program) is None]
        if path_of(program) is None:
            return f"{program}: {'; '.join(filter(None, faults))}"
    return ""


def unpack(package: str) -> str:
    """Unpack a package into DIRECTORY; what went wrong, or nothing."""
    if shutil.which("apt-get") is None:
        return "only apt-get can fetch it"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        command = ["apt-get", "download", package]
        done = subprocess.run(command, cwd=downloads, check=False, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()
        for file in Path(downloads).glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", file, DIRECTORY], check=True)
    return ""
