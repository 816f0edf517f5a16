#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_osd_local
short_description: Stop OSDs that leave a cluster, and remove what remains of them on their host
version_added: 0.1.0
description:
  - Finds the OSDs of this host by their records. It ignores those of other hosts, so give the same numbers to all
    hosts.
  - Devices stay as they are unless they are named in O(wipe).
  - All checks come before any change; check mode does only these.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  fsid:
    description: UUID of the cluster. OSDs of another cluster are left alone.
    type: str
    required: true
  osds:
    description: Numbers of the OSDs.
    type: list
    elements: int
    required: true
  state:
    description:
      - V(stopped) stops and disables the units.
      - V(absent) also removes directories and records, and wipes the devices in O(wipe).
    type: str
    choices: [stopped, absent]
    required: true
  known:
    description: The OSDs that the cluster has, as RV(baremetal.gpu.ceph_osd_state#module:osds). They stay.
    type: dict
    default: {}
  devices:
    description: Devices on which the inventory has OSDs. An OSD on one of them is refused.
    type: list
    elements: str
    default: []
  wipe:
    description:
      - Devices to be wiped with O(state=absent). Refused unless they hold one of the OSDs, or nothing.
      - A name that this host does not have is ignored, so that all hosts can get the same names.
    type: list
    elements: str
    default: []
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows what would be removed.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_osd_state
"""

EXAMPLES = r"""
- name: Stop an OSD that was drained
  baremetal.gpu.ceph_osd_local:
    fsid: 2f7c1d3e-2a64-4b6f-9d53-6f1f9f0c1a11
    osds: [7]
    state: stopped
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [stop osd.7]
devices:
  description: Those of O(wipe) that this host has.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import leaving as ceph_osd_leaving
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.activate import alone_unless
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "fsid": {"type": "str", "required": True},
            "osds": {"type": "list", "elements": "int", "required": True},
            "state": {"type": "str", "choices": ["stopped", "absent"], "required": True},
            "known": {"type": "dict", "default": {}},
            "devices": {"type": "list", "elements": "str", "default": []},
            "wipe": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    known = {int(number): osd["uuid"] for number, osd in given["known"].items()}
    leaving = ceph_osd_leaving.Leaving(given["fsid"], given["osds"], known, given["cluster"])
    try:
        with alone_unless(module.check_mode):
            steps = ceph_osd_leaving.work(leaving, given["state"], given["devices"], given["wipe"], module.check_mode)
    except (Refused, OSError) as error:
        module.fail_json(**failure("OSDs", [ceph_module.problem_of(error, "ceph")]))
    listed = "".join(f"{step}\n" for step in steps)
    there = [path for path in given["wipe"] if os.path.lexists(path)]
    module.exit_json(changed=bool(steps), plan=steps, devices=there, diff={"before": listed, "after": ""})


if __name__ == "__main__":
    main()
