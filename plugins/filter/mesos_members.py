# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mesos_members
short_description: Addresses of masters, Marathons or ZooKeeper servers
version_added: 0.1.0
description:
  - Tells by what the hosts of a group are reached, as the role of each asked for, or else from its variables.
positional: _input, variables, kind, port
options:
  _input:
    description: The hosts of the group.
    type: list
    required: true
  variables:
    description: The variables of all hosts, C(hostvars).
    type: dict
    required: true
  kind:
    description: What they run.
    type: str
    choices: [master, marathon, zookeeper]
    required: true
  port:
    description: The port of hosts that say nothing else.
    type: int
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the masters
  ansible.builtin.debug:
    msg: "{{ groups['mesos_masters'] | baremetal.gpu.mesos_members(hostvars, 'master', 5050) }}"
"""

RETURN = r"""
_value:
  description: C(name), C(address), C(port) and C(url) of each.
  type: list
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members


class FilterModule:
    """Filter of the roles of Mesos and Marathon."""

    def filters(self) -> dict[str, Any]:
        return {"mesos_members": members}
