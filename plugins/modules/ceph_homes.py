#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_homes
short_description: Keep the homes of users on CephFS
version_added: 0.1.0
description:
  - Keeps a home for each user, which is a subvolume with a quota, owned by the user, with its own namespace of objects
    and a key for it alone. One execution keeps all homes.
  - Refuses, before any change, if the sum of the quotas exceeds the cluster's capacity. Existing homes that are not
    listed count too, and stay as they are.
  - To archive a home, it takes a snapshot, removes the key and evicts mounted clients; the data stay.
  - It removes a home only if C(confirm) repeats its name. The same happens then, and a run after O(removed_days)
    deletes it with its snapshots. Until then C(state=present) brings it back, and its quota counts.
  - The secrets go to the file O(keys) on the host and are not returned.
options:
  filesystem:
    description: Name of the file system.
    type: str
    required: true
  group:
    description: Group of the subvolumes.
    type: str
    default: homes
  homes:
    description: The homes.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the user.
        type: str
        required: true
      state:
        description: Whether the home exists, is kept without access, or is kept aside and then deleted.
        type: str
        choices: [present, archived, absent]
        default: present
      size:
        description: Its quota, such as V(50G). V(0) is none, which needs O(overcommit) above 1.
        type: str
        default: "0"
      uid:
        description: UID of the user. Needed for C(state=present).
        type: int
      gid:
        description: GID of the user's group. Needed for C(state=present).
        type: int
      confirm:
        description: The name again, for C(state=absent).
        type: str
        default: ""
  mode:
    description: Mode of the homes.
    type: str
    default: "0700"
  key_prefix:
    description: Prefix of the keys' names, after C(client.).
    type: str
    default: home.
  overcommit:
    description: Largest sum of all quotas, as a multiple of the cluster's capacity.
    type: float
    default: 1
  removed_days:
    description: Days for which a removed home is kept aside.
    type: int
    default: 30
  keys:
    description: File that the module keeps up to date with the secrets by user. Only root can read it.
    type: path
    default: /var/lib/baremetal-gpu/ceph/homes.json
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
seealso:
  - module: baremetal.gpu.ceph_subvolume
  - module: baremetal.gpu.ceph_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Two homes, and one that is archived
  baremetal.gpu.ceph_homes:
    filesystem: cephfs
    homes:
      - {name: alice, uid: 2001, gid: 2001, size: 50G}
      - {name: bob, uid: 2002, gid: 2002, size: 50G}
      - {name: carol, state: archived}
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [make the subvolume homes/alice, make the key client.home.alice]
homes:
  description: The homes by user, those that are not listed included.
  returned: success
  type: dict
  contains:
    path:
      description: Its path in the file system.
      type: str
    size:
      description: Its quota in bytes, 0 without.
      type: int
    used:
      description: What it holds, in bytes.
      type: int
    uid:
      description: Number of the user.
      type: int
    gid:
      description: Number of the group.
      type: int
    client:
      description: Name of its key without C(client.).
      type: str
    listed:
      description: Whether it is in O(homes).
      type: bool
promised:
  description: All quotas together, in bytes.
  returned: success
  type: int
usable:
  description: What the homes can hold before Ceph warns of full disks, in bytes; null while there is no file system.
  returned: success
  type: int
"""

import json
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import homes as ceph_homes
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file

MODE = 0o600
HOME = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": list(ceph_homes.STATES), "default": "present"},
    "size": {"type": "str", "default": "0"},
    "uid": {"type": "int"},
    "gid": {"type": "int"},
    "confirm": {"type": "str", "default": ""},
}


def keep_secrets(
    path: str, there: ceph_homes.There, homes: list[ceph_homes.Home], settings: ceph_homes.Settings, pretend: bool
) -> list[str]:
    """Bring the file with the secrets up to date: those of listed homes change, others stay."""
    try:
        with open(path, encoding="utf-8") as file:
            secrets = json.load(file)
    except (FileNotFoundError, ValueError, RecursionError):
        secrets = {}
    for home in homes:
        key = there.keys[home.name]
        if home.state == ceph_homes.PRESENT:
            # Without a key it is only announced so far.
            secret = key["key"] if key else ""
            secrets[home.name] = {"client": settings.entity(home.name).partition(".")[2], "key": secret}
        else:
            secrets.pop(home.name, None)
    text = json.dumps(secrets, indent=2, sort_keys=True) + "\n"
    wrong = secret_file.differences(path, text, os.geteuid(), os.getegid(), MODE)
    if wrong and not pretend:
        secret_file.write(path, text, os.geteuid(), os.getegid(), MODE)
    return wrong


def shown(there: ceph_homes.There) -> dict[str, Any]:
    """What a diff shows of each home."""
    found = {}
    for name, info in there.homes.items():
        found[name] = {key: info[key] for key in ("size", "uid", "gid", "mode")}
        if name in there.keys:
            found[name]["key"] = bool(there.keys[name])
    return found


def expected(before: dict[str, Any], homes: list[ceph_homes.Home], mode: str, gone: set[str]) -> dict[str, Any]:
    """The same for what is wanted; `gone` are removed homes that were kept aside for long enough."""
    after = {name: row for name, row in before.items() if name not in gone}
    for home in homes:
        if home.name in gone:
            continue
        if home.state == ceph_homes.PRESENT:
            after[home.name] = {"size": home.size, "uid": home.uid, "gid": home.gid, "mode": mode, "key": True}
        elif home.name in after:
            after[home.name] = {**after[home.name], "key": False}
    return after


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "filesystem": {"type": "str", "required": True},
            "group": {"type": "str", "default": "homes"},
            "homes": {"type": "list", "elements": "dict", "required": True, "options": HOME},
            "mode": {"type": "str", "default": "0700"},
            "key_prefix": {"type": "str", "default": "home.", "no_log": False},
            "overcommit": {"type": "float", "default": 1.0},
            "removed_days": {"type": "int", "default": 30},
            "keys": {"type": "path", "default": "/var/lib/baremetal-gpu/ceph/homes.json", "no_log": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    mode = given["mode"].zfill(4)
    settings = ceph_homes.Settings(
        given["filesystem"], given["group"], mode, given["key_prefix"], given["overcommit"], given["removed_days"]
    )

    def work(ceph: Ceph) -> dict[str, Any]:
        homes = ceph_homes.wanted_homes(given["homes"])
        done, before, capacity = ceph_homes.settle(ceph, settings, homes, module.check_mode)
        after = ceph_homes.read(ceph, settings, homes) if done and not module.check_mode else before
        done += keep_secrets(given["keys"], after, homes, settings, module.check_mode)
        first = shown(before)
        removed = [home.name for home in homes if home.state == ceph_homes.ABSENT]
        gone = {name for name in removed if before.goes(name, settings.removed_days)}
        return {
            "changed": bool(done),
            "plan": done,
            "homes": ceph_homes.describe(after, settings, homes),
            "promised": sum(ceph_homes.promised(after, homes).values()),
            "usable": capacity.usable if capacity else None,
            "diff": {
                "before": ceph_module.text(first),
                "after": ceph_module.text(expected(first, homes, mode, gone) if done else first),
            },
        }

    def announced() -> dict[str, Any]:
        homes = [home for home in ceph_homes.wanted_homes(given["homes"]) if home.state == ceph_homes.PRESENT]
        return {
            "changed": bool(homes),
            "plan": [f"make the home of {home.name}" for home in homes],
            "homes": {},
            "promised": sum(home.size for home in homes),
            "usable": None,
            "diff": {"before": ceph_module.text({}), "after": ceph_module.text(expected({}, homes, mode, set()))},
        }

    ceph_module.guarded(module, "the homes", work, announced)


if __name__ == "__main__":
    main()
