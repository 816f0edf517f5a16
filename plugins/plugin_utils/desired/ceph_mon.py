# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The monitor of a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import daemon_name
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import ceph_common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: host (its name in the inventory), and of the role ceph_common id, fsid, keys and secrets.
    :param peers: monitors, by name and address.
    :returns: with the parts name (of the monitor), keys and monitors.
    """
    name = daemon_name(params["host"], params["id"])
    return Plan(
        doc.Document(units=[doc.Unit.running(f"ceph-mon@{name}")]),
        parts={"name": name, "keys": ceph_common.keys(params), "monitors": peers["monitors"]},
    )
