#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_osd_device
short_description: Create OSDs on devices, and activate existing ones
version_added: 0.1.0
description:
  - Checks all devices first, as M(baremetal.gpu.ceph_osd_device_info) does. If one of them is refused, none is touched
    and the module fails with the reason for each.
  - Creates an OSD on a free device. After an interruption the next run continues with the same number and key.
  - Prepares an OSD of this cluster so that its unit can start, and records it in C(/var/lib/baremetal-gpu/ceph-osd),
    from where it is activated at every boot.
extends_documentation_fragment:
  - baremetal.gpu.ceph_devices
  - baremetal.gpu.attributes.changes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_osd_device_info
"""

EXAMPLES = r"""
- name: Create or activate the OSDs
  baremetal.gpu.ceph_osd_device:
    fsid: "{{ secrets.fsid }}"
    devices:
      - path: /dev/disk/by-id/wwn-0x5000c500a1b2c3d4
        device_class: hdd
"""

RETURN = r"""
devices:
  description: What is on every device and what may be done with it.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The device, as it was named.
      type: str
    action:
      description: V(activate) for an OSD of this cluster, V(prepare) for a device that is free, V(refuse) otherwise.
      type: str
      sample: refuse
    why:
      description: What the action follows from.
      type: str
      sample: it holds ext4 at 0x438
    remedy:
      description: What to do about a device that is refused.
      type: str
    wipe:
      description: Whether it is wiped before an OSD is made on it.
      type: bool
    undo:
      description: Whether the remains of an interrupted run that made an OSD there are removed before.
      type: bool
    also_wipe:
      description: What of its db and wal is wiped before, for V(prepare).
      type: list
      elements: str
    osd_id:
      description: Number of the OSD that is on it.
      type: int
    osd_uuid:
      description: UUID of the OSD that is on it.
      type: str
osds:
  description: Numbers of the OSDs that are on the devices. In check mode those that are not made yet are missing.
  returned: success
  type: list
  elements: int
units:
  description: The units of these OSDs, as in the section C(units) of M(baremetal.gpu.host_drift_info).
  returned: success
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import activate as ceph_osd
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure


def main() -> None:
    module = AnsibleModule(argument_spec=ceph_osd.ARGUMENTS, supports_check_mode=True)
    osds = ceph_osd.Osds(module.params["fsid"], module.params["cluster"], host_run.run)
    try:
        with ceph_osd.alone_unless(module.check_mode):
            bring_up(module, osds, module.params["devices"])
    except Refused as error:
        module.fail_json(**failure("OSDs", [error.problem]))


def bring_up(module: AnsibleModule, osds: ceph_osd.Osds, devices: list[dict[str, Any]]) -> None:
    """Judge all devices, and unless one is refused make or activate the OSD of each."""
    verdicts = osds.judge(devices)
    refused = [row for row in verdicts if row["action"] == "refuse"]
    if refused:
        problems = [
            Problem("device_in_use", row["path"], f"{row['path']}: {row['why']}", row["why"], row["remedy"])
            for row in refused
        ]
        subject = f"No device was touched, because of {len(refused)} of them"
        module.fail_json(**failure(subject, problems), devices=verdicts)
    before, after, numbers = [], [], []
    try:
        for device, verdict in zip(devices, verdicts):
            steps, number = osds.bring_up(device, verdict, dry=module.check_mode)
            if steps:
                before.append(f"{device['path']}: {verdict['why']}")
                after.append(f"{device['path']}: {', '.join(steps)}")
            if number is not None:
                numbers.append(number)
    except (Refused, CephError, OSError, KeyError) as error:
        result = failure(device["path"], [ceph_module.problem_of(error, device["path"])])
        module.fail_json(**result, changed=bool(before) or bool(after), devices=verdicts)
    diff = {
        "before_header": "OSDs",
        "after_header": "OSDs",
        "before": "".join(f"{line}\n" for line in before),
        "after": "".join(f"{line}\n" for line in after),
    }
    units = [{"name": f"ceph-osd@{number}", "enabled": True, "state": "started"} for number in numbers]
    module.exit_json(changed=bool(after), devices=verdicts, osds=numbers, units=units, diff=diff)


if __name__ == "__main__":
    main()
