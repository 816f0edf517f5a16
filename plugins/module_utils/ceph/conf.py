# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster's hosts must agree on: monitors and their addresses, ceph.conf, keys and keyrings.

Formats: https://docs.ceph.com/en/latest/rados/configuration/msgr2/ and .../rados/configuration/ceph-conf/.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

MSGR2_PORT, MSGR1_PORT = 3300, 6789

# The keys that a cluster starts with, and what they may do. The bootstrap keys can do nothing but make a daemon's key.
# https://docs.ceph.com/en/latest/mgr/crash/
CAPS: dict[str, dict[str, str]] = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *", "mds": "allow *", "mgr": "allow *"},
    "client.bootstrap-mgr": {"mon": "allow profile bootstrap-mgr"},
    "client.bootstrap-osd": {"mon": "allow profile bootstrap-osd"},
    "client.bootstrap-mds": {"mon": "allow profile bootstrap-mds"},
    # With it ceph-crash hands in what a daemon left behind when it died.
    "client.crash": {"mon": "allow profile crash", "mgr": "allow profile crash"},
}

# Keys and data encrypted on the wire, of every connection; clients of before msgr2 are then shut out.
SECURE = {
    "ms_cluster_mode": "secure",
    "ms_service_mode": "secure",
    "ms_client_mode": "secure",
    "ms_mon_cluster_mode": "secure",
    "ms_mon_service_mode": "secure",
    "ms_mon_client_mode": "secure",
}


def new_key() -> str:
    """A fresh cephx secret: type AES, when it was made, and 16 random bytes, in base64."""
    now = time.time()
    header = struct.pack("<hiih", 1, int(now), int(now % 1 * 1_000_000_000), 16)
    return base64.b64encode(header + os.urandom(16)).decode()


def is_key(text: str) -> bool:
    """Whether it has the form of a cephx secret."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(raw) == 28 and struct.unpack_from("<hiih", raw)[::3] == (1, 16)


def is_fsid(text: str) -> bool:
    """Whether it is a UUID as Ceph writes one."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def address_vector(address: str) -> str:
    """The two addresses of a monitor, msgr2 first, as monmaptool and mon_host take them."""
    host = bracketed(address)
    return f"[v2:{host}:{MSGR2_PORT},v1:{host}:{MSGR1_PORT}]"


def problems_of_monitors(monitors: Sequence[Mapping[str, str]]) -> list[str]:
    """What keeps monitors from forming a cluster: [{name, address}]; empty if nothing does."""
    problems = []
    names = [row["name"] for row in monitors]
    addresses = [row["address"] for row in monitors]
    problems += [
        f"{names.count(name)} monitors are called {name}: set ceph_common_id of their hosts"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        holders = ", ".join(row["name"] for row in monitors if row["address"] == address)
        problems.append(f"monitors {holders} have the same address {address}: set ceph_common_mon_address")
    versions = set()
    for row in monitors:
        try:
            parsed = ipaddress.ip_address(row["address"])
        except ValueError:
            problems.append(
                f"the address of monitor {row['name']} is {row['address']!r}, which is no IP address: set "
                "ceph_common_mon_address of its host to the one that clients reach it by"
            )
            continue
        versions.add(parsed.version)
        if parsed.is_loopback and len(monitors) > 1:
            problems.append(f"the address of monitor {row['name']} is {parsed}, which no other host reaches")
    if len(versions) > 1:
        problems.append("some monitors have an IPv4 and some an IPv6 address; give all of them one kind")
    return problems


def conf(
    fsid: str,
    monitors: Sequence[Mapping[str, str]],
    public_network: str = "",
    cluster_network: str = "",
    secure: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Text of ceph.conf.

    :param monitors: [{name, address}]; their order does not matter.
    :param options: further options by section, which win over the ones set here.
    """
    ordered = sorted(monitors, key=lambda row: row["name"])
    sections: dict[str, dict[str, Any]] = {
        "global": {"fsid": fsid, "mon_host": " ".join(address_vector(row["address"]) for row in ordered)},
        # A client that asks for its id again without a proof has a way in; no client of today needs it.
        "mon": {"auth_allow_insecure_global_id_reclaim": False},
    }
    if public_network:
        sections["global"]["public_network"] = public_network
    if cluster_network:
        sections["global"]["cluster_network"] = cluster_network
    if any(":" in row["address"] for row in ordered):
        sections["global"].update({"ms_bind_ipv4": False, "ms_bind_ipv6": True})
    if secure:
        sections["global"].update(SECURE)
    for section, values in (options or {}).items():
        sections.setdefault(section, {}).update(values)
    lines = ["# Written by Ansible (baremetal.gpu.ceph_common). Changes made here are lost."]
    for section, values in sections.items():
        lines.append(f"\n[{section}]")
        lines += [f"{key} = {_text(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def keyring(keys: Mapping[str, str]) -> str:
    """Text of a keyring for names and their secrets; names of CAPS get these, others none."""
    blocks = []
    for name, key in keys.items():
        caps = [f'\tcaps {service} = "{cap}"' for service, cap in CAPS.get(name, {}).items()]
        blocks.append("\n".join([f"[{name}]", f"\tkey = {key}", *caps]))
    return "\n".join(blocks) + "\n"


def key_in(text: str, name: str) -> str:
    """The secret of a name in the text of a keyring; empty if it is not there."""
    inside = False
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            inside = stripped == f"[{name}]"
        elif inside and stripped.startswith("key"):
            return stripped.partition("=")[2].strip()
    return ""
