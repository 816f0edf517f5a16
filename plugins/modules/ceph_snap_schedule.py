#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_snap_schedule
short_description: Schedule snapshots of a CephFS directory
version_added: 0.1.0
description:
  - Keeps the schedules of one directory and the number of snapshots to retain.
  - Existing snapshots stay when a schedule is removed.
options:
  filesystem:
    description: Name of the file system.
    type: str
    required: true
  path:
    description: The directory, from the root of the file system. Snapshots include everything below it.
    type: str
    required: true
  schedules:
    description: Periods, such as V(1h) or V(1d). With none, no snapshots are taken.
    type: list
    elements: str
    default: []
  retention:
    description: How many snapshots are kept of each period, by its letter. Required with O(schedules).
    type: dict
    default: {}
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
requirements:
  - The manager's module snap_schedule, which M(baremetal.gpu.ceph_mgr_module) switches on.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Keep a snapshot of the homes for each of the last 24 hours and 14 days
  baremetal.gpu.ceph_snap_schedule:
    filesystem: cephfs
    path: /volumes/homes
    schedules: [1h]
    retention: {h: 24, d: 14}
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [take a snapshot of /volumes/homes every 1h]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import snapshots as ceph_snapshots
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "filesystem": {"type": "str", "required": True},
            "path": {"type": "str", "required": True},
            "schedules": {"type": "list", "elements": "str", "default": []},
            "retention": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    filesystem, path, schedules = given["filesystem"], given["path"], given["schedules"]

    retention = {unit: int(count) for unit, count in given["retention"].items()}

    def announced() -> dict[str, Any]:
        ceph_snapshots.check(schedules, retention)
        steps = ceph_snapshots.plan({"schedules": [], "retention": {}}, filesystem, path, schedules, retention)
        after = {"schedules": sorted(schedules), "retention": retention}
        return {
            "changed": bool(steps),
            "plan": [step.does for step in steps],
            "diff": {"before": "", "after": ceph_module.text(after)},
        }

    def work(ceph: Ceph) -> dict[str, Any]:
        ceph_snapshots.check(schedules, retention)
        return ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph_snapshots.read(ceph, filesystem, path),
            plan=lambda found: ceph_snapshots.plan(found, filesystem, path, schedules, retention),
            show=lambda found: found,
            wanted={"schedules": sorted(schedules), "retention": retention},
        )

    ceph_module.guarded(module, f"the snapshots of {path}", work, announced)


if __name__ == "__main__":
    main()
