# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles of Mesos and Marathon share on one host; it brings nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.common import CONFIG, Common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import OPERATOR


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The parts that the other roles read.

    :param peers: ``host``, ``groups`` and ``hostvars``; of the servers of ZooKeeper ``zookeeper_params`` are read.
    """
    common = Common(params, facts, peers)
    return Plan(
        parts={
            "config": CONFIG,
            "below": common.below,
            "private": bool(common.home),
            "zookeeper": common.zookeeper(),
            "names": common.names(),
            "principals": common.principals(),
            "operator": common.login(OPERATOR),
            "authority": common.authority(),
            "certificates": common.certificates(),
        }
    )
