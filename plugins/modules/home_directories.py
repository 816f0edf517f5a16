#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: home_directories
short_description: Keep the homes of users as directories with quotas
version_added: 0.1.0
description:
  - Keeps a directory for each user below one root, owned by the user, and the quota of the user on its file system.
  - Refuses everything that it would refuse before it changes anything, in check mode too.
  - A home that is archived becomes root's with the mode 0700, and its content stays. One that is absent is moved to
    C(.removed) below the root, only if C(confirm) repeats its name.
options:
  root:
    description: Directory of the homes. A home is made only where it exists.
    type: path
    required: true
  homes:
    description: The homes. Those that are not listed stay as they are.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the user.
        type: str
        required: true
      state:
        description: Whether the home exists, is kept without access, or is moved aside.
        type: str
        choices: [present, archived, absent]
        default: present
      size:
        description: Its quota, such as V(50G). V(0) is none.
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
  quota:
    description: Whether the homes have quotas. The file system must enforce them.
    type: bool
    default: true
  quota_variable:
    description: Variable that turns quotas off, for the remedy of a refusal.
    type: str
    default: quota
  overcommit:
    description: Largest sum of all quotas, as a multiple of the size of the file system.
    type: float
    default: 1
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Two homes, and one that is kept
  baremetal.gpu.home_directories:
    root: /srv/homes
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
  sample: [make the home of alice, give alice a quota of 50 GiB]
homes:
  description: The listed homes that are there, by user.
  returned: success
  type: dict
  sample: {alice: {uid: 2001, gid: 2001, mode: "0700", size: 53687091200, used: 4096}}
mount:
  description: Where the file system of the root is mounted.
  returned: success
  type: str
  sample: /srv
"""

import json

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.homes import STATES, wanted_homes
from ansible_collections.baremetal.gpu.plugins.module_utils.homes import directories
from ansible_collections.baremetal.gpu.plugins.module_utils.homes import quota as home_quota
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure

HOME = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": list(STATES), "default": "present"},
    "size": {"type": "str", "default": "0"},
    "uid": {"type": "int"},
    "gid": {"type": "int"},
    "confirm": {"type": "str", "default": ""},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "homes": {"type": "list", "elements": "dict", "required": True, "options": HOME},
            "mode": {"type": "str", "default": "0700"},
            "quota": {"type": "bool", "default": True},
            "quota_variable": {"type": "str", "default": "quota"},
            "overcommit": {"type": "float", "default": 1.0},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = given["root"]
    problems: list[Problem] = []
    done: list[str] = []
    try:
        file_system = home_quota.of(root)
        homes = wanted_homes(given["homes"])
        quotas = home_quota.Quotas(file_system) if given["quota"] else None
        if quotas:
            quotas.check(given["quota_variable"])
        settings = directories.Settings(root, int(given["mode"], 8), given["overcommit"], quotas)
        problems = directories.problems(homes, settings)
        if problems:
            module.fail_json(**failure(f"the homes in {root}", problems, "Nothing was changed."))
        before = directories.describe(homes, settings)
        steps = directories.plan(homes, settings)
        for step in steps:
            done.append(step.does)
            if not module.check_mode:
                step.act()
    except Refused as why:
        module.fail_json(**failure(f"the homes in {root}", [why.problem], "Nothing was changed."))
    except (OSError, ValueError) as why:
        problem = Problem("homes_failed", root, f"{done[-1] if done else 'reading the homes'} ended with: {why}")
        module.fail_json(**failure(f"the homes in {root}", [problem]))
    after = directories.describe(homes, settings)
    module.exit_json(
        changed=bool(done),
        plan=done,
        homes=after,
        mount=file_system.path,
        diff={
            "before": json.dumps(before, indent=1, sort_keys=True) + "\n",
            "after": "".join(f"{line}\n" for line in done)
            if module.check_mode and done
            else json.dumps(after, indent=1, sort_keys=True) + "\n",
        },
    )


if __name__ == "__main__":
    main()
