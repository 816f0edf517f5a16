# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The identity of a cluster: its UUID, addresses of monitors, keys and keyrings.

Format of addresses: https://docs.ceph.com/en/latest/rados/configuration/msgr2/.
"""

from __future__ import annotations

import base64
import os
import struct
import time
import uuid
from collections.abc import Mapping

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
