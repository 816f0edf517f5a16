#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_fs
short_description: Keep a file system of Ceph
version_added: 0.1.0
description:
  - Creates a file system from existing pools, and keeps its numbers of active and standby MDSs.
  - Refuses to create one without a standby MDS, since a file system without an MDS has an error at once.
options:
  name:
    description: Name of the file system.
    type: str
    required: true
  state:
    description: Whether it exists. V(absent) loses every file name in it. The pools stay.
    type: str
    choices: [present, absent]
    default: present
  confirm:
    description: The file system's name again, for O(state=absent).
    type: str
    default: ""
  metadata_pool:
    description: Pool for its metadata. Cannot be changed later.
    type: str
  data_pools:
    description: Pools for its data. The first cannot be changed later. Its other pools stay.
    type: list
    elements: str
  max_mds:
    description: How many active MDSs share the work.
    type: int
  standby_count_wanted:
    description: How many MDSs should be standby. With fewer Ceph warns.
    type: int
  allow_standby_replay:
    description: Whether a standby follows the journal of an active MDS, to take over faster.
    type: bool
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
seealso:
  - module: baremetal.gpu.ceph_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Create the file system
  baremetal.gpu.ceph_fs:
    name: cephfs
    metadata_pool: cephfs_metadata
    data_pools: [cephfs_data]
    standby_count_wanted: 1
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [make the file system cephfs]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import fs as ceph_fs
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph

WANTED = ("metadata_pool", "data_pools", *ceph_fs.SETTINGS)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "name": {"type": "str", "required": True},
            "state": ceph_module.STATES,
            "confirm": {"type": "str", "default": ""},
            "metadata_pool": {"type": "str"},
            "data_pools": {"type": "list", "elements": "str"},
            "max_mds": {"type": "int"},
            "standby_count_wanted": {"type": "int"},
            "allow_standby_replay": {"type": "bool"},
        },
        supports_check_mode=True,
    )
    given = module.params
    name, absent = given["name"], given["state"] == "absent"
    wanted = {key: given[key] for key in WANTED if given[key] is not None}

    def show(found: dict[str, Any]) -> Any:
        there = found["filesystems"].get(name)
        return there and {key: there[key] for key in (WANTED if absent else wanted)}

    def work(ceph: Ceph) -> dict[str, Any]:
        return ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph_fs.read(ceph),
            plan=lambda found: (
                ceph_fs.plan_removal(found, name, given["confirm"])
                if absent
                else ceph_fs.plan(found, name, wanted, pretend=module.check_mode)
            ),
            show=show,
            wanted=None if absent else wanted,
        )

    ceph_module.guarded(module, f"the file system {name}", work)


if __name__ == "__main__":
    main()
