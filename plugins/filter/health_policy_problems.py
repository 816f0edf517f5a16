# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: health_policy_problems
short_description: What is wrong with a health policy
version_added: 0.1.0
description:
  - Checks the thresholds and the policy for Xids of a site, so that a role can refuse them before it changes anything.
positional: _input
options:
  _input:
    description: The policy, as in O(baremetal.gpu.gpu_agent#role:main:gpu_agent_policy).
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Refuse a policy that makes no sense
  ansible.builtin.assert:
    that: (gpu_agent_policy | baremetal.gpu.health_policy_problems) == ''
"""

RETURN = r"""
_value:
  description: What is wrong, naming key, value and remedy; empty if nothing is.
  type: str
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import policy


def problems(site: Any) -> str:
    try:
        policy.merge(site)
    except policy.PolicyError as error:
        return str(error)
    return ""


class FilterModule:
    """Filter of the role gpu_agent."""

    def filters(self) -> dict[str, Any]:
        return {"health_policy_problems": problems}
