# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_healthy
short_description: Whether a node or a GPU is healthy
version_added: 0.1.0
description:
  - True if the verdict is V(ok). Facts without a health report are not known to be healthy, so it is false for them.
options:
  _input:
    description: The facts of a host's GPUs (C(ansible_facts.gpu)), for the verdict on the node, or one GPU.
    type: dict
    required: true
seealso:
  - plugin: baremetal.gpu.gpu_unhealthy
    plugin_type: test
    description: Neither is true where the verdict is not known.
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Go on only on a healthy node
  ansible.builtin.assert:
    that: ansible_facts['gpu'] is baremetal.gpu.gpu_healthy
    fail_msg: "{{ inventory_hostname }} is not healthy: {{ ansible_facts['gpu']['health'] | default('not looked at') }}"
"""

RETURN = r"""
_value:
  description: V(true) if the verdict is V(ok).
  type: bool
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import OK
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import selection


def gpu_healthy(value: Any) -> bool:
    try:
        return selection.verdict_of(value) == OK
    except ValueError as error:
        raise AnsibleFilterError(f"baremetal.gpu.gpu_healthy: {error}") from error


class TestModule:
    """Test for healthy nodes and GPUs."""

    def tests(self) -> dict[str, Any]:
        return {"gpu_healthy": gpu_healthy}
