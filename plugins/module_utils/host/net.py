# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The addresses of a host, and who listens on its ports."""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Iterable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text

LISTEN = "0A"


def resolve(name: str) -> list[str]:
    """The IP addresses of a name; none if it is not known."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def local_addresses(root: str = "/") -> set[str]:
    """The IP addresses of this host, as the kernel lists them; of IPv4 no networks, such as 127.0.0.0/8 is one."""
    found = set()
    last = ""
    for line in read_text(os.path.join(root, "proc/net/fib_trie")).splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            last = words[1]
        elif words[:1] == ["/32"] and "host" in words and words[-1] == "LOCAL":
            found.add(last)
    for line in read_text(os.path.join(root, "proc/net/if_inet6")).splitlines():
        digits = line.split(" ", 1)[0]
        if len(digits) == 32:
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def listeners(ports: Iterable[int], root: str = "/") -> dict[int, str]:
    """The inode of the socket that listens on each port, of those on which something does."""
    wanted, found = set(ports), {}
    for table in ("tcp", "tcp6"):
        for line in read_text(os.path.join(root, "proc/net", table)).splitlines()[1:]:
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
        if f"/{unit}" in read_text(os.path.join(process, "cgroup")):
            holders.pop(port, None)
        elif port in holders:
            holders[port] = f"{read_text(os.path.join(process, 'comm')).strip()} (pid {os.path.basename(process)})"
    return holders
