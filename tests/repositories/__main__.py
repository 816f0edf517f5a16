# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.repositories DIRECTORY``: the stand-in repositories in a directory, to look at or to serve.

``python -m tests.repositories kubernetes DIRECTORY [VERSION…]``: those of Kubernetes, and its images.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.lab.machines.system import LabError
from tests.repositories import kubernetes, kubernetes_build
from tests.repositories.apt import Key, build_repository
from tests.repositories.driver import debian_kernel, driver, runfile
from tests.repositories.stand_ins import container_toolkit, cuda_toolkit

# Two versions of a branch, the next branch, and one that does not build.
DRIVERS = ("570.124.06", "570.172.08", "580.65.06")
BROKEN_DRIVER = "590.44.01"
# What Debian 13 has.
DEBIAN_DRIVER = "550.163.01"


def build(directory: Path) -> str:
    """Build the repositories and the installer, signed by one key, and return the key's SHA-256."""
    with tempfile.TemporaryDirectory() as temporary:
        key = Key(Path(temporary))
        try:
            build_repository(directory / "toolkit", container_toolkit("1.17.7") + container_toolkit("1.17.8"), key)
            build_repository(directory / "cuda", cuda_toolkit("12.4") + cuda_toolkit("12.6"), key)
            drivers = [package for version in DRIVERS for package in driver(version)]
            build_repository(directory / "driver", drivers + driver(BROKEN_DRIVER, broken=True), key)
            build_repository(directory / "debian", [debian_kernel(DEBIAN_DRIVER)], key)
            (directory / f"NVIDIA-Linux-x86_64-{DRIVERS[0]}.run").write_text(runfile(DRIVERS[0]))
            return key.sha256
        finally:
            key.close()


def build_kubernetes(directory: Path, versions: Sequence[str]) -> list[Path]:
    """Build the repositories and images of versions of Kubernetes, signed by one key; where they are."""
    with tempfile.TemporaryDirectory() as temporary:
        key = Key(Path(temporary))
        try:
            return kubernetes.publish(directory, versions, key)
        finally:
            key.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["kubernetes", place, *versions]:
            try:
                print(*build_kubernetes(Path(place), versions or list(kubernetes_build.ETCD)), sep="\n")
            except LabError as error:
                raise SystemExit(str(error)) from None
        case [place]:
            print(build(Path(place)))
        case _:
            raise SystemExit(__doc__)
