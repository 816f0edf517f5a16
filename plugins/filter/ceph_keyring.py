# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ceph_keyring
short_description: Text of a Ceph keyring
version_added: 0.1.0
description:
  - Makes a keyring. The keys that a cluster starts with get their capabilities.
positional: _input
options:
  _input:
    description: Secrets by the name that they are of.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Write the keyring
  ansible.builtin.copy:
    content: "{{ {'client.admin': secret} | baremetal.gpu.ceph_keyring }}"
    dest: /etc/ceph/ceph.client.admin.keyring
    mode: "0600"
  no_log: true
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.conf import keyring


class FilterModule:
    """Filter of the Ceph roles."""

    def filters(self) -> dict[str, Any]:
        return {"ceph_keyring": keyring}
