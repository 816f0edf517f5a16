# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the daemons of Ceph on this host say themselves, through their sockets and files, without a quorum."""

from __future__ import annotations

import glob
import json
import os
import re
import socket
import struct
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_foreign_text, read_text

SOCKETS = "/var/run/ceph"
FSID = re.compile(r"^\s*fsid\s*=\s*(\S+)", re.MULTILINE)


def ask(path: str, prefix: str, timeout: float = 10) -> Any:
    """What a daemon answers on its admin socket; None if it does not answer.

    The protocol is a JSON object and a zero byte, answered by a length in 4 bytes and JSON:
    https://docs.ceph.com/en/latest/rados/operations/monitoring/#using-the-admin-socket.
    """
    request = json.dumps({"prefix": prefix, "format": "json"}).encode() + b"\0"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(request)
            (length,) = struct.unpack(">I", _receive(connection, 4))
            return json.loads(_receive(connection, length))
    except (OSError, ValueError, RecursionError, EOFError):
        return None


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def mon_status(cluster: str, name: str) -> dict[str, Any] | None:
    """What a monitor of this host says of itself and the others; None if it does not run."""
    found = ask(f"{SOCKETS}/{cluster}-mon.{name}.asok", "mon_status")
    return found if isinstance(found, dict) else None


def traces(cluster: str = "ceph", etc: str = "/etc/ceph", lib: str = "/var/lib/ceph") -> list[dict[str, str]]:
    """Which clusters this host belongs to: [{fsid, where}]; the fsid is empty where it cannot be told."""
    found = []
    text = read_text(f"{etc}/{cluster}.conf")
    match = FSID.search(text)
    if match:
        found.append({"fsid": match[1], "where": f"{etc}/{cluster}.conf"})
    for path in sorted(glob.glob(f"{lib}/mon/{cluster}-*/store.db")):
        directory = os.path.dirname(path)
        found.append({"fsid": mon_fsid(directory, cluster), "where": directory})
    found += [
        {"fsid": _fsid_in(path), "where": os.path.dirname(path)} for path in sorted(glob.glob(f"{lib}/osd/*/ceph_fsid"))
    ]
    return found


def _fsid_in(path: str) -> str:
    """Ceph's own account keeps it, which could have put anything there."""
    text = read_foreign_text(path).strip()
    return text if ceph_conf.is_fsid(text) else ""


def mon_fsid(directory: str, cluster: str) -> str:
    """The cluster that a monitor's store belongs to, as it was written down or as the running monitor says."""
    written = _fsid_in(f"{directory}/baremetal-gpu-fsid")
    if written:
        return written
    name = os.path.basename(directory)[len(cluster) + 1 :]
    status = mon_status(cluster, name)
    return str(status["monmap"]["fsid"]) if status else ""
