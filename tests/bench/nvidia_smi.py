# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's own nvidia-smi, unpacked from Debian's package of that name and not installed.

It comes from the mirror that this host's own apt settings name, through apt with directories of its own, and is kept in
.cache/bench. Its archive is checked as any other of Debian's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.bench.harness import RESULTS
from tests.lab.machines import mirrors
from tests.lab.machines.system import LabError

# The last release whose nvidia-smi was seen to run on the simulated library.
SUITE = "bookworm"
PLACE = RESULTS / "nvidia-smi"


class Smi(NamedTuple):
    path: Path
    driver: str  # the version of the driver that it belongs to


def _apt(*arguments: str, found: mirrors.Mirrors, place: Path) -> None:
    options = {
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": place / "state",
        "Dir::State::Status": "/dev/null",
        "Dir::Cache": place / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        **found.options,
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    subprocess.run(["apt-get", "-q", *words, *arguments], cwd=place, check=True, capture_output=True, text=True)


def _fetch(place: Path) -> None:
    found = mirrors.find()
    for directory in ("state/lists/partial", "cache/archives/partial"):
        (place / directory).mkdir(parents=True, exist_ok=True)
    sources = found.one_line(SUITE).replace(" main\n", " main non-free\n")
    (place / "sources.list").write_text(sources, encoding="utf-8")
    _apt("update", found=found, place=place)
    _apt("download", "nvidia-smi", found=found, place=place)
    (package,) = place.glob("nvidia-smi_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, place / "unpacked"], check=True)
    shutil.rmtree(place / "state")


def find() -> Smi | str:
    """nvidia-smi, fetched if it is not here yet; or why there is none."""
    packages = list(PLACE.glob("nvidia-smi_*.deb"))
    if not packages:
        if shutil.which("apt-get") is None:
            return "there is no nvidia-smi to compare with: it is fetched with apt, which this machine has not"
        PLACE.mkdir(parents=True, exist_ok=True)
        try:
            _fetch(PLACE)
        except (subprocess.CalledProcessError, LabError) as failure:
            said = getattr(failure, "stderr", None) or failure
            return f"there is no nvidia-smi to compare with: {str(said).strip()}"
        packages = list(PLACE.glob("nvidia-smi_*.deb"))
    version = re.search(r"_(\d+\.\d+(?:\.\d+)?)-", packages[0].name)
    programs = [
        path for path in (PLACE / "unpacked").rglob("nvidia-smi") if os.access(path, os.X_OK) and path.is_file()
    ]
    if version is None or not programs:
        return f"{packages[0]} has no nvidia-smi in it; remove {PLACE} to fetch it again"
    return Smi(programs[0], version[1])


if __name__ == "__main__":
    print(find())
