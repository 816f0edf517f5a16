#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_ssh
short_description: Let users log in by SSH only where they have a job
version_added: 0.1.0
description:
  - Puts pam_slurm_adopt into C(/etc/pam.d/sshd). A user without a job on the node is refused. Any other login becomes
    part of the user's newest job, and sees only the GPUs of that job.
  - Root, Ansible's account, the given users and groups, and users who may run everything with sudo log in as before,
    without Slurm. If sudo's rules name users whom PAM cannot identify, the module fails.
  - Before it replaces the file, it tests root and Ansible's account with PAM. If one that can log in now would be
    refused, the file stays as it is and the module fails.
  - Lines of others stay as they are. V(absent) removes exactly what V(present) added.
options:
  state:
    description: Whether logins need a job.
    type: str
    choices: [present, absent]
    default: present
  node:
    description: The node's name in Slurm. Needed with O(state=present).
    type: str
  users:
    description: Users who log in without a job.
    type: list
    elements: str
    default: []
  groups:
    description: Groups whose members log in without a job.
    type: list
    elements: str
    default: []
  login:
    description: Account with which Ansible logs in, if known.
    type: str
    default: ''
  directory:
    description: PAM's directory.
    type: path
    default: /etc/pam.d
requirements:
  - On the host Python 3.9 and PAM 1.4.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Let users in only where they have a job
  baremetal.gpu.slurm_ssh:
    node: node1
    groups: [operators]
"""

RETURN = r"""
differs:
  description: Whether the file was not as it should be, also where the task says itself what a change is.
  returned: success
  type: bool
users:
  description: Users who log in without a job, beside root.
  returned: success
  type: list
  elements: str
groups:
  description: Groups whose members log in without a job.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import ssh

AT_MOST = 1 << 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "node": {"type": "str"},
            "users": {"type": "list", "elements": "str", "default": []},
            "groups": {"type": "list", "elements": "str", "default": []},
            "login": {"type": "str", "default": ""},
            "directory": {"type": "path", "default": ssh.DIRECTORY},
        },
        required_if=[("state", "present", ("node",))],
        supports_check_mode=True,
    )
    given = module.params
    path = os.path.join(given["directory"], ssh.FILE)
    try:
        before = files.read(path, AT_MOST).decode("utf-8", "surrogateescape")
        plain = ssh.without(before)
    except FileNotFoundError:
        # Without sshd nobody comes in by SSH.
        module.exit_json(changed=False, differs=False, users=[], groups=[])
    except ssh.Damaged:
        module.fail_json(**failure("SSH", [ssh.damaged(path)]))
    except OSError as error:
        module.fail_json(**failure("SSH", [Problem("not_read", path, f"{path} cannot be read: {error}")]))
    after, rules = plain, ssh.Rules("")
    if given["state"] == "present":
        named = [*given["users"], *given["groups"]]
        found = ssh.administrators(run, named)
        wrong = ssh.bad_names(given["node"], named)
        wrong += [*found.unclear, *ssh.problems(plain, given["directory"], run)]
        if wrong:
            module.fail_json(**failure("SSH", wrong, "Nothing was changed."))
        known = [*ssh.logins(os.environ, given["login"]), *ssh.earlier_logins(before)]
        rules = ssh.rules_for(given["node"], given["users"], given["groups"], found, known)
        sources = ssh.unread_sources()
        if sources and not named:
            module.warn(
                f"sudo has rules from {sources} as well, which are not read: name those administrators in "
                "slurm_node_adopt_users or slurm_node_adopt_groups, or they need a job to log in"
            )
        after = ssh.add(plain, rules) or plain
        if after != before:
            wrong = ssh.kept_out(after, ["root", *known], given["directory"], run)
            if wrong:
                module.fail_json(**failure("SSH", wrong, "Nothing was changed."))
    if after != before and not module.check_mode:
        try:
            with files.labelled(module, path):
                files.write(path, after.encode("utf-8", "surrogateescape"), None, follow=True)
        except OSError as error:
            module.fail_json(**failure("SSH", [Problem("not_written", path, f"{path} cannot be written: {error}")]))
    module.exit_json(
        changed=after != before,
        differs=after != before,
        users=[*rules.users, *rules.logins],
        groups=list(rules.groups),
        diff={"before_header": path, "after_header": path, "before": before, "after": after},
    )


if __name__ == "__main__":
    main()
