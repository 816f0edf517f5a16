# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: marathon_ready
short_description: The ready-made Marathon apps, and what speaks against them
version_added: 0.1.0
description:
  - Makes the apps of a smoke job, of a notebook or of a sweep from what is asked for, checks every value, and compares
    with what the agents of the cluster have. Nothing may be sent where there is a problem.
positional: _input, kind, agents
options:
  _input:
    description: What is asked for, by the variables of the role C(marathon_apps) without their beginning, and C(host).
    type: dict
    required: true
  kind:
    description: Which of them.
    type: str
    choices: [smoke, notebook, sweep]
    required: true
  agents:
    description: The agents, as M(baremetal.gpu.mesos_state_info) returns them. Without any nothing is compared.
    type: list
    default: []
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show what speaks against a notebook
  ansible.builtin.debug:
    msg: "{{ (asked | baremetal.gpu.marathon_ready('notebook', state.agents)).problems }}"
"""

RETURN = r"""
_value:
  description: C(problems), sentences with host, value and remedy, and C(apps) in the shape of Marathon's C(/v2/apps).
  type: dict
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import marathon_ready

KINDS = {"smoke": marathon_ready.smoke, "notebook": marathon_ready.notebook, "sweep": marathon_ready.sweep}


def ready(asked: Mapping[str, Any], kind: str, agents: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return KINDS[kind](asked, agents)


class FilterModule:
    """Filter of the role marathon_apps."""

    def filters(self) -> dict[str, Any]:
        return {"marathon_ready": ready}
