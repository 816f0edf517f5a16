# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: zookeeper_plan
short_description: Ids and addresses of a ZooKeeper ensemble, and what speaks against it
version_added: 0.1.0
description:
  - Gives every host of a group its id, which it keeps whatever becomes of the inventory, and lists everything at once
    that speaks against the ensemble, before anything is changed.
positional: _input, variables
options:
  _input:
    description: The hosts of the group.
    type: list
    required: true
  variables:
    description: The variables of all hosts, C(hostvars), with C(zookeeper_asked) and C(zookeeper_node) of the role.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the ensemble
  ansible.builtin.debug:
    msg: "{{ groups['zookeeper'] | baremetal.gpu.zookeeper_plan(hostvars) }}"
"""

RETURN = r"""
_value:
  description:
    - C(ids) by host, C(servers) with C(id), C(host) and C(port) of each, C(joining) with the names of empty hosts that
      join an ensemble, and C(problems) by host.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.zookeeper_plan import plan


class FilterModule:
    """Filter of the role zookeeper."""

    def filters(self) -> dict[str, Any]:
        return {"zookeeper_plan": plan}
