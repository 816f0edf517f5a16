#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_pool_info
short_description: Read the pools of Ceph and how full they are
version_added: 0.1.0
description:
  - Returns the pools with their settings and usage, and the usage of the cluster's disks.
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.attributes.looks
seealso:
  - module: baremetal.gpu.ceph_pool
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See the pools
  baremetal.gpu.ceph_pool_info:
  register: pools
"""

RETURN = r"""
pools:
  description: The pools by name, with the options of M(baremetal.gpu.ceph_pool), and in bytes what they hold
    (C(stored)), take of the disks (C(used_raw)) and could still take in (C(available)).
  returned: success
  type: dict
raw:
  description: Bytes of all disks, C(total) and C(used).
  returned: success
  type: dict
  sample: {total: 12000000000000, used: 3000000000000}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import pool as ceph_pool
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(argument_spec={**ceph_module.CONNECTION}, supports_check_mode=True)

    def work(ceph: Ceph) -> dict[str, Any]:
        pools, df = ceph_pool.read(ceph), ceph.json("df", "detail")
        for entry in df["pools"]:
            if entry["name"] in pools:
                stats = entry["stats"]
                pools[entry["name"]].update(
                    stored=stats["stored"], used_raw=stats["bytes_used"], available=stats["max_avail"]
                )
        raw = {"total": df["stats"]["total_bytes"], "used": df["stats"]["total_used_raw_bytes"]}
        return {"changed": False, "pools": pools, "raw": raw}

    ceph_module.guarded(module, "the pools", work)


if __name__ == "__main__":
    main()
