#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_subvolume_info
short_description: Read the subvolumes of a CephFS
version_added: 0.1.0
description:
  - Returns the subvolumes of a group with quota, usage, owner, path and snapshots.
options:
  filesystem:
    description: Name of the file system.
    type: str
    required: true
  group:
    description: Group of the subvolumes. By default those without a group.
    type: str
    default: ""
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.attributes.looks
seealso:
  - module: baremetal.gpu.ceph_subvolume
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See how full the homes are
  baremetal.gpu.ceph_subvolume_info:
    filesystem: cephfs
    group: homes
  register: homes
"""

RETURN = r"""
subvolumes:
  description: The subvolumes by name, as M(baremetal.gpu.ceph_subvolume) returns one, with C(snapshots).
  returned: success
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import subvolume as ceph_subvolume
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "filesystem": {"type": "str", "required": True},
            "group": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    filesystem, group = module.params["filesystem"], module.params["group"]

    def work(ceph: Ceph) -> dict[str, Any]:
        return {"changed": False, "subvolumes": ceph_subvolume.read_all(ceph, filesystem, group)}

    ceph_module.guarded(module, f"the subvolumes of {filesystem}", work)


if __name__ == "__main__":
    main()
