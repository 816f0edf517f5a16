#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_config
short_description: Keep settings of Ceph's central configuration
version_added: 0.1.0
description:
  - Sets options in the configuration that the monitors keep for all daemons and clients, and removes options.
  - Values are compared by the option's type, so V(4G) and V(4294967296) are the same.
  - Do not use it for secrets, since values are on a command line.
options:
  settings:
    description:
      - The settings by section, such as C(osd), C(osd.3), C(mds) or, with a mask, C(osd/class:ssd).
      - Null removes the option from the section, so that its default applies again.
    type: dict
    required: true
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
seealso:
  - module: baremetal.gpu.ceph_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Give OSDs 6 GiB, and those on flash 8
  baremetal.gpu.ceph_config:
    settings:
      osd:
        osd_memory_target: 6G
      osd/class:ssd:
        osd_memory_target: 8G

- name: Take an option out
  baremetal.gpu.ceph_config:
    settings:
      mon:
        mon_allow_pool_delete: null
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [set osd_memory_target of osd to 6G]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import config as ceph_config
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def main() -> None:
    module = AnsibleModule(
        argument_spec={**ceph_module.CONNECTION, "settings": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    wanted = module.params["settings"]

    def work(ceph: Ceph) -> dict[str, Any]:
        for who, options in wanted.items():
            if not isinstance(options, dict):
                raise Refused(f"the settings of {who} are {options!r}", "write options with their values")
        places = [(who, name) for who, options in wanted.items() for name in options]
        kinds = ceph_config.kinds(ceph, {name for _who, name in places})
        return ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph_config.read(ceph),
            plan=lambda found: ceph_config.plan(found, wanted, kinds),
            show=lambda found: {f"{who} {name}": found.get((who, name)) for who, name in places},
            wanted={f"{who} {name}": wanted[who][name] for who, name in places},
        )

    ceph_module.guarded(module, "Ceph's configuration", work)


if __name__ == "__main__":
    main()
