# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ceph_monitors
short_description: Names and addresses of Ceph monitors
version_added: 0.1.0
description:
  - Reads from the inventory what the monitor of each host is called and by which address it is reached.
positional: _input, variables
options:
  _input:
    description: The hosts.
    type: list
    required: true
  variables:
    description: The variables of all hosts, C(hostvars).
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the monitors
  ansible.builtin.debug:
    msg: "{{ groups['ceph_mons'] | baremetal.gpu.ceph_monitors(hostvars) }}"
"""

RETURN = r"""
_value:
  description: A dictionary with C(name) and C(address) for each.
  type: list
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import monitors


class FilterModule:
    """Filter of the Ceph roles."""

    def filters(self) -> dict[str, Any]:
        return {"ceph_monitors": monitors}
