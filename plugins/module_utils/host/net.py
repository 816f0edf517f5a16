# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host says of itself, whatever runs on it: its addresses, who listens on its ports, its memory."""

from __future__ import annotations

import glob
import os
import re
import socket
import stat
from collections.abc import Iterable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files

LISTEN = "0A"
SMALL = 64 << 10


def read(path: str) -> str:
    """The text of a plain file; empty if it cannot be read, or is none: a pipe in its place would never end."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=_without_waiting) as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""


def read_kept(path: str) -> str:
    """The text of a small file that a service keeps in its own directory, where somebody may have planted another
    file's name; empty if it cannot be read, or may not be what it seems."""
    try:
        return host_files.read(path, SMALL).decode("utf-8", "replace")
    except OSError:
        return ""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def resolve(name: str) -> list[str]:
    """The IP addresses of a name; none if it is not known."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def local_addresses() -> set[str]:
    """The IP addresses of this host, as the kernel lists them."""
    found = set()
    for line in read("/proc/net/fib_trie").splitlines():
        words = line.split()
        if words and words[0] == "|--":
            last = words[1]
        elif words and words[-1] == "LOCAL" and "host" in words:
            found.add(last)
    for line in read("/proc/net/if_inet6").splitlines():
        digits = line.split()[0]
        groups = ":".join(digits[index : index + 4] for index in range(0, 32, 4))
        found.add(socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, groups)))
    return found


def listeners(ports: Iterable[int], root: str = "/") -> dict[int, str]:
    """The inode of the socket that listens on each port, of those on which something does."""
    wanted, found = set(ports), {}
    for table in ("tcp", "tcp6"):
        for line in read(os.path.join(root, "proc/net", table)).splitlines()[1:]:
            words = line.split()
            port = int(words[1].rpartition(":")[2], 16)
            if words[3] == LISTEN and port in wanted:
                found[port] = words[9]
    return found


def held_ports(ports: Iterable[int], unit: str, root: str = "/") -> dict[int, str]:
    """Who else than a unit listens on ports: port -> name and pid of the process."""
    sockets = listeners(ports, root)
    holders = dict.fromkeys(sockets, "a process that cannot be seen")
    by_inode = {f"socket:[{inode}]": port for port, inode in sockets.items()}
    for link in glob.glob(os.path.join(root, "proc/[0-9]*/fd/*")) if sockets else ():
        try:
            port = by_inode.get(os.readlink(link))
        except OSError:
            # It ended meanwhile.
            continue
        if port is None:
            continue
        process = os.path.dirname(os.path.dirname(link))
        if f"/{unit}" in read(os.path.join(process, "cgroup")):
            holders.pop(port, None)
        elif port in holders:
            holders[port] = f"{read(os.path.join(process, 'comm')).strip()} (pid {os.path.basename(process)})"
    return holders


def memory_mib(root: str = "/") -> int:
    """Memory of the host in MiB."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0
