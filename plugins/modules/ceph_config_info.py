#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_config_info
short_description: Read settings of Ceph's central configuration
version_added: 0.1.0
description:
  - Returns the settings in the configuration that the monitors keep, without defaults.
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.attributes.looks
seealso:
  - module: baremetal.gpu.ceph_config
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See what is set
  baremetal.gpu.ceph_config_info:
  register: configuration
"""

RETURN = r"""
settings:
  description: The settings by section, with the mask if there is one. Values are text, as the monitors keep them.
  returned: success
  type: dict
  sample: {osd/class:ssd: {osd_memory_target: "8589934592"}}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import config as ceph_config
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(argument_spec={**ceph_module.CONNECTION}, supports_check_mode=True)

    def work(ceph: Ceph) -> dict[str, Any]:
        settings: dict[str, dict[str, str]] = {}
        for (who, name), value in ceph_config.read(ceph).items():
            settings.setdefault(who, {})[name] = value
        return {"changed": False, "settings": settings}

    ceph_module.guarded(module, "Ceph's configuration", work)


if __name__ == "__main__":
    main()
