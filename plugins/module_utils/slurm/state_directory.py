# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory in which slurmctld saves the state of the cluster: its file system, and state saved elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import child
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask

SLURM_CONF = "etc/slurm/slurm.conf"
# A file system of another host may not answer.
DEADLINE_S = 30.0
# Of a primary controller that has a backup. A backup does not answer before there is one.
HEARTBEAT = "heartbeat"
# slurmctld writes each file anew beside the old one. Even a cluster with few jobs has some MiB of them.
FREE_AT_LEAST = 64 << 20
# What slurmctld writes at every save.
STATE_FILES = ("job_state", "node_state", "part_state", "resv_state")


def mount_of(path: str, mountinfo: str) -> dict[str, str]:
    """Mount point, file system type and source of what is mounted where a path is; empty values without any.

    :param path: absolute, without symbolic links.
    :param mountinfo: the text of /proc/self/mountinfo. Of several mounts at one place the last one is seen.
    """
    found = {"mount": "", "type": "", "source": ""}
    for line in mountinfo.splitlines():
        before, _dash, after = line.partition(" - ")
        fields, more = before.split(), after.split()
        if len(fields) < 5 or len(more) < 2:
            continue
        mount = _unescaped(fields[4])
        is_above = path == mount or path.startswith(mount.rstrip("/") + "/")
        if is_above and len(mount) >= len(found["mount"]):
            found = {"mount": mount, "type": more[0], "source": _unescaped(more[1])}
    return found


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def read(directory: str, root: str = "/", call: Call = ask, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """The directory as the host sees it.

    :return: `path`; `mount`, `type` and `source` of its file system; `inode` of the directory, or of the nearest
        existing one above it, which is `nearest`; `elsewhere`, where the present slurm.conf has the state if that is
        another directory with state; `copied`, whether the new directory has that state or a later one; `running`,
        whether slurmctld runs; `heartbeat`, whether a primary controller with a backup has been there; `error`, why
        nothing is known, or an empty text.
    """
    found = {"path": directory, "mount": "", "type": "", "source": "", "inode": 0, "nearest": "", "error": ""}
    found.update(
        elsewhere="",
        copied=False,
        heartbeat=False,
        running=call(["systemctl", "is-active", "slurmctld.service"])[0] == 0,
    )
    try:
        return {**found, **child.answer(lambda: _read(directory, root), deadline_s)}
    except child.Failed as failure:
        return {**found, "error": str(failure)}


def _read(directory: str, root: str) -> dict[str, Any]:
    nearest = directory
    while not os.path.isdir(below(root, nearest)) and nearest != "/":
        nearest = os.path.dirname(nearest)
    place = os.path.realpath(below(root, nearest))
    # An automounter mounts at the first look.
    inode = os.stat(place).st_ino
    mountinfo = read_text(below(root, "proc/self/mountinfo"))
    return {
        **mount_of(place, mountinfo),
        "inode": inode,
        "nearest": nearest,
        "heartbeat": os.path.exists(below(root, os.path.join(directory, HEARTBEAT))),
        **_saved(directory, root),
    }


def _configured(root: str) -> str:
    """The state directory of the present slurm.conf; empty without one."""
    named = re.findall(r"^StateSaveLocation=(\S+)", read_text(below(root, SLURM_CONF)), re.MULTILINE)
    return named[-1] if named else ""


def problems(root: str = "/", deadline_s: float = DEADLINE_S) -> list[Problem]:
    """Whether the file system of the present state directory is full; nothing on a host without one."""
    directory = _configured(root)
    if not directory:
        return []
    try:
        room = child.answer(lambda: _room(below(root, directory)), deadline_s)
    except child.Failed:
        # A login has slurm.conf, and no state.
        return []
    bytes_free, inodes_free, inodes = (int(room[key]) for key in ("bytes_free", "inodes_free", "inodes"))
    # Some file systems do not count inodes.
    if bytes_free >= FREE_AT_LEAST and (inodes_free or not inodes):
        return []
    free = f"{bytes_free >> 20} MiB and {inodes_free} inodes are free"
    return [
        Problem(
            "state_directory_full",
            directory,
            f"the file system of slurmctld's state directory {directory} is full ({free}), so slurmctld refuses new "
            "jobs and forgets at its next start what it could not save",
            free,
            f"free some space there, see 'df {directory}'; jobs go on meanwhile",
        )
    ]


def _room(path: str) -> dict[str, int]:
    found = os.statvfs(path)
    return {
        "bytes_free": found.f_bavail * found.f_frsize,
        "inodes_free": found.f_favail,
        "inodes": found.f_files,
    }


def _saved(directory: str, root: str) -> dict[str, Any]:
    """Whether the state is in another directory now, and whether it was copied."""
    before = _configured(root)
    is_other = before and os.path.realpath(below(root, before)) != os.path.realpath(below(root, directory))
    if not is_other or not _times(below(root, before)):
        return {"elsewhere": "", "copied": False}
    old, new = _times(below(root, before)), _times(below(root, directory))
    # Not every file system keeps parts of seconds.
    return {"elsewhere": before, "copied": all(new.get(name, -1) >= old[name] for name in old)}


def _times(directory: str) -> dict[str, int]:
    """The files of saved state, with the seconds of their last change."""
    found = {}
    for name in STATE_FILES:
        with contextlib.suppress(OSError):
            found[name] = int(os.stat(os.path.join(directory, name)).st_mtime)
    return found
