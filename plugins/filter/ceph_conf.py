# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ceph_conf
short_description: Text of ceph.conf
version_added: 0.1.0
description:
  - Makes the file that all hosts of a cluster have in common.
positional: _input, monitors, public_network, cluster_network, secure, options
options:
  _input:
    description: The UUID of the cluster.
    type: str
    required: true
  monitors:
    description: The monitors, with C(name) and C(address).
    type: list
    required: true
  public_network:
    description: Network of the clients.
    type: str
    default: ""
  cluster_network:
    description: Network of the OSDs among themselves.
    type: str
    default: ""
  secure:
    description: Whether everything is encrypted on the wire.
    type: bool
    default: false
  options:
    description: Further options by section.
    type: dict
    default: {}
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the file
  ansible.builtin.debug:
    msg: "{{ fsid | baremetal.gpu.ceph_conf([{'name': 'a', 'address': '192.0.2.1'}]) }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.conf import conf


class FilterModule:
    """Filter of the Ceph roles."""

    def filters(self) -> dict[str, Any]:
        return {"ceph_conf": conf}
