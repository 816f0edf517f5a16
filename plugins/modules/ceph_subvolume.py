#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_subvolume
short_description: Keep a subvolume of CephFS
version_added: 0.1.0
description:
  - Creates a subvolume, which is a directory of CephFS with a quota and an owner, and its group, and keeps them.
  - Never shrinks it below its usage, and removes it only if O(confirm) repeats its name.
options:
  filesystem:
    description: Name of the file system.
    type: str
    required: true
  group:
    description: Group of the subvolume. By default none.
    type: str
    default: ""
  name:
    description: Name of the subvolume.
    type: str
    required: true
  state:
    description: Whether it exists. V(absent) deletes its content and its snapshots for good.
    type: str
    choices: [present, absent]
    default: present
  confirm:
    description: The subvolume's name again, for O(state=absent).
    type: str
    default: ""
  size:
    description: Its quota, such as V(50G). V(0) removes the quota.
    type: str
  uid:
    description: UID of its top directory's owner.
    type: int
  gid:
    description: GID of its top directory.
    type: int
  mode:
    description: Mode of its top directory.
    type: str
  namespace_isolated:
    description: >-
      Whether its objects have their own namespace. Without one, a key that may read its files may read all objects of
      the pool. Cannot be changed later.
    type: bool
  snapshot:
    description: Name of a snapshot to take if it does not exist.
    type: str
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
seealso:
  - module: baremetal.gpu.ceph_info
  - module: baremetal.gpu.ceph_homes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: A place for a project
  baremetal.gpu.ceph_subvolume:
    filesystem: cephfs
    group: projects
    name: vision
    size: 2T
    gid: 3000
    mode: "2770"
    namespace_isolated: true
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [make the subvolume projects/vision]
subvolume:
  description: The subvolume as it is now, null if it is not there.
  returned: success
  type: dict
  contains:
    path:
      description: Its path in the file system.
      type: str
    size:
      description: Its quota in bytes, 0 without.
      type: int
    used:
      description: What it holds, in bytes.
      type: int
    uid:
      description: Owner of its top directory.
      type: int
    gid:
      description: Group of its top directory.
      type: int
    mode:
      description: Mode of its top directory.
      type: str
    data_pool:
      description: Pool of its data.
      type: str
    namespace:
      description: Namespace of its objects, empty if it has none of its own.
      type: str
    state:
      description: What Ceph says of it.
      type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import subvolume as ceph_subvolume
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import size_in_bytes

SHOWN = ("size", "uid", "gid", "mode")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "filesystem": {"type": "str", "required": True},
            "group": {"type": "str", "default": ""},
            "name": {"type": "str", "required": True},
            "state": ceph_module.STATES,
            "confirm": {"type": "str", "default": ""},
            "size": {"type": "str"},
            "uid": {"type": "int"},
            "gid": {"type": "int"},
            "mode": {"type": "str"},
            "namespace_isolated": {"type": "bool"},
            "snapshot": {"type": "str"},
        },
        supports_check_mode=True,
    )
    given = module.params
    place = ceph_subvolume.Place(given["filesystem"], given["group"], given["name"])
    absent = given["state"] == "absent"

    def asked() -> dict[str, Any]:
        wanted = {key: given[key] for key in ("uid", "gid", "namespace_isolated", "snapshot")}
        wanted["size"] = None if given["size"] is None else size_in_bytes(given["size"])
        wanted["mode"] = None if given["mode"] is None else given["mode"].zfill(4)
        return wanted

    def work(ceph: Ceph) -> dict[str, Any]:
        wanted = asked()
        managed = {key: wanted[key] for key in SHOWN if wanted[key] is not None}

        def show(found: ceph_subvolume.Found) -> Any:
            if not found.info:
                return None
            there = {key: found.info[key] for key in SHOWN if absent or key in managed}
            return {**there, "snapshots": found.snapshots} if absent or given["snapshot"] else there

        if given["snapshot"]:
            snapshots = set(ceph_subvolume.read(ceph, place).snapshots) | {given["snapshot"]}
            managed["snapshots"] = sorted(snapshots)
        result = ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph_subvolume.read(ceph, place),
            plan=lambda found: (
                ceph_subvolume.plan_removal(found, place, given["confirm"])
                if absent
                else ceph_subvolume.plan(found, place, wanted)
            ),
            show=show,
            wanted=None if absent else managed,
        )
        result["subvolume"] = ceph_subvolume.read(ceph, place).info
        return result

    def announced() -> dict[str, Any]:
        shown = {key: value for key, value in asked().items() if key in SHOWN and value is not None}
        return {
            "changed": not absent,
            "plan": [] if absent else [f"make the subvolume {place}"],
            "subvolume": None,
            "diff": {"before": "", "after": "" if absent else ceph_module.text(shown)},
        }

    ceph_module.guarded(module, f"the subvolume {place}", work, announced)


if __name__ == "__main__":
    main()
