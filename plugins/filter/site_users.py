# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: site_users
short_description: What the roles make of the one list of a site's users
version_added: 0.1.0
description:
  - Reads C(cluster_users) and C(cluster_groups), with the ledger of numbers beside the inventory, and returns the lists
    of users that the roles take.
  - A user who has no number yet gets the next one that was never given. The role users writes it into the ledger.
  - A user whose day V(until) has come is closed.
positional: _input, groups, directory
options:
  _input:
    description: The users, C(cluster_users).
    type: list
    elements: dict
    required: true
  groups:
    description: The groups, C(cluster_groups).
    type: list
    elements: dict
    required: true
  directory:
    description: The directory of the inventory, C(inventory_dir), in which the ledger C(.users-ledger.json) is.
    type: path
    required: true
  today:
    description: The day, such as V(2027-03-31). By default that of the controller.
    type: str
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show who gets which home
  ansible.builtin.debug:
    msg: "{{ (cluster_users | baremetal.gpu.site_users(cluster_groups | default([]), inventory_dir)).homes }}"
"""

RETURN = r"""
_value:
  description:
    - C(homes) as C(cephfs_homes_users) has them, C(slurm_users) and C(slurm_accounts) for the role slurm_accounts,
      C(registry_users) for the role registry, C(accounts) and C(groups) for the role users.
    - C(ended) has the names of users who are closed because their day has come.
    - C(ledger) has the numbers that were given before, and their range.
    - C(problems) says what is wrong with the lists; then the lists are empty.
  type: dict
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import ledger, site


def site_users(
    users: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]], directory: str, today: str = ""
) -> dict[str, Any]:
    """The lists of the roles."""
    day = date.fromisoformat(today) if today else date.today()
    kept = ledger.Ledger()
    try:
        kept = ledger.read(directory)
        found = site.people(built_in(users), built_in(groups), kept, day)
    except Refused as why:
        found = site.People(problems=[why.problem])
    except OSError as why:
        found = site.People(problems=[Problem("no_ledger", ledger.FILE, f"{why.filename} cannot be read", str(why))])
    return {
        **site.as_lists(found),
        "ledger": {"users": dict(kept.users), "first": kept.first, "last": kept.last},
    }


class FilterModule:
    """Filter of the roles that have users."""

    def filters(self) -> dict[str, Any]:
        return {"site_users": site_users}
