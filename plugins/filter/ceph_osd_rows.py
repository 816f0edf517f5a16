# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ceph_osd_rows
short_description: Devices as the modules for OSDs take them
version_added: 0.1.0
description:
  - Brings names and dictionaries of devices into one form.
positional: _input, defaults, wipe
options:
  _input:
    description: The devices, each a name or a dictionary.
    type: list
    required: true
  defaults:
    description: What counts for devices that do not say it themselves.
    type: dict
    required: true
  wipe:
    description: Names of those that may be wiped.
    type: list
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the devices
  ansible.builtin.debug:
    msg: "{{ ['/dev/disk/by-id/wwn-0x5000c500a1b2c3d4'] | baremetal.gpu.ceph_osd_rows({'method': 'raw'}, []) }}"
"""

RETURN = r"""
_value:
  description: A dictionary for each device.
  type: list
  elements: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import osd_rows


def rows(devices: Sequence[Any], defaults: Mapping[str, Any], wipe: Sequence[str]) -> list[dict[str, Any]]:
    return osd_rows.rows(devices, defaults, wipe)[0]


class FilterModule:
    """Filter of the Ceph roles."""

    def filters(self) -> dict[str, Any]:
        return {"ceph_osd_rows": rows}
