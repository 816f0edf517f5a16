#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_numbers
short_description: Keep the ledger of numbers that users and groups were given
version_added: 0.1.0
description:
  - Runs on the controller. Adds numbers to C(.users-ledger.json) beside the inventory, and never takes one out, so that
    none is given twice.
  - The ledger is not secret. Keep it with the inventory, such as in git.
options:
  path:
    description: The directory of the inventory.
    type: path
    required: true
  users:
    description: The number of each user.
    type: dict
    required: true
  groups:
    description: The number of each group.
    type: dict
    required: true
  refused:
    description: >-
      Problems of each host, as M(baremetal.gpu.cluster_accounts) has them. Where a host has accounts that the ledger
      does not know, it was lost, and no number is given.
    type: dict
    default: {}
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows the ledger before and after.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Write the numbers into the ledger
  baremetal.gpu.cluster_numbers:
    path: "{{ inventory_dir }}"
    users: {alice: 10001}
    groups: {research: 10002}
  run_once: true
"""

RETURN = r"""
problems:
  description: Why no number was given.
  returned: failed
  type: list
  elements: dict
"""
