# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the name of a host leads to one of its addresses."""

from __future__ import annotations

import re
import socket
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import child, net
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below


def hostname(
    root: str = "/",
    name: str | None = None,
    resolver: Callable[[str], list[str]] | None = None,
) -> dict[str, Any]:
    """Whether the host's name has an address and whether that is the host's own.

    /etc/hosts is read first; a resolver, which may ask the network, only where one is given.
    """
    name = name or socket.gethostname()
    addresses = []
    for line in read_text(below(root, "etc/hosts")).splitlines():
        fields = line.split("#")[0].split()
        if name in fields[1:]:
            addresses.append(fields[0])
    switch = re.search(r"^hosts:(.*)$", read_text(below(root, "etc/nsswitch.conf")), re.M)
    built_in = bool(switch and "myhostname" in switch.group(1).split())
    if not addresses and not built_in and resolver is not None:
        addresses = resolver(name)
        resolves: bool | None = bool(addresses)
    else:
        resolves = True if addresses or built_in else None
    own = net.local_addresses(root)
    loopback = [address for address in addresses if address.startswith("127.") or address == "::1"]
    return {
        "name": name,
        "addresses": addresses,
        "resolves": resolves,
        "own": bool(set(addresses) & own or loopback) if addresses and own else None,
    }


def resolve(name: str, deadline_s: float = 5.0) -> list[str]:
    """The addresses of a name; none where there are none, or the resolver does not answer in time."""
    try:
        found: list[str] = child.answer(lambda: {"addresses": net.resolve(name)}, deadline_s)["addresses"]
    except child.Failed:
        return []
    return found
