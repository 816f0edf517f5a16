#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Bring files, directories and links of a host into their state
version_added: 0.1.0
description:
  - Writes, makes and removes all of them in one execution, in the order in which they are listed. The role
    P(baremetal.gpu.common#role) mends with it what M(baremetal.gpu.host_drift_info) found.
  - A file is replaced in one step and is never open to others before it has its mode. Where its path is a link, the
    file behind the link is replaced.
  - It stops at the first that cannot be brought into its state, and names it. What comes before it stays done.
  - Set C(no_log) on a task that writes secrets.
options:
  entries:
    description: The files, directories and links.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      state:
        description: What should be at the path. With V(absent) a directory goes with all that is in it.
        type: str
        choices: [file, directory, link, absent]
        default: file
      content:
        description: Content of the file. Without it a file that is there keeps its own, and there must be one.
        type: str
      src:
        description: Where a link points to. A file in the link's place is replaced, a directory is not.
        type: str
      mode:
        description: Mode in octal digits, for a file or directory. Directories above that are missing get it too.
        type: str
      owner:
        description: Owner, by default who owns it, and root for what is new.
        type: str
      group:
        description: Group, by default the one that it has.
        type: str
      force:
        description: Whether a file with another content is replaced; otherwise it keeps it.
        type: bool
        default: true
      validate:
        description: Command that checks the content before it takes its place; C(%s) is the file.
        type: str
      backup:
        description: Whether to keep a copy of a file that is replaced beside it.
        type: bool
        default: false
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and says what it would do; the content is not validated.
  diff_mode:
    description: Shows every file before and after.
  safe_file_operations:
    description: A file is replaced in one step.
    support: full
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Write a setting, and the directory that it is in
  baremetal.gpu.host_files:
    entries:
      - path: /etc/example.d
        state: directory
        mode: "0755"
      - path: /etc/example.d/site.conf
        content: "threads = 8\n"
        mode: "0644"
"""

RETURN = r"""
changes:
  description: What was not as wanted, by path, and is now. In check mode, what would be.
  returned: always
  type: dict
  sample: {/etc/example.d/site.conf: is missing}
backup_files:
  description: The copies that were kept, by path.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils import drift_system as system
from ansible_collections.baremetal.gpu.plugins.module_utils import host_files


def main() -> None:
    entry = {
        "path": {"type": "path", "required": True},
        "state": {"type": "str", "choices": ["file", "directory", "link", "absent"], "default": "file"},
        "content": {"type": "str"},
        "src": {"type": "str"},
        "mode": {"type": "str"},
        "owner": {"type": "str"},
        "group": {"type": "str"},
        "force": {"type": "bool", "default": True},
        "validate": {"type": "str"},
        "backup": {"type": "bool", "default": False},
    }
    module = AnsibleModule(
        argument_spec={
            "entries": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": entry,
                "required_if": [("state", "link", ["src"])],
            }
        },
        supports_check_mode=True,
    )
    problems = host_files.problems(module.params["entries"])
    if problems:
        module.fail_json(msg="; ".join(problems))
    changes: dict[str, str] = {}
    diff, backups = [], {}
    for item in module.params["entries"]:
        path, why = item["path"], system.file_drift(item)
        if why is None:
            continue
        diff.append({"before_header": path, "after_header": path, **system.file_diff({**item, "why": why})})
        if not module.check_mode:
            try:
                backup = host_files.mend(module, item)
            except (OSError, host_files.Refused) as error:
                module.fail_json(msg=f"{path}: {error}", changed=bool(changes), changes=changes, backup_files=backups)
            if backup:
                backups[path] = backup
        changes[path] = why
    module.exit_json(changed=bool(changes), changes=changes, backup_files=backups, diff=diff)


if __name__ == "__main__":
    main()
