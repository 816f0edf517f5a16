# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metadata server of a host, and the pools of the file system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import daemon_name, expected_osds
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

DROP_IN = "/etc/systemd/system/ceph-mds@.service.d"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: host (its name in the inventory), filesystem, metadata_device_class, data_device_class, standbys,
        ignored_health, and of the role ceph_common id and fsid.
    :param peers: hosts, see the filter ceph_hosts.
    :returns: with the parts name (of the MDS), pools, and expected: what ceph_cluster_info is to expect of a cluster
        that is well.
    """
    name = daemon_name(params["host"], params["id"])
    hosts = peers["hosts"]
    document = doc.Document(
        files=[
            doc.Directory(DROP_IN),
            doc.File(f"{DROP_IN}/10-restart.conf", render("ceph_mds", "10-restart.conf.j2")),
        ],
        units=[doc.Unit.running(f"ceph-mds@{name}")],
    )
    return Plan(document, parts={"name": name, "pools": _pools(params), "expected": _expected(params, hosts)})


def _pools(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    filesystem = params["filesystem"]
    return [
        {"name": f"{filesystem}_metadata", "device_class": params["metadata_device_class"], "bulk": False},
        # It begins with as many placement groups as it will need when it is full.
        {"name": f"{filesystem}_data", "device_class": params["data_device_class"], "bulk": True},
    ]


def _expected(params: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "fsid": params["fsid"],
        "mons": [row["name"] for row in hosts.values() if "mon" in row["kinds"]],
        "mgrs": sum("mgr" in row["kinds"] for row in hosts.values()),
        **expected_osds(hosts),
        "filesystems": [params["filesystem"]],
        "standbys": int(params["standbys"]),
        "health": True,
        # A warning is for the operator and the alerts. It does not keep the homes from anybody.
        "warnings": False,
        "ignored": params["ignored_health"],
    }
