# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: desired
short_description: What a role wants of a host
version_added: 0.1.0
description:
  - Works out the desired document of a role for one host from the variables of the role, the facts of the host and
    what other hosts of the site are to be.
  - Each role has one function for it, in C(plugins/plugin_utils/desired/ROLE.py).
positional: _input, role, facts, peers
options:
  _input:
    description: The variables of the role, without the name of the role before them.
    type: dict
    required: true
  role:
    description: The name of the role.
    type: str
    required: true
  facts:
    description: The facts of the host.
    type: dict
    default: {}
  peers:
    description: What the role has to know of other hosts. The role says which keys it has.
    type: dict
    default: {}
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show what the role cuda wants of this host
  ansible.builtin.debug:
    msg: "{{ __cuda_params | baremetal.gpu.desired('cuda', ansible_facts) }}"
"""

RETURN = r"""
_value:
  description:
    - The plan. RV(_value.desired) is the document that M(baremetal.gpu.host_drift_info) compares the host with.
      RV(_value.problems) says what keeps the role from working one out, as RV(baremetal.gpu.refuse#module:problems)
      has them. The other keys are the role's own.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import roles


def desired(
    params: Mapping[str, Any],
    role: str,
    facts: Mapping[str, Any] | None = None,
    peers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The plan of a role for one host, as templates read it."""
    if role not in roles.names():
        raise AnsibleFilterError(
            f"desired: there is no plan for a role {role!r}; use one of {', '.join(roles.names())}"
        )
    return roles.planner(role)(params, facts or {}, peers or {}).as_dict()


class FilterModule:
    """Filter of every role that has a desired document."""

    def filters(self) -> dict[str, Any]:
        return {"desired": desired}
