#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_fs_info
short_description: Read the file systems of Ceph
version_added: 0.1.0
description:
  - Returns the file systems with their pools and the state of each MDS, and the standby MDSs.
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.attributes.looks
seealso:
  - module: baremetal.gpu.ceph_fs
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See the file systems
  baremetal.gpu.ceph_fs_info:
  register: files
"""

RETURN = r"""
filesystems:
  description: The file systems by name, with the options of M(baremetal.gpu.ceph_fs), and their C(daemons), each with
    C(name), C(rank) and C(state).
  returned: success
  type: dict
standbys:
  description: MDS that stand by.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import fs as ceph_fs
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(argument_spec={**ceph_module.CONNECTION}, supports_check_mode=True)

    def work(ceph: Ceph) -> dict[str, Any]:
        found = ceph_fs.read(ceph)
        return {"changed": False, "filesystems": found["filesystems"], "standbys": found["standbys"]}

    ceph_module.guarded(module, "the file systems", work)


if __name__ == "__main__":
    main()
