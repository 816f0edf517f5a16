# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory and this run know of the hosts of a storage cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# The group of the hosts that run a kind of daemon.
GROUPS = {"mon": "ceph_mons", "mgr": "ceph_mgrs", "osd": "ceph_osds", "mds": "ceph_mdss"}


def daemon_name(host: str, identifier: Any) -> str:
    """The name of the daemons of a host: by default the first part of the name of the host.

    :param identifier: ceph_common_id of the host; may be empty.
    """
    return str(identifier or host.partition(".")[0])


def monitors(names: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Names and addresses of the monitors on hosts, by what the inventory says of each."""
    return [
        {"name": daemon_name(host, variables[host].get("ceph_common_id")), "address": _address(host, variables[host])}
        for host in names
    ]


def hosts(groups: Mapping[str, Sequence[str]], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By host of the cluster: kinds, name, address, crush_host, version, fsids, devices and osds.

    `crush_host` and `version` are empty, and `fsids` too, for a host that this run has not looked at yet; `devices`
    is how many are listed, and `osds` null until the OSDs of the host run.
    """
    listed = {kind: list(groups.get(group) or ()) for kind, group in GROUPS.items()}
    names = dict.fromkeys(host for members in listed.values() for host in members)
    return {
        host: _row(host, [kind for kind, members in listed.items() if host in members], variables[host])
        for host in names
    }


def _row(host: str, kinds: list[str], known: Mapping[str, Any]) -> dict[str, Any]:
    node = known.get("ceph_common_node") or {}
    result = known.get("ceph_osd_result") or {}
    location = re.search(r"(?:^|\s)host=(\S+)", str(known.get("ceph_common_crush_location") or ""))
    return {
        "kinds": kinds,
        "name": daemon_name(host, known.get("ceph_common_id")),
        "address": _address(host, known),
        "crush_host": location[1] if location else str(node.get("hostname") or ""),
        "version": str(node.get("version") or ""),
        "fsids": [trace["fsid"] for trace in node.get("traces") or () if trace["fsid"]],
        "devices": len(known.get("ceph_osd_devices") or ()),
        "osds": list(result["osds"]) if "osds" in result else None,
    }


def _address(host: str, known: Mapping[str, Any]) -> str:
    return str(known.get("ceph_common_mon_address") or known.get("ansible_host") or host)


def expected_osds(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, list[int]]:
    """The numbers of all OSDs as {osds}, for ceph_cluster_info; nothing where this run has not had all their hosts."""
    numbers = [row["osds"] for row in rows.values() if "osd" in row["kinds"]]
    known = [listed for listed in numbers if listed is not None]
    return {"osds": [number for listed in known for number in listed]} if len(known) == len(numbers) else {}
