#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_backup
short_description: Make an archive of what a host alone knows
version_added: 0.1.0
description:
  - Writes files, databases of SQLite and databases of MariaDB of this host into an archive, while its programs run.
    Then it reads the archive again and compares it.
  - An archive has a manifest with path, owner, mode and SHA-256 of each file, and versions of packages.
  - In check mode nothing is written. The names of the parts are still returned.
options:
  path:
    description: The file to write, mode 0600. What is there is replaced when the new archive is whole.
    type: path
    required: true
  host:
    description: The name of the host in the inventory.
    type: str
    required: true
  owner:
    description: The account that the archive is given to, so that it can be fetched without root. Root, if empty.
    type: str
    default: ''
  parts:
    description: What belongs into it, as the role P(baremetal.gpu.backup#role) has it.
    type: list
    elements: dict
    required: true
requirements:
  - On the host Python 3.9; C(mariadb-dump) for databases of MariaDB.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: An archive shows nothing of its content.
    support: none
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.host_restore
"""

EXAMPLES = r"""
- name: Keep munge's key
  baremetal.gpu.host_backup:
    path: /var/backups/munge.tar.gz
    host: "{{ inventory_hostname }}"
    parts:
      - name: munge
        paths: [/etc/munge/munge.key]
"""

RETURN = r"""
parts:
  description: >-
    For each part its C(name), how many C(files) it has, their C(bytes), paths that were C(passed_over), and why it is
    C(not_needed).
  returned: success
  type: list
  elements: dict
"""

import os
import pwd
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import make, parts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run

SHOWN = 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "host": {"type": "str", "required": True},
            "owner": {"type": "str", "default": ""},
            "parts": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    path, host = os.path.abspath(given["path"]), given["host"]
    try:
        wanted = parts.read(given["parts"])
        if module.check_mode:
            rows = [
                {"name": part.name, "files": 0, "bytes": 0, "passed_over": [], "not_needed": part.not_needed}
                for part in wanted
            ]
            module.exit_json(changed=True, parts=rows)
        manifest = make.make(path, host, wanted, run, time.time())
        if given["owner"]:
            account = pwd.getpwnam(given["owner"])
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    except Refused as wrong:
        module.fail_json(**failure(host, [wrong.problem], "No archive was made."))
    except (OSError, KeyError, Malformed) as wrong:
        module.fail_json(**failure(host, [Problem("no_archive", path, str(wrong))], "No archive was made."))
    rows = [
        {
            "name": part.name,
            "files": sum(row.member >= 0 for row in part.rows),
            "bytes": sum(row.size for row in part.rows),
            "passed_over": part.passed_over[:SHOWN],
            "not_needed": part.not_needed,
        }
        for part in manifest.parts
    ]
    module.exit_json(changed=True, parts=rows)


if __name__ == "__main__":
    main()
