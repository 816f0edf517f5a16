# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_model
short_description: Whether a GPU is of a model
version_added: 0.1.0
description:
  - True if the C(slug) or the C(name) of the GPU matches one of the patterns. Upper and lower case are the same.
positional: _input, patterns
options:
  _input:
    description: A GPU, such as an element of C(ansible_facts.gpu.devices).
    type: dict
    required: true
  patterns:
    description: Shell patterns, one or a list.
    type: raw
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the memory of every A100 and H100
  ansible.builtin.debug:
    msg: "{{ item.index }}: {{ item.memory_mib }} MiB"
  loop: "{{ ansible_facts['gpu']['devices'] | select('baremetal.gpu.gpu_model', ['a100*', 'h100*']) }}"
"""

RETURN = r"""
_value:
  description: V(true) if the GPU is of one of the models.
  type: bool
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import selection


def gpu_model(gpu: Any, patterns: Any) -> bool:
    try:
        return bool(selection.select([gpu], model=patterns))
    except ValueError as error:
        raise AnsibleFilterError(f"baremetal.gpu.gpu_model: {error}") from error


class TestModule:
    """Test for the model of a GPU."""

    def tests(self) -> dict[str, Any]:
        return {"gpu_model": gpu_model}
