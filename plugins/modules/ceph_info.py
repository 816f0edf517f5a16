#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_info
short_description: Read settings, keys, pools, file systems and subvolumes of Ceph
version_added: 0.1.0
description:
  - Returns what the modules M(baremetal.gpu.ceph_config), M(baremetal.gpu.ceph_fs) and their like manage. It has no
    secrets.
options:
  gather_subset:
    description: Which parts to read. RV(subvolumes) are read where O(filesystem) is given.
    type: list
    elements: str
    choices: [filesystems, keys, pools, settings]
    default: []
  filesystem:
    description: The file system whose subvolumes are read.
    type: str
  group:
    description: Group of the subvolumes. By default those without a group.
    type: str
    default: ""
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.attributes.looks
seealso:
  - module: baremetal.gpu.ceph_config
  - module: baremetal.gpu.ceph_fs
  - module: baremetal.gpu.ceph_key
  - module: baremetal.gpu.ceph_pool
  - module: baremetal.gpu.ceph_subvolume
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See the pools, and who may do what
  baremetal.gpu.ceph_info:
    gather_subset: [pools, keys]
  register: storage

- name: See how full the homes are
  baremetal.gpu.ceph_info:
    filesystem: cephfs
    group: homes
  register: homes
"""

RETURN = r"""
caps:
  description: What each key may do, by its name and the kind of daemon.
  returned: keys are read
  type: dict
  sample: {client.alice: {mon: allow r}}
filesystems:
  description: The file systems by name, with the options of M(baremetal.gpu.ceph_fs), and their C(daemons), each with
    C(name), C(rank) and C(state).
  returned: filesystems are read
  type: dict
standbys:
  description: MDS that stand by.
  returned: filesystems are read
  type: list
  elements: str
pools:
  description: The pools by name, with the options of M(baremetal.gpu.ceph_pool), and in bytes what they hold
    (C(stored)), take of the disks (C(used_raw)) and could still take in (C(available)).
  returned: pools are read
  type: dict
raw:
  description: Bytes of all disks, C(total) and C(used).
  returned: pools are read
  type: dict
  sample: {total: 12000000000000, used: 3000000000000}
settings:
  description: The settings of the configuration that the monitors keep, by section, with the mask if there is one.
    Values are text. Defaults are not among them.
  returned: settings are read
  type: dict
  sample: {osd/class:ssd: {osd_memory_target: "8589934592"}}
subvolumes:
  description: The subvolumes by name, as M(baremetal.gpu.ceph_subvolume) returns one, with C(snapshots).
  returned: O(filesystem) is given
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import config, fs, key, pool, subvolume
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def filesystems(ceph: Ceph) -> dict[str, Any]:
    found = fs.read(ceph)
    return {"filesystems": found["filesystems"], "standbys": found["standbys"]}


def keys(ceph: Ceph) -> dict[str, Any]:
    return {"caps": {name: row["caps"] for name, row in key.read_all(ceph).items()}}


def pools(ceph: Ceph) -> dict[str, Any]:
    found, df = pool.read(ceph), ceph.json("df", "detail")
    for entry in df["pools"]:
        if entry["name"] in found:
            stats = entry["stats"]
            found[entry["name"]].update(
                stored=stats["stored"], used_raw=stats["bytes_used"], available=stats["max_avail"]
            )
    raw = {"total": df["stats"]["total_bytes"], "used": df["stats"]["total_used_raw_bytes"]}
    return {"pools": found, "raw": raw}


def settings(ceph: Ceph) -> dict[str, Any]:
    found: dict[str, dict[str, str]] = {}
    for (who, name), value in config.read(ceph).items():
        found.setdefault(who, {})[name] = value
    return {"settings": found}


SUBSETS = {"filesystems": filesystems, "keys": keys, "pools": pools, "settings": settings}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "gather_subset": {"type": "list", "elements": "str", "choices": list(SUBSETS), "default": []},
            "filesystem": {"type": "str"},
            "group": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    filesystem, group = module.params["filesystem"], module.params["group"]

    def work(ceph: Ceph) -> dict[str, Any]:
        found: dict[str, Any] = {"changed": False}
        for name in module.params["gather_subset"]:
            found.update(SUBSETS[name](ceph))
        if filesystem:
            found["subvolumes"] = subvolume.read_all(ceph, filesystem, group)
        return found

    ceph_module.guarded(module, f"the subvolumes of {filesystem}" if filesystem else "Ceph", work)


if __name__ == "__main__":
    main()
