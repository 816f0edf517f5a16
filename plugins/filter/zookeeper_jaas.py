# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: zookeeper_jaas
short_description: The file with the secrets of a ZooKeeper server
version_added: 0.1.0
description:
  - Writes what Java needs to authenticate clients and other servers by DIGEST-MD5.
positional: _input, quorum_password
options:
  _input:
    description: Clients and their passwords.
    type: dict
    required: true
  quorum_password:
    description: What servers show each other; empty for no authentication between them.
    type: str
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Write the secrets
  ansible.builtin.copy:
    dest: /etc/zookeeper/ensemble/jaas.conf
    content: "{{ zookeeper_users | baremetal.gpu.zookeeper_jaas(zookeeper_quorum_password) }}"
    owner: zookeeper
    mode: "0600"
  no_log: true
"""

RETURN = r"""
_value:
  description: The text of the file; empty if there are no secrets.
  type: str
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.conf import jaas


class FilterModule:
    """Filter of the role zookeeper."""

    def filters(self) -> dict[str, Any]:
        return {"zookeeper_jaas": jaas}
