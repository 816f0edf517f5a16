# SPDX-License-Identifier: GPL-3.0-or-later
"""A flat apt repository with packages and all they depend on, resolved and fetched by apt itself.

apt works in a directory of its own, as if nothing were installed: so the mirror serves any installation of the
release, and neither the settings nor the packages of the machine that fetches matter.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text

from .manifest import ManifestError, Release, check_url

TOOLS = {"apt-get": "apt", "apt-ftparchive": "apt-utils"}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def need_tools() -> None:
    """Refuse early where the tools of Debian's archives are missing."""
    missing = sorted(package for tool, package in TOOLS.items() if shutil.which(tool) is None)
    if missing:
        raise ManifestError(f"missing here: {', '.join(missing)}; run on Debian or Ubuntu after apt-get install it")


def fetch(release: Release, sources: list[tuple[str, list[str]]], destination: Path, proxy: str = "") -> int:
    """Fill ``destination`` with the packages of a release and the index that apt needs; return their number.

    :param sources: pairs of archive URI and its suites
    Packages that are there already are not fetched again; what a cut left half fetched is completed. Raises
    ManifestError.
    """
    release.check()
    for uri, _suites in sources:
        check_url(uri)
    if proxy:
        check_url(proxy)
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuops-apt-") as scratch:
        root = Path(scratch)
        for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/dpkg", "var/lib/apt/lists/partial"):
            (root / name).mkdir(parents=True)
        (destination / "partial").mkdir(exist_ok=True)
        (root / "var/lib/dpkg/status").touch()
        lines = [
            f"deb [signed-by={KEYRING}] {uri} {suite} {' '.join(release.components)}"
            for uri, suites in sources
            for suite in suites
        ]
        (root / "etc/apt/sources.list").write_text("\n".join(lines) + "\n", encoding="ascii")
        options = {
            "Dir": str(root),
            "Dir::State::status": str(root / "var/lib/dpkg/status"),
            "Dir::Cache::archives": str(destination),
            "APT::Architecture": release.architecture,
            "APT::Architectures": release.architecture,
            "APT::Sandbox::User": "root",
            "Acquire::http::Proxy": proxy or "DIRECT",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        _run("apt-get", *words, "-qq", "update")
        _run(
            "apt-get",
            *words,
            "-qq",
            "-y",
            "--no-install-recommends",
            "--download-only",
            "install",
            "--",
            *release.packages,
        )
    (destination / "lock").unlink(missing_ok=True)
    shutil.rmtree(destination / "partial")
    return index(destination)


def index(directory: Path) -> int:
    """Write Packages and Release for the .deb files of a directory; return their number."""
    packages = _run("apt-ftparchive", "packages", ".", cwd=directory)
    (directory / "Packages").write_text(packages, encoding="utf-8")
    (directory / "Release").unlink(missing_ok=True)
    release = _run("apt-ftparchive", "release", ".", cwd=directory)
    (directory / "Release").write_text(release, encoding="utf-8")
    return packages.count("\nFilename: ")


def _run(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        output = untrusted_text.several_lines(done.stderr.strip() or done.stdout.strip())
        raise ManifestError(f"{words[0]} ended with {done.returncode}: {output}")
    return done.stdout
