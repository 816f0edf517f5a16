#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_noout
short_description: Set the flag noout on OSDs for a limited time
version_added: 0.1.0
description:
  - Sets the flag noout on single OSDs, so that a short stop moves no data, while Ceph still recovers other OSDs that
    fail.
  - The flag does not remain for ever. Before the module sets it, it creates a timer on this host that removes the flag
    when the lease ends, also after a boot.
  - A flag that was set by others stays, without a lease.
options:
  osds:
    description: Numbers of the OSDs. O(state=absent) removes the flag from all OSDs with a lease of this host.
    type: list
    elements: int
    default: []
  state:
    description: Whether they have the flag.
    type: str
    choices: [present, absent]
    default: present
  lease:
    description: Seconds after which the flag is removed. They begin anew with every call.
    type: int
    default: 900
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Have the data of two OSDs stay where they are for a quarter of an hour
  baremetal.gpu.ceph_noout:
    osds: [3, 4]

- name: Take it off again
  baremetal.gpu.ceph_noout:
    state: absent
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: ["set noout on osd.3, osd.4"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import noout as ceph_noout
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import act
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "osds": {"type": "list", "elements": "int", "default": []},
            "state": ceph_module.STATES,
            "lease": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    given = module.params

    def work(ceph: Ceph) -> dict[str, Any]:
        lease = ceph_noout.Lease(host_run.run)
        found, held = ceph_noout.read(ceph), lease.held()
        if given["state"] == "present":
            # What another has set is neither ours to prolong nor to take off.
            ours = [number for number in given["osds"] if number not in found or number in held]
            steps = ceph_noout.setting(found, given["osds"])
        else:
            ours = []
            steps = ceph_noout.taking_off(found, held)
        after = sorted({*found, *given["osds"]} if given["state"] == "present" else {*found} - {*held})
        if not module.check_mode:
            try:
                if ours:
                    lease.begin(sorted({*ours, *held}), given["lease"])
                for step in steps:
                    act(ceph, step)
                if given["state"] == "absent" and held:
                    lease.end()
            except OSError as wrong:
                raise Refused(str(wrong)) from wrong
        does = [step.does for step in steps]
        if given["state"] == "absent" and held:
            does.append("end the lease")
        return {
            "changed": bool(does),
            "plan": does,
            "diff": {"before": ceph_module.text(sorted(found)), "after": ceph_module.text(after)},
        }

    ceph_module.guarded(module, "noout", work)


if __name__ == "__main__":
    main()
