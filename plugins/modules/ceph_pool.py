#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_pool
short_description: Keep a replicated pool of Ceph
version_added: 0.1.0
description:
  - Creates a pool and keeps its copies, rule, application, autoscaling and quotas. What an unset option controls stays
    as it is.
  - Removes a pool only if O(confirm) repeats its name, and only while the monitors allow it.
options:
  name:
    description: Name of the pool.
    type: str
    required: true
  state:
    description: Whether the pool exists. V(absent) deletes its content for good.
    type: str
    choices: [present, absent]
    default: present
  confirm:
    description: The pool's name again, for O(state=absent).
    type: str
    default: ""
  size:
    description: Copies of each object.
    type: int
  min_size:
    description: Copies that must be available for writes.
    type: int
  crush_rule:
    description: Name of the rule that spreads the copies.
    type: str
  application:
    description: Application of the pool, such as V(cephfs). CephFS sets it itself.
    type: str
  autoscale:
    description: Whether Ceph chooses the number of placement groups.
    type: str
    choices: ["on", "off", warn]
  pg_num:
    description: Number of placement groups. Only with O(autoscale=off), since the autoscaler would change it back.
    type: int
  bulk:
    description: Whether the pool will hold most of the data and so begins with many placement groups.
    type: bool
  target_size_ratio:
    description: Expected share of the pool in the cluster, relative to other pools.
    type: float
  quota_bytes:
    description: >-
      Bytes that the pool may hold, such as V(10T). V(0) removes the quota. It takes effect some seconds late.
    type: str
  quota_objects:
    description: Objects that the pool may hold. V(0) removes the quota.
    type: int
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
seealso:
  - module: baremetal.gpu.ceph_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Make the pool for the homes' data
  baremetal.gpu.ceph_pool:
    name: cephfs_data
    size: 3
    min_size: 2
    bulk: true
    autoscale: "on"

- name: Remove a pool
  baremetal.gpu.ceph_pool:
    name: scratch
    state: absent
    confirm: scratch
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [make the pool cephfs_data, set size of pool cephfs_data to 3]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import config as ceph_config
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import pool as ceph_pool
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import size_in_bytes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

WANTED = ("size", "min_size", "crush_rule", "application", "autoscale", "pg_num", "bulk", "target_size_ratio")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "name": {"type": "str", "required": True},
            "state": ceph_module.STATES,
            "confirm": {"type": "str", "default": ""},
            "size": {"type": "int"},
            "min_size": {"type": "int"},
            "crush_rule": {"type": "str"},
            "application": {"type": "str"},
            "autoscale": {"type": "str", "choices": ["on", "off", "warn"]},
            "pg_num": {"type": "int"},
            "bulk": {"type": "bool"},
            "target_size_ratio": {"type": "float"},
            "quota_bytes": {"type": "str"},
            "quota_objects": {"type": "int"},
        },
        supports_check_mode=True,
    )
    given = module.params
    name = given["name"]

    def work(ceph: Ceph) -> dict[str, Any]:
        wanted = {key: given[key] for key in (*WANTED, "quota_objects") if given[key] is not None}
        if given["quota_bytes"] is not None:
            wanted["quota_bytes"] = size_in_bytes(given["quota_bytes"])
        if given["pg_num"] and given["autoscale"] != "off":
            raise Refused("pg_num would be changed back by the autoscaler", "leave it out, or set autoscale: off")
        if given["state"] == "absent":
            may = ceph_config.read(ceph).get(("mon", "mon_allow_pool_delete")) == "true"
            return ceph_module.settle(
                module,
                ceph,
                read=lambda: ceph_pool.read(ceph).get(name),
                plan=lambda found: ceph_pool.plan_removal(found, name, given["confirm"], may),
                show=lambda found: found,
                wanted=None,
            )
        shown = {**wanted, **({"application": [wanted["application"]]} if "application" in wanted else {})}
        return ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph_pool.read(ceph).get(name),
            plan=lambda found: ceph_pool.plan(found, name, wanted),
            show=lambda found: found and {key: found[key] for key in shown},
            wanted=shown,
        )

    ceph_module.guarded(module, f"the pool {name}", work)


if __name__ == "__main__":
    main()
