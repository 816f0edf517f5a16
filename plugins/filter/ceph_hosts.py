# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ceph_hosts
short_description: The hosts of a storage cluster
version_added: 0.1.0
description:
  - Reads from the inventory, and from what this run has found so far, what is known of each host with daemons of Ceph.
positional: _input, variables
options:
  _input:
    description: The hosts of the inventory by group.
    type: dict
    required: true
  variables:
    description: The variables of all hosts, C(hostvars).
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the hosts
  ansible.builtin.debug:
    msg: "{{ groups | baremetal.gpu.ceph_hosts(hostvars) }}"
"""

RETURN = r"""
_value:
  description:
    - By host C(kinds) of its daemons, C(name) of these and C(address) of its monitor; how many C(devices) are listed.
    - Of a host that this run has looked at C(crush_host), C(version) of Ceph and C(fsids) of clusters.
    - Of a host whose OSDs this run has started C(osds), their numbers.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import hosts


class FilterModule:
    """Filter of the Ceph roles."""

    def filters(self) -> dict[str, Any]:
        return {"ceph_hosts": hosts}
