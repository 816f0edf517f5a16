# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: container_plan
short_description: What the container engine of a host is to be
version_added: 0.1.0
description:
  - Works out packages, units, settings and the access to the cards from the variables of the role
    P(baremetal.gpu.container_runtime#role) and the facts of the host, for all tasks of the role at once.
positional: _input, systems, facts
options:
  _input:
    description: The variables of the role, with their whole names.
    type: dict
    required: true
  systems:
    description: What the systems bring, from the variables of the role.
    type: dict
    required: true
  facts:
    description: The facts of the host.
    type: dict
    required: true
  containerd:
    description:
      - What is in the configuration file of containerd, in Base64. Left out where there is none, or where nobody has
        looked.
    type: str
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Say what speaks against the engine that is asked for
  ansible.builtin.debug:
    msg: >-
      {{ (__container_runtime_asked
          | baremetal.gpu.container_plan(__container_runtime_systems, ansible_facts))['problems'] }}
"""

RETURN = r"""
_value:
  description:
    - The plan. RV(_value.problems) is a list of C(why) and C(remedy), RV(_value.desired) the document for packages,
      repositories and units, RV(_value.settings) what becomes of the configuration files, RV(_value.specification)
      what is asked of M(baremetal.gpu.nvidia_cdi).
  type: dict
"""

import base64
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.container_plan import plan


def container_plan(
    variables: dict[str, Any], systems: dict[str, Any], facts: dict[str, Any], containerd: str | None = None
) -> dict[str, Any]:
    text = None if containerd is None else base64.b64decode(containerd).decode("utf-8", "replace")
    return plan(variables, systems, facts, text)


class FilterModule:
    """Filter of the role container_runtime."""

    def filters(self) -> dict[str, Any]:
        return {"container_plan": container_plan}
