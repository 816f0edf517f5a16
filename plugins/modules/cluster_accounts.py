#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_accounts
short_description: Keep the accounts, groups and SSH keys of a site's users on a host
version_added: 0.1.0
description:
  - Makes accounts and groups with fixed numbers, and changes what differs. What the lists do not name stays.
  - A new account has no password. A password that an account has stays.
  - SSH keys are in C(/etc/ssh/authorized_keys.d), outside of homes. Homes are not touched.
  - A user who is closed has no keys, no shell and an expired account; processes and jobs of the user are ended. A user
    who is removed has no account.
  - Reports all problems of the host before any change.
options:
  users:
    description: The users, as the filter P(baremetal.gpu.site_users#filter) has them in C(accounts), with C(home).
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the account.
        type: str
        required: true
      uid:
        description: Its UID.
        type: int
        required: true
      gid:
        description: GID of its first group.
        type: int
        required: true
      home:
        description: Path of the home, which is not made.
        type: str
        required: true
      shell:
        description: The shell.
        type: str
        required: true
      group:
        description: Name of the first group. By default that of the user, and then it is made, too.
        type: str
      listed:
        description: Whether the list of users names the UID, so that an account that has it is taken over.
        type: bool
        default: false
      full_name:
        description: Name of the person.
        type: str
        default: ''
      groups:
        description: Groups of O(groups) of which the user is a member.
        type: list
        elements: str
        default: []
      ssh_keys:
        description: Public keys.
        type: list
        elements: str
        default: []
      state:
        description: Whether the user may log in.
        type: str
        choices: [present, closed, removed]
        default: present
      until:
        description: Day on which the account expires, such as V(2027-03-31).
        type: str
        default: ''
  groups:
    description: The groups.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the group.
        type: str
        required: true
      gid:
        description: Its GID.
        type: int
        required: true
  ledger:
    description: The numbers that were given before, C(users), and their range, C(first) and C(last).
    type: dict
    required: true
  end_jobs:
    description: Whether to cancel the jobs that closed users have in Slurm, for a host that runs slurmctld.
    type: bool
    default: false
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows each account and group before and after.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - plugin: baremetal.gpu.site_users
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Make an account
  baremetal.gpu.cluster_accounts:
    users:
      - name: alice
        uid: 10001
        gid: 10001
        home: /home/alice
        shell: /bin/bash
        ssh_keys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJHh6bJXyGZTBoXfLhbW0fY1rNnPpkFvEoNgTrKZ1oRY alice"]
    groups: []
    ledger: {users: {alice: 10001}, first: 10001, last: 59999}
"""

RETURN = r"""
plan:
  description: What was done, or would be done.
  returned: success
  type: list
  elements: str
ssh_unit:
  description: The unit of the host's sshd; empty where there is none.
  returned: success
  type: str
problems:
  description: What of the host does not go with the lists, or what kept a change from being made.
  returned: failed
  type: list
  elements: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.system import accounts

SUBJECT = "the accounts of people"
INCLUDED = "/etc/ssh/sshd_config.d/"
UNITS = ("ssh.service", "sshd.service")
UNIT_DIRECTORIES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
USER = {
    "name": {"type": "str", "required": True},
    "uid": {"type": "int", "required": True},
    "gid": {"type": "int", "required": True},
    "home": {"type": "str", "required": True},
    "shell": {"type": "str", "required": True},
    "group": {"type": "str"},
    "listed": {"type": "bool", "default": False},
    "full_name": {"type": "str", "default": ""},
    "groups": {"type": "list", "elements": "str", "default": []},
    "ssh_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "state": {"type": "str", "choices": ["present", "closed", "removed"], "default": "present"},
    "until": {"type": "str", "default": ""},
}
GROUP = {"name": {"type": "str", "required": True}, "gid": {"type": "int", "required": True}}


def ssh_unit() -> str:
    found = (unit for unit in UNITS for place in UNIT_DIRECTORIES if os.path.isfile(f"{place}/{unit}"))
    return next(found, "")


def settle(module: AnsibleModule) -> dict[str, Any]:
    """Bring the accounts into their state."""
    users = [{**row, "group": row["group"] or row["name"]} for row in module.params["users"]]
    groups, ledger = module.params["groups"], module.params["ledger"]
    host = accounts.read()
    problems = list(accounts.problems(users, groups, ledger, host))
    if problems:
        module.fail_json(**failure(SUBJECT, problems, "Nothing was changed."))
    steps = accounts.plan(users, groups, host)
    done = [step.does for step in steps]
    closed = [row["name"] for row in users if row["state"] != accounts.PRESENT]
    if steps and not module.check_mode:
        accounts.apply(steps, run)
        left = accounts.plan(users, groups, accounts.read())
        if left:
            remedy = "run it again; where it stays so, another program changes the accounts"
            raise Refused(f"the host still has to {left[0].does}", remedy, code="not_taken")
    if module.params["end_jobs"]:
        done += end_jobs(module, closed)
    for row in users:
        if row["state"] == accounts.PRESENT and not os.access(row["shell"], os.X_OK):
            module.warn(f"{row['name']} has the shell {row['shell']}, which is not on this host: no login until it is")
    unit = ssh_unit()
    if unit and INCLUDED not in files.read_text("/etc/ssh/sshd_config"):
        module.warn(f"/etc/ssh/sshd_config does not include {INCLUDED}*.conf, so sshd does not find the keys of users")
    return {
        "changed": bool(done),
        "plan": done,
        "ssh_unit": unit,
        "diff": {
            "before": accounts.shown(users, groups, host),
            "after": accounts.shown(users, groups, accounts.after(users, groups, host)),
        },
    }


def end_jobs(module: AnsibleModule, closed: list[str]) -> list[str]:
    """The jobs of closed users. A slurmctld that is down keeps no account from being closed."""
    try:
        names = accounts.jobs(closed, run)
        if names and not module.check_mode:
            accounts.end_jobs(names, run)
    except Refused as why:
        module.warn(str(why))
        return []
    return [f"end the jobs of {name}" for name in names]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "users": {"type": "list", "elements": "dict", "required": True, "options": USER},
            "groups": {"type": "list", "elements": "dict", "required": True, "options": GROUP},
            "ledger": {"type": "dict", "required": True},
            "end_jobs": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = settle(module)
    except Refused as reason:
        module.fail_json(**failure(SUBJECT, [reason.problem]))
    except OSError as wrong:
        module.fail_json(**failure(SUBJECT, [Problem("not_written", str(wrong.filename or ""), str(wrong))]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
