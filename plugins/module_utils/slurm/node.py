# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host brings to a Slurm cluster: its processors and memory, and the release that it has or would get."""

from __future__ import annotations

import glob
import os
import pwd
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask
from ansible_collections.baremetal.gpu.plugins.module_utils.system.dpkg import STATUS, parse_dpkg

# With its caches switched off apt-cache writes nothing to the host.
WITHOUT_CACHE = ("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
# Every role of a cluster installs packages of this source, so the version of one is that of all.
PACKAGE = "slurm-wlm-basic-plugins"
CPUS = "sys/devices/system/cpu"
# Of a thousand nodes with eight GPUs each, gres.conf has less than 1 MiB.
CONFIG_AT_MOST = 8 << 20


def cpu_ids(text: str) -> list[int]:
    """The numbers in a list of the kernel, such as 0-3,8; what is no such list gives none."""
    found: list[int] = []
    for part in text.strip().split(","):
        first_last = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if first_last:
            first = int(first_last[1])
            found += range(first, int(first_last[2] or first) + 1)
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in the form of 0-3,8."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def processors(root: str = "/") -> dict[str, Any]:
    """Sockets, cores and threads as slurmd counts them.

    `cores` has the numbers of the CPUs of each core, in Slurm's own order: socket by socket. Where sockets are not
    alike, `cores_per_socket` and `threads_per_core` are those of the smallest, so that no node claims too much.
    """
    sockets: dict[int, dict[int, list[int]]] = {}
    for cpu in cpu_ids(read_text(below(root, f"{CPUS}/online"))):
        directory = below(root, f"{CPUS}/cpu{cpu}/topology")
        package = _number(os.path.join(directory, "physical_package_id"))
        core = _number(os.path.join(directory, "core_id"))
        # Without a topology, as in some virtual machines, each CPU is a core of one socket.
        sockets.setdefault(max(package, 0), {}).setdefault(cpu if core < 0 else core, []).append(cpu)
    by_socket = [[sockets[socket][core] for core in sorted(sockets[socket])] for socket in sorted(sockets)]
    cores = [core for socket in by_socket for core in socket]
    return {
        "sockets": len(by_socket),
        "cores_per_socket": min(map(len, by_socket), default=0),
        "threads_per_core": min(map(len, cores), default=0),
        "cores": cores,
    }


def _number(path: str) -> int:
    text = read_text(path).strip()
    return int(text) if re.fullmatch(r"\d{1,9}", text) else -1


def user(name: str) -> dict[str, int] | None:
    """uid and gid of a user; None without one."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": found.pw_uid, "gid": found.pw_gid}


def installed_version(root: str = "/") -> str:
    """The version of Slurm's packages that are installed; empty without them."""
    for row in parse_dpkg(read_text(below(root, STATUS)), PACKAGE.__eq__):
        if row["state"] == "installed":
            return str(row.get("version", ""))
    return ""


def candidate_version(root: str = "/", run: Call = ask) -> str | None:
    """The version that apt would install; empty where its sources have none, None where it has not read them yet."""
    found = re.search(r"^  Candidate: (\S+)$", run(["apt-cache", *WITHOUT_CACHE, "policy", PACKAGE])[1], re.MULTILINE)
    if found and found[1] != "(none)":
        return found[1]
    return "" if glob.glob(below(root, "var/lib/apt/lists/*_Packages*")) else None


def node_lines(directory: str) -> dict[str, dict[str, list[str]]]:
    """Node -> file (`slurm_conf`, `gres_conf`) -> its lines. Lines of several nodes, as in n[1-8], are left out."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in ("slurm_conf", "gres_conf"):
        path = os.path.join(directory, file.replace("_", "."))
        for line in read_text(path, CONFIG_AT_MOST).splitlines():
            name = re.match(r"NodeName=([A-Za-z0-9._-]+)(?=\s)", line)
            if name:
                found.setdefault(name[1], {"slurm_conf": [], "gres_conf": []})[file].append(line.strip())
    return found
