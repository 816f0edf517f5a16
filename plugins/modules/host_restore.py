#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_restore
short_description: Put an archive of a host back
version_added: 0.1.0
description:
  - Reads all of an archive of M(baremetal.gpu.host_backup) and compares it with its manifest. Then it looks for what
    stands against putting it back, and refuses before anything is changed.
  - It writes only what is a part of this host according to O(parts), stops the units of a part meanwhile, and starts
    those again that ran.
  - An archive is put back once. An interrupted run is finished by the next one, and after that nothing changes.
options:
  path:
    description: The archive.
    type: path
    required: true
  parts:
    description: What this host has, as the role P(baremetal.gpu.backup#role) has it.
    type: list
    elements: dict
    required: true
  replace:
    description: >-
      Whether what the host has of these parts may go. A copy of it is kept as an archive in
      C(/var/lib/baremetal-gpu/restore).
    type: bool
    default: false
  look:
    description: Only look for what stands against it, but not whether needed packages are missing.
    type: bool
    default: false
requirements:
  - On the host Python 3.9; C(mariadb) for databases of MariaDB.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows the names of the parts, and nothing of their content.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.host_backup
"""

EXAMPLES = r"""
- name: Put munge's key back
  baremetal.gpu.host_restore:
    path: /var/backups/munge.tar.gz
    parts:
      - name: munge
        paths: [/etc/munge/munge.key]
        account: munge
        units: [munge.service]
"""

RETURN = r"""
host:
  description: The name of the host that the archive is of.
  returned: success
  type: str
made:
  description: When it was made, in seconds since 1970.
  returned: success
  type: int
parts:
  description: The parts that were put back, or would be.
  returned: success
  type: list
  elements: str
left_out:
  description: The parts of the archive that this host does not have.
  returned: success
  type: list
  elements: str
packages:
  description: The packages without which a part cannot be put back.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import parts, restore
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "parts": {"type": "list", "elements": "dict", "required": True},
            "replace": {"type": "bool", "default": False},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = os.path.abspath(given["path"])
    is_look = given["look"] or module.check_mode
    note = "Nothing was changed."
    try:
        with restore.opened(path, parts.read(given["parts"]), given["replace"], run) as opened:
            wrong = opened.problems()
            if wrong:
                module.fail_json(**failure(opened.manifest.host, wrong, note))
            due = [part.name for part, _packed in opened.due()]
            result = {
                "host": opened.manifest.host,
                "made": opened.manifest.made,
                "parts": due,
                "left_out": opened.left_out,
                "packages": opened.packages(),
            }
            if due and not is_look:
                note = "Run it again: what is done is not done twice."
                opened.put_back()
    except Refused as why:
        module.fail_json(**failure(path, [why.problem], note))
    except (OSError, Malformed) as why:
        module.fail_json(**failure(path, [Problem("not_restored", path, str(why))], note))
    diff = {"before": "", "after": "".join(f"{name}\n" for name in due)}
    module.exit_json(changed=bool(due) and not given["look"], diff=diff, **result)


if __name__ == "__main__":
    main()
