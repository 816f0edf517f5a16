#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_osd_device_info
short_description: Return what devices hold and whether they may become OSDs
version_added: 0.1.0
description:
  - Looks for file systems, partitions, volume managers, RAID, mounts, swap, holders, and OSDs of this and of other
    clusters, without writing. Works without Ceph on the host.
extends_documentation_fragment:
  - baremetal.gpu.ceph_devices
  - baremetal.gpu.attributes.looks
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_osd_device
"""

EXAMPLES = r"""
- name: Look at the devices
  baremetal.gpu.ceph_osd_device_info:
    fsid: "{{ secrets.fsid }}"
    devices:
      - path: /dev/disk/by-id/wwn-0x5000c500a1b2c3d4
  register: looked

- name: Stop where a device holds something
  ansible.builtin.assert:
    that: looked.devices | selectattr('action', 'equalto', 'refuse') | length == 0
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
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import activate as ceph_osd
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run


def main() -> None:
    module = AnsibleModule(argument_spec=ceph_osd.ARGUMENTS, supports_check_mode=True)
    osds = ceph_osd.Osds(module.params["fsid"], module.params["cluster"], host_run.run)
    module.exit_json(changed=False, devices=osds.judge(module.params["devices"]))


if __name__ == "__main__":
    main()
