#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_mgr_module
short_description: Enable or disable modules of Ceph's manager
version_added: 0.1.0
description:
  - Enables or disables modules, and refuses one that the manager cannot load, with the manager's reason.
options:
  names:
    description: The modules.
    type: list
    elements: str
    required: true
  state:
    description: Whether they are enabled.
    type: str
    choices: [enabled, disabled]
    default: enabled
  wait:
    description: Seconds to wait for a manager that has just started and has not reported its modules yet.
    type: int
    default: 60
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Publish the cluster's figures for Prometheus
  baremetal.gpu.ceph_mgr_module:
    names: [prometheus]
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [switch the module prometheus on]
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mgr as ceph_mgr
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "names": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["enabled", "disabled"], "default": "enabled"},
            "wait": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    names, enabled = module.params["names"], module.params["state"] == "enabled"

    deadline = time.monotonic() + module.params["wait"]

    def read(ceph: Ceph) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = ceph.json("mgr", "module", "ls")
            if not enabled or not ceph_mgr.is_unknown(found, names) or time.monotonic() > deadline:
                return found
            time.sleep(1)

    def work(ceph: Ceph) -> dict[str, Any]:
        return ceph_module.settle(
            module,
            ceph,
            read=lambda: read(ceph),
            plan=lambda found: ceph_mgr.plan(found, names, enabled),
            show=lambda found: {name: ceph_mgr.is_on(found, name) for name in names},
            wanted=dict.fromkeys(names, enabled),
        )

    ceph_module.guarded(module, "the manager's modules", work)


if __name__ == "__main__":
    main()
