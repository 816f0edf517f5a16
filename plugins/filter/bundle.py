# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: bundle
short_description: A program for hosts in one file
version_added: 0.1.0
description:
  - Puts a module of the collection's module_utils, all that it imports and, where that is NVML, the controller's pynvml
    into one Python file, which a host runs with Python 3.9 and nothing installed.
  - The same sources give the same file.
positional: _input
options:
  _input:
    description: Name of the module, whose C(main) is run.
    type: str
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the program of the node agent
  ansible.builtin.debug:
    msg: "{{ 'agent.command' | baremetal.gpu.bundle }}"
"""

RETURN = r"""
_value:
  description: The file.
  type: str
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils import bundle


def make(entry: str) -> str:
    try:
        return bundle.bundle(entry)
    except (LookupError, OSError) as failure:
        raise AnsibleFilterError(f"no program can be made of {entry}: {failure}") from failure


class FilterModule:
    """Filter of the role gpu_agent."""

    def filters(self) -> dict[str, Any]:
        return {"bundle": make}
