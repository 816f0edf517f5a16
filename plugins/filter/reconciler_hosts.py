# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: reconciler_hosts
short_description: The logins of hosts that publish verdicts, by the names that Mesos has for them
version_added: 0.1.0
description:
  - Every host publishes with a login of its own, C(gpu-agent-NAME) with its name in the inventory. The reconciler knows
    hosts by the names of their Mesos agents.
positional: _input, variables, secrets
options:
  _input:
    description: The hosts, by their names in the inventory.
    type: list
    required: true
  variables:
    description: The variables of all hosts, C(hostvars).
    type: dict
    required: true
  secrets:
    description: Passwords by user. Hosts that have none are left out.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Count the logins
  ansible.builtin.debug:
    msg: "{{ groups['mesos_agents'] | baremetal.gpu.reconciler_hosts(hostvars, logins.secrets) | length }}"
"""

RETURN = r"""
_value:
  description: C(user) and C(password) of each, by the name of its Mesos agent.
  type: dict
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def hosts(names: Iterable[str], variables: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    owners: dict[str, str] = {}
    for name in names:
        told = variables[name]
        host = str(told.get("gpu_agent_host") or told.get("mesos_agent_hostname") or name)
        if host in owners:
            raise AnsibleFilterError(
                f"{owners[host]} and {name} both have {host} as the name of their Mesos agent. To do: give each "
                "its own mesos_agent_hostname"
            )
        owners[host] = name
        user = f"gpu-agent-{name}"
        if user in secrets:
            found[host] = {"user": user, "password": secrets[user]}
    return found


class FilterModule:
    """Filter of the role gpu_reconciler."""

    def filters(self) -> dict[str, Any]:
        return {"reconciler_hosts": hosts}
