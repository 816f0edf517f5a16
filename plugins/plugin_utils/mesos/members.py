# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""By what masters, Marathons and ZooKeeper servers are reached. A pure function over the variables of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Where the role of a kind leaves its settings, and the variables of its own that name an address and a port.
_KINDS = {
    "master": ("mesos_master_params", "mesos_common_address", "port", "mesos_master_port"),
    "marathon": ("marathon_params", "mesos_common_address", "port", "marathon_port"),
    "zookeeper": ("zookeeper_params", "zookeeper_address", "client_port", "zookeeper_client_port"),
}


def members(
    hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]], kind: str, port: int
) -> list[dict[str, Any]]:
    """``name``, ``address``, ``port`` and ``url`` of each host of a group, by its settings or its variables.

    :param kind: master, marathon or zookeeper.
    :param port: the one of those that say nothing else.
    """
    left, address, key, own_port = _KINDS[kind]
    rows = []
    for name in hosts:
        known = variables[name]
        params = known.get(left) or {}
        host = params.get("address") or known.get(address) or known.get("ansible_host") or name
        number = int(params.get(key) or known.get(own_port) or port)
        # Marathon's own HTTP is without TLS, and in between everybody answers to both.
        mode = (params.get("tls") or {}).get("mode") or known.get("mesos_common_tls") or "off"
        scheme = "https" if kind == "master" and mode == "required" else "http"
        rows.append({"name": name, "address": str(host), "port": number, "url": f"{scheme}://{host}:{number}"})
    return rows
