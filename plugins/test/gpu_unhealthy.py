# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_unhealthy
short_description: Whether a node or a GPU is known to be unhealthy
version_added: 0.1.0
description:
  - True if a fault is known, so that the verdict on the node or on one of its GPUs is V(degraded) or V(fatal).
  - A verdict that is not known is neither healthy nor unhealthy.
options:
  _input:
    description: The facts of a host's GPUs (C(ansible_facts.gpu)), for the verdict on the node, or one GPU.
    type: dict
    required: true
seealso:
  - plugin: baremetal.gpu.gpu_healthy
    plugin_type: test
    description: Neither is true where the verdict is not known.
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Name the nodes that need a hand
  ansible.builtin.debug:
    msg: "{{ inventory_hostname }}: {{ ansible_facts['gpu']['health']['reasons'] }}"
  when: ansible_facts['gpu'] is baremetal.gpu.gpu_unhealthy
"""

RETURN = r"""
_value:
  description: V(true) if a fault is known.
  type: bool
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import selection


def gpu_unhealthy(value: Any) -> bool:
    try:
        return selection.has_fault(value)
    except ValueError as error:
        raise AnsibleFilterError(f"baremetal.gpu.gpu_unhealthy: {error}") from error


class TestModule:
    """Test for nodes and GPUs that are known to be unhealthy."""

    def tests(self) -> dict[str, Any]:
        return {"gpu_unhealthy": gpu_unhealthy}
