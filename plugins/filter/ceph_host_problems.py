# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ceph_host_problems
short_description: What keeps a host out of a Ceph cluster
version_added: 0.1.0
description:
  - Lists everything at once that speaks against a host, before anything is changed.
positional: _input, fsid, rows, name, is_monitor, versions, groups, variables
options:
  _input:
    description: The answer of M(baremetal.gpu.ceph_node_info).
    type: dict
    required: true
  fsid:
    description: The UUID of the cluster.
    type: str
    required: true
  rows:
    description: The monitors, with C(name) and C(address).
    type: list
    required: true
  name:
    description: What the daemons of the host are called.
    type: str
    required: true
  is_monitor:
    description: Whether the host runs a monitor.
    type: bool
    required: true
  versions:
    description: Version of Ceph by host, of those that run daemons.
    type: dict
    required: true
  groups:
    description: The hosts of the inventory by group. Without them it is not seen whether names are given twice.
    type: dict
    default: {}
  variables:
    description: What is known of each host, as C(hostvars) has it.
    type: dict
    default: {}
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show what speaks against the host
  ansible.builtin.debug:
    msg: "{{ node | baremetal.gpu.ceph_host_problems(fsid, monitors, 'stor1', true, {'stor1': '18.2.7'}) }}"
"""

RETURN = r"""
_value:
  description: Sentences; none if nothing speaks against it.
  type: list
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.preflight import problems


class FilterModule:
    """Filter of the Ceph roles."""

    def filters(self) -> dict[str, Any]:
        return {"ceph_host_problems": problems}
