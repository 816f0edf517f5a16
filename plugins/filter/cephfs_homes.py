# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cephfs_homes
short_description: The homes of listed users and members of groups, with the numbers that a host knows them by
version_added: 0.1.0
description:
  - Joins the users of the role P(baremetal.gpu.cephfs_homes#role) with what C(getent) said of them.
positional: _input, passwd
options:
  _input:
    description: The users, as in the role's variable.
    type: list
    elements: dict
    required: true
  passwd:
    description: Lines of C(getent passwd).
    type: list
    elements: str
    required: true
  groups:
    description: Lines of C(getent group), all of whose members get a home.
    type: list
    elements: str
    default: []
  size:
    description: Quota of a home that has none of its own.
    type: str
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the homes
  ansible.builtin.debug:
    msg: "{{ [{'name': 'alice'}] | baremetal.gpu.cephfs_homes(['alice:x:2001:2001::/home:/bin/sh'], size='50G') }}"
"""

RETURN = r"""
_value:
  description: The homes for the module M(baremetal.gpu.ceph_homes).
  type: list
  elements: dict
"""

from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import users as ceph_users


def cephfs_homes(
    users: list[dict[str, Any]], passwd: Sequence[str], groups: Sequence[str] = (), size: str = "0"
) -> list[dict[str, Any]]:
    try:
        return ceph_users.homes(users, passwd, groups, size)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filter of the role cephfs_homes."""

    def filters(self) -> dict[str, Any]:
        return {"cephfs_homes": cephfs_homes}
