#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_mgr_module
short_description: Switch modules of Ceph's mgr on and off
version_added: 0.1.0
description:
  - Switches what is not as wanted. Modules that are always on cannot be switched.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  modules:
    description: Names of modules, and whether each should be on.
    type: dict
    required: true
requirements:
  - The key of client.admin on the host.
attributes:
  check_mode:
    description: Can run in check mode and tells what would be done.
    support: full
  diff_mode:
    description: Shows what was before and is after.
    support: full
  platform:
    description: Where the module runs.
    support: full
    platforms: linux
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Publish metrics, and do without the REST interface
  baremetal.gpu.ceph_mgr_module:
    modules:
      prometheus: true
      restful: false
"""

RETURN = r"""
enabled:
  description: Modules that are on, besides those that always are.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils import ceph_run
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import Ceph, CephError


def main() -> None:
    module = AnsibleModule(
        argument_spec={"cluster": {"type": "str", "default": "ceph"}, "modules": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    ceph = Ceph(ceph_run.run, cluster=module.params["cluster"])
    wanted = {name: module.boolean(value) for name, value in module.params["modules"].items()}
    try:
        listed = ceph.json("mgr", "module", "ls")
        before = set(listed["enabled_modules"])
        fixed = set(listed["always_on_modules"])
        refused = sorted(name for name, on in wanted.items() if not on and name in fixed)
        if refused:
            module.fail_json(msg=f"mgr modules that are always on cannot be switched off: {', '.join(refused)}")
        after = {name for name in before if wanted.get(name, True)}
        after |= {name for name, on in wanted.items() if on and name not in fixed}
        if not module.check_mode:
            for name in sorted(before - after):
                ceph.json("mgr", "module", "disable", name)
            for name in sorted(after - before):
                ceph.json("mgr", "module", "enable", name)
    except CephError as wrong:
        module.fail_json(msg=f"the modules of the mgr cannot be switched: {wrong}")
    diff = {
        "before_header": "modules of the mgr",
        "after_header": "modules of the mgr",
        "before": "".join(f"{name}\n" for name in sorted(before)),
        "after": "".join(f"{name}\n" for name in sorted(after)),
    }
    module.exit_json(changed=before != after, enabled=sorted(after), diff=diff)


if __name__ == "__main__":
    main()
