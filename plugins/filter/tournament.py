# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tournament
short_description: Pair every host with every other one, in rounds
version_added: 0.1.0
description:
  - Returns rounds in each of which every host has at most one partner, so that all pairs of a round can work at the
    same time. C(N) hosts take C(N-1) rounds, and one more if C(N) is odd.
positional: _input
options:
  _input:
    description: Names of the hosts.
    type: list
    elements: str
    required: true
  most:
    description: How many rounds, V(0) for as many as it takes.
    type: int
    default: 0
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show who measures with whom
  ansible.builtin.debug:
    msg: "{{ ['n1', 'n2', 'n3', 'n4'] | baremetal.gpu.tournament }}"
"""

RETURN = r"""
_value:
  description: The rounds, each the partner of every host that measures.
  type: list
  elements: dict
"""

from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import network


def tournament(hosts: Sequence[str], most: int = 0) -> list[dict[str, str]]:
    return network.rounds([str(host) for host in hosts], int(most))


class FilterModule:
    """Filter of the playbook accept."""

    def filters(self) -> dict[str, Any]:
        return {"tournament": tournament}
