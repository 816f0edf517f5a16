# SPDX-License-Identifier: GPL-3.0-or-later
"""What changed on a machine since it was bare: read from the upper layer of its file system."""

from __future__ import annotations

import filecmp
import fnmatch
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .state import DISKS_IN_MACHINE

# Changes by themselves, or follows from other files; nobody configures a host here.
VOLATILE = (
    "/run/*",
    "/tmp/*",
    "/var/tmp/*",
    "/var/log/*",
    "/var/lib/systemd/*",
    "/var/lib/dbus/machine-id",
    "/var/lib/logrotate/*",
    "/var/lib/private/*",
    "/var/lib/sudo/*",
    "/var/cache/apt/*.bin",
    "/var/cache/ldconfig/*",
    "/var/cache/man/*",
    "/var/lib/apt/lists/lock",
    "/var/lib/apt/lists/partial",
    "/var/cache/apt/archives/lock",
    "/var/lib/dpkg/lock*",
    "/etc/machine-id",
    "/etc/.updated",
    "/etc/.pwd.lock",
    "/var/.updated",
    "/root/.ansible*",
    "/root/.cache*",
    "/root/.bash_history",
    "/home/*/.ansible*",
    "/home/*/.cache*",
    "/home/*/.bash_history",
    "/home/*/.sudo_as_admin_successful",
    "*/__pycache__*",
    # Belongs to the lab: what the simulated devices and the disks are right now.
    "/opt/baremetal-gpu-simulators*",
    "/usr/lib/baremetal-gpu-simulators*",
    DISKS_IN_MACHINE,
)


@dataclass(frozen=True)
class Change:
    """One path: A added, M modified, D deleted."""

    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


def walk(upper: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every path in a layer, as the machine sees it."""
    for directory, names, files in os.walk(upper):
        for name in sorted((*names, *files)):
            path = Path(directory, name)
            yield f"/{path.relative_to(upper)}", path.lstat()


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def snapshot(upper: Path) -> dict[str, list[int]]:
    """Enough of every path to see later whether it is still the same."""
    return {path: _signature(status) for path, status in walk(upper)}


def _signature(status: os.stat_result) -> list[int]:
    owned = [status.st_mode, status.st_uid, status.st_gid]
    return owned if stat.S_ISDIR(status.st_mode) else [*owned, status.st_size, status.st_mtime_ns]


def is_volatile(path: str) -> bool:
    """Whether a path changes without anybody's doing."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in VOLATILE)


def changes(upper: Path, lower: list[Path], baseline: dict[str, list[int]]) -> list[Change]:
    """What the upper layer adds to, changes in and removes from the layers below, but for what booting did."""
    found = []
    for path, status in walk(upper):
        if is_volatile(path) or baseline.get(path) == _signature(status):
            continue
        below = _below(path, lower)
        if _is_whiteout(status):
            if below is not None:
                found.append(Change("D", path))
        elif below is None:
            found.append(Change("A", path))
        elif _differs(upper / path[1:], status, below):
            found.append(Change("M", path))
        if stat.S_ISDIR(status.st_mode) and below is not None and _is_opaque(upper / path[1:]):
            # The directory was removed and made again: what it held and holds no more is gone.
            found.extend(
                Change("D", f"{path}/{name}")
                for name in sorted(os.listdir(below))
                if not os.path.lexists(upper / path[1:] / name) and not is_volatile(f"{path}/{name}")
            )
    return found


def _below(path: str, lower: list[Path]) -> Path | None:
    """The path in the highest of the lower layers that has it; None where it is missing or removed again."""
    for layer in lower:
        candidate = layer / path[1:]
        if os.path.lexists(candidate):
            return None if _is_whiteout(candidate.lstat()) else candidate
        if any(_hides(layer / parent) for parent in Path(path[1:]).parents if str(parent) != "."):
            return None
    return None


def _hides(directory: Path) -> bool:
    """Whether a layer lets nothing of the layers below it show through here."""
    return os.path.lexists(directory) and (_is_whiteout(directory.lstat()) or _is_opaque(directory))


def _is_opaque(directory: Path) -> bool:
    try:
        return os.getxattr(directory, "trusted.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def _differs(path: Path, status: os.stat_result, below: Path) -> bool:
    before = below.lstat()
    if (status.st_mode, status.st_uid, status.st_gid) != (before.st_mode, before.st_uid, before.st_gid):
        return True
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path) != os.readlink(below)
    if stat.S_ISREG(status.st_mode):
        return status.st_size != before.st_size or not filecmp.cmp(path, below, shallow=False)
    return not stat.S_ISDIR(status.st_mode) and status.st_rdev != before.st_rdev
