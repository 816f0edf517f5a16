# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_plan
short_description: What the NVIDIA driver of a host is to be
version_added: 0.1.0
description:
  - Works out repositories, packages, files, kernel modules and units from the variables of the role
    P(baremetal.gpu.nvidia_driver#role) and the facts of the host, for all tasks of the role at once.
positional: _input, schemes, systems, families, facts
options:
  _input:
    description: The variables of the role, with their whole names.
    type: dict
    required: true
  schemes:
    description: How the packages of drivers are called, from the variables of the role.
    type: dict
    required: true
  systems:
    description: Which scheme a system has, from the same place.
    type: dict
    required: true
  families:
    description: What systems of a kind have in common, from the same place.
    type: dict
    required: true
  facts:
    description: The facts of the host.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Say what speaks against the driver that is asked for
  ansible.builtin.debug:
    msg: >-
      {{ (__nvidia_driver_asked | baremetal.gpu.driver_plan(
            __nvidia_driver_schemes, __nvidia_driver_systems, __nvidia_driver_families, ansible_facts))['objections'] }}
"""

RETURN = r"""
_value:
  description:
    - The plan. RV(_value.objections) is a list of texts, RV(_value.desired) the document for packages, repositories,
      files, kernel modules and units, RV(_value.runfile) what NVIDIA's installer needs where it is used.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.driver_plan import plan


class FilterModule:
    """Filter of the role nvidia_driver."""

    def filters(self) -> dict[str, Any]:
        return {"driver_plan": plan}
