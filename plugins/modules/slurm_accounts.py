#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_accounts
short_description: Keep the QOS, accounts and users of a Slurm cluster, and their limits
version_added: 0.1.0
description:
  - Creates what the lists name, and changes what differs. Everything else stays as it is, also a limit that an entry
    does not name.
  - Deletes only the associations of a user with the state V(absent), and only if the user has no jobs.
  - Reports all problems of the lists before any change.
options:
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  qos:
    description: The QOS.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the QOS, in lower case.
        type: str
        required: true
      description:
        description: What it is for.
        type: str
        default: ''
      limits:
        description:
          - Its limits and other settings by sacctmgr's names, such as C(MaxTRESPerUser), C(MaxWall), C(Priority) and
            C(Preempt). V(none) removes one.
        type: dict
        default: {}
  accounts:
    description: The accounts.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the account, in lower case.
        type: str
        required: true
      parent:
        description: Parent account. A new account is below V(root) by default.
        type: str
        default: ''
      description:
        description: What it is for.
        type: str
        default: ''
      organization:
        description: Organization that it belongs to.
        type: str
        default: ''
      limits:
        description:
          - Its limits and other settings by sacctmgr's names, such as C(GrpTRES), C(MaxJobs), C(Fairshare) and C(QOS).
            V(none) removes one.
        type: dict
        default: {}
  users:
    description: The users.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the user, in lower case.
        type: str
        required: true
      state:
        description: With V(absent) the user's associations with the cluster are removed. The recorded usage stays.
        type: str
        choices: [present, absent]
        default: present
      accounts:
        description: The user's accounts. A new user has the first one as the default account.
        type: list
        elements: str
        default: []
      default_account:
        description: The account of jobs that name none.
        type: str
        default: ''
      admin_level:
        description: Rights of the user to change Slurm. By default they stay as they are.
        type: str
        choices: ['', 'None', Operator, Administrator]
        default: ''
      limits:
        description: >-
          Limits and other settings of the user in each of O(users[].accounts), in the form of an account's limits.
        type: dict
        default: {}
  enforced:
    description: Whether Slurm enforces limits. If not, the module warns of limits that have no effect.
    type: bool
    default: true
  wait:
    description: Seconds to wait until slurmctld has registered the cluster with slurmdbd.
    type: int
    default: 30
requirements:
  - On the host Python 3.9, C(sacctmgr) and a C(slurm.conf); and a user who may change the accounting, such as root.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Users of two accounts, and no more than four GPUs for each
  baremetal.gpu.slurm_accounts:
    cluster: slurm
    qos:
      - name: normal
        limits:
          MaxTRESPerUser: gres/gpu=4
          MaxWall: "2-00:00:00"
    accounts:
      - name: physics
        limits: {Fairshare: 30, GrpTRES: gres/gpu=16}
      - name: chemistry
        limits: {Fairshare: 10}
    users:
      - {name: alice, accounts: [physics, chemistry]}
      - {name: bob, state: absent}
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: ["add the user alice in physics"]
shut_out:
  description: >-
    Users of the list for whom slurmctld has none or another uid than the host, because it had no such account when
    slurmctld read their associations. It refuses their jobs until it is restarted.
  returned: success
  type: list
  elements: str
problems:
  description: What is wrong with the lists, or what kept a change from being made.
  returned: failed
  type: list
  elements: dict
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import accounts as slurm_accounts
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import control, limits, wanted

SUBJECT = "the accounting of Slurm"
POLL_S = 1.0
NAMED = {"name": {"type": "str", "required": True}, "limits": {"type": "dict", "default": {}}}
TEXT = {"type": "str", "default": ""}


def read(module: AnsibleModule, needed: set[str]) -> slurm_accounts.Accounting:
    """What slurmdbd has, when slurmctld has told it of the cluster and of the resources that are needed."""
    cluster, deadline = module.params["cluster"], time.monotonic() + module.params["wait"]
    while True:
        found = slurm_accounts.read(run, cluster)
        ready = found.known and needed <= found.resources
        if ready or module.check_mode or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    if not found.known and not module.check_mode:
        raise Refused(
            f"slurmdbd does not know the cluster {cluster}",
            "see 'sudo journalctl -u slurmctld' on its host",
            code="no_cluster",
            subject=cluster,
        )
    return found


def announced(module: AnsibleModule, needed: set[str]) -> slurm_accounts.Accounting:
    """What slurmdbd has; nothing in check mode where it is yet to come."""
    try:
        if not slurm_accounts.installed():
            raise Refused("sacctmgr is not installed", "install slurm-client", code="no_sacctmgr", subject="sacctmgr")
        return read(module, needed)
    except Refused as reason:
        if not module.check_mode:
            raise
        module.warn(f"{reason.problem.cause}, so everything is shown as new")
        return slurm_accounts.Accounting()


def settle(module: AnsibleModule) -> dict[str, Any]:
    """Bring the accounting into its state."""
    given = module.params
    goal, problems = wanted.read(given["qos"], given["accounts"], given["users"])
    if not limits.NAME.fullmatch(given["cluster"].lower()):
        problems.append(Problem("bad_name", "cluster", "the cluster has no usable name", given["cluster"][:64]))
    if problems:
        module.fail_json(**failure(SUBJECT, problems, "Nothing was changed."))
    current = announced(module, goal.resources())
    busy = slurm_accounts.users_with_jobs(run) if slurm_accounts.leaving(current, goal) else set()
    steps, problems = slurm_accounts.plan(current, goal, given["cluster"], busy)
    if problems:
        module.fail_json(**failure(SUBJECT, problems, "Nothing was changed."))
    if steps and not module.check_mode:
        slurm_accounts.apply(run, steps)
        left = slurm_accounts.plan(slurm_accounts.read(run, given["cluster"]), goal, given["cluster"], busy)[0]
        if left:
            raise Refused(
                f"Slurm has not applied what sacctmgr requested: it would have to {left[0].does} once more",
                "see 'sudo journalctl -u slurmdbd' on its host",
                code="not_taken",
                subject=left[0].subject,
            )
    if goal.has_limits() and not given["enforced"]:
        module.warn("Slurm does not hold to limits: AccountingStorageEnforce has none of limits and safe")
    present = {one.name for one in goal.users if one.present}
    return {
        "changed": bool(steps),
        "plan": [step.does for step in steps],
        "diff": slurm_accounts.diff(steps),
        "shut_out": [name for name in slurm_accounts.shut_out(control.Slurm(run).uids()) if name in present],
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "qos": {"type": "list", "elements": "dict", "default": [], "options": {**NAMED, "description": TEXT}},
            "accounts": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {**NAMED, "parent": TEXT, "description": TEXT, "organization": TEXT},
            },
            "users": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **NAMED,
                    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
                    "accounts": {"type": "list", "elements": "str", "default": []},
                    "default_account": TEXT,
                    "admin_level": {"type": "str", "choices": ["", *wanted.ADMIN_LEVELS], "default": ""},
                },
            },
            "enforced": {"type": "bool", "default": True},
            "wait": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    try:
        result = settle(module)
    except Refused as reason:
        module.fail_json(**failure(SUBJECT, [reason.problem]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
