# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_memory
short_description: Whether a GPU has enough memory
version_added: 0.1.0
description:
  - True if the GPU has at least that much memory. A lost GPU does not tell its memory, so it is false for one.
positional: _input, at_least
options:
  _input:
    description: A GPU, such as an element of C(ansible_facts.gpu.devices).
    type: dict
    required: true
  at_least:
    description: Least memory in MiB.
    type: int
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Count the GPUs with 40 GB or more
  ansible.builtin.debug:
    msg: "{{ ansible_facts['gpu']['devices'] | select('baremetal.gpu.gpu_memory', 40000) | length }}"
"""

RETURN = r"""
_value:
  description: V(true) if the GPU has that much memory or more.
  type: bool
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import selection


def gpu_memory(gpu: Any, at_least: Any) -> bool:
    try:
        return bool(selection.select([gpu], memory_mib_min=at_least))
    except ValueError as error:
        raise AnsibleFilterError(f"baremetal.gpu.gpu_memory: {error}") from error


class TestModule:
    """Test for the memory of a GPU."""

    def tests(self) -> dict[str, Any]:
        return {"gpu_memory": gpu_memory}
