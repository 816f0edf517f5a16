# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: select_gpus
short_description: Select GPUs by model, memory, verdict and architecture
version_added: 0.1.0
description:
  - Keeps the GPUs that meet every condition that is given. Without a condition it keeps all.
  - Each GPU comes back as it was, with C(verdict) added from the health report where the facts have one; where they
    have none, the verdict is V(unknown), and V(fatal) for a GPU that is lost.
  - A condition on what is not known of a GPU is not met.
options:
  _input:
    description:
      - The facts of a host's GPUs (C(ansible_facts.gpu)), or a list of GPUs such as C(ansible_facts.gpu.devices)
        or what O(baremetal.gpu.gpus#inventory:gpus_variable) of the inventory plugin holds.
    type: raw
    required: true
  model:
    description:
      - Shell patterns for the model, one or a list. A GPU matches by its C(slug) (V(a100-sxm4-40gb)) or by its
        C(name) (V(NVIDIA A100-SXM4-40GB)). Upper and lower case are the same.
    type: raw
  memory_mib_min:
    description: Least memory in MiB.
    type: int
  memory_mib_max:
    description: Most memory in MiB.
    type: int
  verdict:
    description: Verdicts, one or a list, of V(ok), V(degraded), V(fatal) and V(unknown).
    type: raw
  architecture:
    description: Architectures, one or a list, such as V(ampere).
    type: raw
seealso:
  - plugin: baremetal.gpu.gpu_model
    plugin_type: test
    description: The same condition on one GPU.
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the healthy A100s with at least 40 GB
  ansible.builtin.debug:
    msg: "{{ ansible_facts['gpu'] | baremetal.gpu.select_gpus(model='a100*', memory_mib_min=40000, verdict='ok') }}"

- name: Run only where there are four GPUs for the job
  ansible.builtin.assert:
    that: ansible_facts['gpu'] | baremetal.gpu.select_gpus(model=['a100*', 'h100*'], verdict='ok') | length >= 4
    fail_msg: "{{ inventory_hostname }} has fewer than four healthy A100s or H100s"

- name: Show the GPUs of the whole inventory that need a hand
  ansible.builtin.debug:
    msg: "{{ hostvars[item].gpu_gpus | baremetal.gpu.select_gpus(verdict=['degraded', 'fatal']) }}"
  loop: "{{ groups['gpu_unhealthy'] | default([]) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The GPUs that were selected, in their order, each with C(verdict).
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import selection


def select_gpus(
    value: Any,
    model: Any = None,
    memory_mib_min: Any = None,
    memory_mib_max: Any = None,
    verdict: Any = None,
    architecture: Any = None,
) -> list[dict[str, Any]]:
    try:
        return selection.select(value, model, memory_mib_min, memory_mib_max, verdict, architecture)
    except ValueError as error:
        raise AnsibleFilterError(f"baremetal.gpu.select_gpus: {error}") from error


class FilterModule:
    """Filter that selects GPUs."""

    def filters(self) -> dict[str, Any]:
        return {"select_gpus": select_gpus}
