# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: zookeeper_digests
short_description: Logins as the ACLs of ZooKeeper name them
version_added: 0.1.0
description:
  - Makes C(user:checksum) of user and password, by the scheme C(digest), so that who only has to know a user needs no
    password.
  - Refuses a login that two have, and one without a user or a password.
positional: _input
options:
  _input:
    description: C(user) and C(password) of each.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show whom an ACL would name
  ansible.builtin.debug:
    msg: "{{ {'gpu1': {'user': 'gpu1', 'password': 'hidden'}} | baremetal.gpu.zookeeper_digests }}"
"""

RETURN = r"""
_value:
  description: C(user:checksum) of each.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import digest_id


def digests(logins: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for host, login in logins.items():
        user, password = (login.get(key) if isinstance(login, Mapping) else None for key in ("user", "password"))
        if not isinstance(user, str) or not isinstance(password, str) or not user or not password or ":" in user:
            raise AnsibleFilterError(f"{host}: give a user without a colon, and a password")
        digest = digest_id(user, password)
        if digest in owners:
            raise AnsibleFilterError(f"{owners[digest]} and {host} have the same login. To do: give each host its own")
        owners[digest] = host
        found[host] = digest
    return found


class FilterModule:
    """Filter of the role gpu_reconciler."""

    def filters(self) -> dict[str, Any]:
        return {"zookeeper_digests": digests}
