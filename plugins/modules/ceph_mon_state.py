#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_mon_state
short_description: Remove monitors from the map of a Ceph cluster
version_added: 0.1.0
description:
  - Removes monitors from the map, and refuses if the others would have no quorum or be fewer than three.
  - A monitor joins by itself when it starts from a store of M(baremetal.gpu.ceph_mon_store), so there is no other
    state.
options:
  names:
    description: Names of the monitors. A name that is not in the map is ignored.
    type: list
    elements: str
    required: true
  state:
    description: They are not in the map.
    type: str
    choices: [absent]
    required: true
  fewer:
    description: Whether fewer than three monitors may remain.
    type: bool
    default: false
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_mon_store
  - module: baremetal.gpu.ceph_quorum_info
"""

EXAMPLES = r"""
- name: Take a monitor out of the map
  baremetal.gpu.ceph_mon_state:
    names: [stor4]
    state: absent
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [take the monitor stor4 out of the map]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mon import removal as ceph_mon_removal


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "names": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["absent"], "required": True},
            "fewer": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    names, fewer = module.params["names"], module.params["fewer"]

    def work(ceph: Ceph) -> dict[str, Any]:
        return ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph.json("quorum_status"),
            plan=lambda found: ceph_mon_removal.plan(found, names, fewer),
            show=lambda found: {name: name in ceph_mon_removal.known(found) for name in names},
            wanted=dict.fromkeys(names, False),
        )

    ceph_module.guarded(module, "the monitors", work)


if __name__ == "__main__":
    main()
