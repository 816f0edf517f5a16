# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_hosts
short_description: All hosts of the Kubernetes cluster
version_added: 0.1.0
description:
  - The hosts of C(kubernetes_control_planes), then those of C(kubernetes_nodes) that are not among them.
positional: _input
options:
  _input:
    description: The groups of the inventory.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the hosts
  ansible.builtin.debug:
    msg: "{{ groups | baremetal.gpu.kubernetes_hosts }}"
"""

RETURN = r"""
_value:
  description: Their names in the inventory.
  type: list
  elements: str
"""

from collections.abc import Mapping, Sequence
from typing import Any


def kubernetes_hosts(groups: Mapping[str, Sequence[str]]) -> list[str]:
    names = ("kubernetes_control_planes", "kubernetes_nodes")
    return list(dict.fromkeys(host for name in names for host in groups.get(name, ())))


class FilterModule:
    """Filter of the roles of Kubernetes."""

    def filters(self) -> dict[str, Any]:
        return {"kubernetes_hosts": kubernetes_hosts}
