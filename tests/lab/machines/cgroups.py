# SPDX-License-Identifier: GPL-3.0-or-later
"""A control group per machine, on hosts where no systemd gives it one.

Without it all machines would share one, and each machine's systemd would take the others' services for its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


def is_legacy() -> bool:
    """Whether this host has the hierarchies of version 1 (perhaps beside one of version 2)."""
    return not (MOUNT / "cgroup.controllers").exists()


def hierarchies() -> Iterator[Path]:
    """Where each hierarchy is mounted."""
    if not is_legacy():
        yield MOUNT
        return
    for path in sorted(MOUNT.iterdir()):
        if (path / "cgroup.procs").exists() and not path.is_symlink():
            yield path


def _own(hierarchy: Path) -> Path:
    """The group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        controllers = [name.removeprefix("name=") for name in names.split(",")]
        if hierarchy.name in controllers or (not names and hierarchy.name in ("cgroup", "unified")):
            return hierarchy / path.lstrip("/")
    return hierarchy


def enter(name: str) -> None:
    """Make a group of this name below the present one, in every hierarchy, and move this process there."""
    for hierarchy in hierarchies():
        parent = _own(hierarchy)
        group = parent / name
        if parent.name == name:
            continue
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # A new group of version 1 may use no processor until it is told which.
            if is_legacy() and (parent / setting).exists():
                (group / setting).write_text((parent / setting).read_text(encoding="ascii"), encoding="ascii")
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n", encoding="ascii")


def find(name: str) -> list[Path]:
    """The groups of this name, wherever in the hierarchies a command of the lab made them."""
    found = []
    for hierarchy in hierarchies():
        for directory, names, _ in os.walk(hierarchy):
            if name in names:
                found.append(Path(directory, name))
                names.remove(name)
    return found


def processes(name: str) -> set[int]:
    """Every process in a group of this name or below."""
    found: set[int] = set()
    for group in find(name):
        for directory, _, _ in os.walk(group):
            with contextlib.suppress(OSError):
                text = Path(directory, "cgroup.procs").read_text(encoding="ascii")
                # Processes that this one cannot see are listed as 0.
                found.update(int(word) for word in text.split() if word != "0")
    return found


def remove(name: str) -> None:
    """Remove the groups of this name with all below; what still has processes stays."""
    for group in find(name):
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
