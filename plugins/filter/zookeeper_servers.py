# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: zookeeper_servers
short_description: Servers of an ensemble, as zookeeper_info takes them
version_added: 0.1.0
description:
  - Returns the address and the client port of each host of the group, from the settings of the role or the variables of
    the host.
positional: _input, variables
options:
  _input:
    description: The hosts of the group.
    type: list
    required: true
  variables:
    description: The variables of all hosts, C(hostvars).
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See whether the ensemble has a quorum
  baremetal.gpu.zookeeper_info:
    servers: "{{ groups['zookeeper'] | baremetal.gpu.zookeeper_servers(hostvars) }}"
"""

RETURN = r"""
_value:
  description: C(host) and C(port) of each.
  type: list
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members

CLIENT_PORT = 2181


def zookeeper_servers(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"host": row["address"], "port": row["port"]} for row in members(hosts, variables, "zookeeper", CLIENT_PORT)
    ]


class FilterModule:
    """Filter of the playbook status."""

    def filters(self) -> dict[str, Any]:
        return {"zookeeper_servers": zookeeper_servers}
