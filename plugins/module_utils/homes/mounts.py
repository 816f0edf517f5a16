# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts of homes on a host: what earlier runs wrote, what is in the way, and whether each answers."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.probe import unanswered
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

UNITS = "/etc/systemd/system"
# By this line the role knows its own units again, those of homes that are no longer listed included.
MARK = "# Written by baremetal.gpu.nfs_homes."
LOOK_S = 60


def written(root: str = "/") -> list[str]:
    """Paths of the units that earlier runs wrote, sorted.

    :param root: where the host's file system begins.
    """
    top = Path(root)
    units = [path for kind in ("mount", "automount") for path in (top / UNITS[1:]).glob(f"*.{kind}")]
    ours = [path for path in units if path.is_file() and MARK in path.read_text("utf-8", "replace").splitlines()]
    return sorted(f"/{path.relative_to(top)}" for path in ours)


def has(name: str, module: str, run: Run, table: str = "/proc/filesystems") -> bool:
    """Whether the kernel has a file system, loaded or to be loaded."""
    with open(table, encoding="ascii", errors="replace") as lines:
        if name in {line.split()[-1] for line in lines if line.strip()}:
            return True
    return run(["modprobe", "--dry-run", "--quiet", module], None, LOOK_S)[0] == 0


def mounted(table: str = "/proc/self/mounts") -> dict[str, str]:
    """Paths of mounts and their types; of several at a path the last one, which is what one sees."""
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        return {fields[1]: fields[2] for fields in (line.split(" ") for line in lines)}


def in_the_way(paths: Sequence[str], mounts: Mapping[str, str]) -> list[Problem]:
    """Directories with files of their own below what is to be mounted: the mount would hide them, and while it is not
    there, a user could write into them."""
    found = []
    for path in paths:
        # A look below an automount would mount it.
        if path in mounts:
            continue
        try:
            there = os.lstat(path)
            is_free = stat.S_ISDIR(there.st_mode) and there.st_uid == 0 and not os.listdir(path)
        except FileNotFoundError:
            continue
        if not is_free:
            cause = f"{path} is there already, as a home on this host's own disk; the mount would hide what is in it"
            remedy = f"`sudo mv {path} {path}.local`, run it again, and copy as docs/homes.md says of the way to NFS"
            found.append(Problem("home_in_the_way", path, cause, str(there.st_uid), remedy))
    return found


def wrong(homes: Sequence[Mapping[str, Any]], run: Run, timeout: float) -> list[Problem]:
    """What does not hold of homes that ought to be mounted.

    :param homes: path, uid, gid and kinds, the types that the mount may have, empty for any.
    """
    found = []
    silent = {text.partition(" ")[0]: text for text in unanswered([home["path"] for home in homes], timeout)}
    mounts = mounted()
    for home in homes:
        path, uid = home["path"], home["uid"]
        remedy = f"see `systemctl status {path}` and `findmnt {path}`, and that the server's port 2049 can be reached"
        if path in silent:
            found.append(Problem("home_not_answering", path, silent[path], remedy=remedy))
            continue
        if mounts.get(path) not in (home["kinds"] or mounts.values()):
            cause = f"{path} is not a mount of the homes"
            found.append(Problem("home_not_mounted", path, cause, mounts.get(path, ""), remedy))
            continue
        # By a child: nothing ends a call that hangs.
        code, said, _error = run(["stat", "--format=%u %a", path], None, LOOK_S)
        if code or said.split() != [str(uid), "700"]:
            cause = f"the home at {path} ought to be the user's ({uid}) alone, with the mode 700"
            remedy = f"make it on the server: `sudo install -d -m 700 -o {uid} -g {home['gid']} DIRECTORY`"
            found.append(Problem("home_of_another", path, cause, said.strip(), remedy))
    return found
