# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: mesos_plan
short_description: Settings and files of mesos-master, mesos-agent or Marathon on a host, and what speaks against them
version_added: 0.1.0
description:
  - Makes the settings of one program from what its role asks for and from how the host was found, compares every one
    with the flags of the program's flavour and version, and lists everything at once that speaks against them.
positional: _input, variables
options:
  _input:
    description: >-
      What the role asks for, with C(program), C(host), and C(node) as M(baremetal.gpu.mesos_node_info) tells it.
    type: dict
    required: true
  variables:
    description: The variables of all hosts, C(hostvars), from which masters learn of each other.
    type: dict
    default: {}
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show what speaks against the masters
  ansible.builtin.debug:
    msg: "{{ (mesos_master_asked | baremetal.gpu.mesos_plan(hostvars)).problems }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems), C(files) of a desired document, C(arguments) for what no variable of the environment can say,
      C(members) with C(name) and C(address) of the masters, and C(joining) with the names of empty masters.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.plan import plan


class FilterModule:
    """Filter of the roles of Mesos and Marathon."""

    def filters(self) -> dict[str, Any]:
        return {"mesos_plan": plan}
