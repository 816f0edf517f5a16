# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: slurm_fence
short_description: Where the reconciler of Slurm runs, and whether it acts
version_added: 0.1.0
description:
  - The reconciler of Slurm runs on the hosts of slurmctld, unless a host of C(gpu_reconcilers) has Slurm's nodes.
positional: _input, hostvars
options:
  _input:
    description: The groups of the inventory.
    type: dict
    required: true
  hostvars:
    description: The variables of all hosts.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the hosts
  ansible.builtin.debug:
    msg: "{{ (groups | baremetal.gpu.slurm_fence(hostvars)).hosts }}"
"""

RETURN = r"""
_value:
  description: C(hosts), and C(acts), whether faulty GPUs are taken out of service without ZooKeeper.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.fence import fence


class FilterModule:
    """Filter of the roles of Slurm."""

    def filters(self) -> dict[str, Any]:
        return {"slurm_fence": fence}
