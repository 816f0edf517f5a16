# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: zookeeper_conf
short_description: The configuration of a ZooKeeper server
version_added: 0.1.0
description:
  - Writes zoo.cfg from the settings of the role.
positional: _input, servers
options:
  _input:
    description: The settings of the role, C(zookeeper_asked).
    type: dict
    required: true
  servers:
    description: The servers, as P(baremetal.gpu.zookeeper_plan#filter) returns them.
    type: list
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the configuration
  ansible.builtin.debug:
    msg: "{{ zookeeper_asked | baremetal.gpu.zookeeper_conf(servers) }}"
"""

RETURN = r"""
_value:
  description: The text of the file.
  type: str
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.conf import zoo_cfg


class FilterModule:
    """Filter of the role zookeeper."""

    def filters(self) -> dict[str, Any]:
        return {"zookeeper_conf": zoo_cfg}
