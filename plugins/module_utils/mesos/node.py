# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host already has of Mesos or Marathon: the settings of the last run, the checkpoint, cgroups and capacity."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot
from ansible_collections.baremetal.gpu.plugins.module_utils.host import units as host_units
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import replace as mesos_replace

MIB = 1024 * 1024
# What of an environment file is told; the others could be secrets of Marathon.
_HIDDEN = {f"{prefix}{name.upper()}" for prefix in ("MESOS_", "MARATHON_") for name in mesos_flags.SECRETS}


def environment(text: str) -> dict[str, str]:
    """The variables of an environment file as mesos_flags.render writes it, without those that may be secrets."""
    found = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if not sign or name.startswith(("#", ";")) or name in _HIDDEN:
            continue
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = re.sub(r'\\([\\"$`])', r"\1", value[1:-1])
        if "://" in value and "@" in value:
            # The address of ZooKeeper with a login.
            continue
        found[name] = value
    return found


def is_stale(environment_file: str, stamp: str) -> bool:
    """Whether the unit was started with another environment file than is there; so too if it did not tell."""
    told = host_units.parse_stamp(read_text(stamp)).get(environment_file)
    with contextlib.suppress(OSError), open(environment_file, "rb") as file:
        return told != hashlib.sha256(file.read()).hexdigest()
    return True


def executors(work_dir: str, agent_id: str | None, proc: str = "/proc") -> dict[str, int]:
    """Of the agent's executors that live how many speak by which `tls_mode`, by the environment of their processes.

    A container with processes of its own has a helper outside, which may lack the variables that its child has.
    """
    found: dict[str, int] = {}
    for pid in mesos_replace.living(work_dir, agent_id, proc) if agent_id else []:
        modes = {mesos_replace.tls_mode(_environ(proc, one)) for one in (pid, *_children(proc, pid))}
        mode = next((one for one in ("required", "downgrade") if one in modes), "off")
        found[mode] = found.get(mode, 0) + 1
    return found


def _environ(proc: str, pid: int) -> dict[str, str]:
    rows = read_text(os.path.join(proc, str(pid), "environ")).split("\0")
    return {name: value for name, _sign, value in (row.partition("=") for row in rows)}


def _children(proc: str, pid: int) -> list[int]:
    told = read_text(os.path.join(proc, str(pid), "task", str(pid), "children"))
    return [int(one) for one in told.split() if one.isdigit()]


def cgroups(root: str = "/") -> str:
    """How cgroups are mounted: v1, v2, hybrid (a hierarchy of v2 beside those of v1), or none."""
    kinds = set()
    for line in read_text(os.path.join(root, "proc/self/mountinfo")).splitlines():
        before, _dash, after = line.partition(" - ")
        place, kind = before.split()[4], after.split()[0]
        if place.startswith("/sys/fs/cgroup") and kind in ("cgroup", "cgroup2"):
            kinds.add(kind)
    if len(kinds) == 2:
        return "hybrid"
    return {"cgroup": "v1", "cgroup2": "v2"}[kinds.pop()] if kinds else "none"


def checkpoint(work_dir: str, root: str = "/") -> dict[str, Any]:
    """The id that the agent comes back with, null without one; and whether the host has booted since it ran."""
    meta = os.path.join(root, work_dir.lstrip("/"), "meta")
    try:
        agent_id = os.path.basename(os.readlink(os.path.join(meta, "slaves", "latest")))
    except OSError:
        agent_id = None
    then = read_text(os.path.join(meta, "boot_id")).strip()
    now = boot.boot_id(root) or ""
    return {"agent_id": agent_id, "rebooted": bool(then) and then != now}


def has_log(work_dir: str, root: str = "/") -> bool:
    """Whether a master has kept a replicated log there."""
    return bool(glob.glob(os.path.join(glob.escape(os.path.join(root, work_dir.lstrip("/"))), "replicated_log", "*")))


def disk_mib(path: str, root: str = "/") -> int:
    """Size in MiB of the file system that a path lies on, or will."""
    place = os.path.join(root, path.lstrip("/"))
    while not os.path.exists(place):
        place = os.path.dirname(place)
    told = os.statvfs(place)
    return told.f_blocks * told.f_frsize // MIB


def device_directories(root: str = "/") -> list[str]:
    """Directories among the NVIDIA device nodes that make the launch of a container fail."""
    found = glob.glob(os.path.join(root, "dev/nvidia*"))
    return sorted(
        os.path.join("/dev", os.path.basename(path))
        for path in found
        if os.path.isdir(path) and os.path.basename(path) != "nvidia-caps"
    )


def own_addresses(resolved: Mapping[str, Iterable[str]], local: Iterable[str]) -> dict[str, str | None]:
    """Name -> the IPv4 address of this host among those it stands for; null where it is none that others can reach."""
    here = set(local)
    return {
        name: next((one for one in sorted(addresses) if one in here and ":" not in one and one[:4] != "127."), None)
        for name, addresses in resolved.items()
    }
