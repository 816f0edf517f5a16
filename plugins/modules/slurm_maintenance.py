#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_maintenance
short_description: Drain a node of Slurm for maintenance, and resume it
version_added: 0.1.0
description:
  - Drains a node with a reason that begins with C(gpuops drain:), and waits until it has no job of a user. Jobs are
    never cancelled. It does not wait for jobs of the partition C(gpuops), which keep GPUs from users.
  - Slurm keeps the reason, which shows who drained. A node that others drained keeps its reason and is not resumed.
options:
  node:
    description: The node, as Slurm names it.
    type: str
    required: true
  state:
    description:
      - V(drained) lets no new job start on the node. The drain of the reconciler is taken over, with its reason after
        the new one.
      - V(active) lets jobs start again, once slurmd has registered with everything in C(slurm.conf). Until then the
        module fails at once; repeat the task to wait. A node that was taken over from the reconciler is given back to
        it, still drained.
    type: str
    choices: [active, drained]
    required: true
  reason:
    description: Short reason of the drain, which users read.
    type: str
    default: maintenance
  timeout:
    description:
      - Seconds to wait until a node is empty. Then the module fails and names the jobs; the node stays drained.
        V(0) does not wait, and neither does check mode.
    type: float
    default: 900
  foreign:
    description:
      - What O(state=active) does with a node that others drained. V(left) leaves it, V(refused) fails, V(taken)
        resumes it.
    type: str
    choices: [left, refused, taken]
    default: refused
  unknown:
    description:
      - What to do if Slurm is not set up on the host on which the module runs, or slurmctld has no such node. V(left)
        does nothing, V(refused) fails.
    type: str
    choices: [left, refused]
    default: refused
  slurmd_started:
    description:
      - Start of the node's slurmd process in Unix seconds, by the node's clock. The node takes no jobs before that
        slurmd has registered. By default the last registration counts.
    type: float
requirements:
  - On the host that it runs on Python 3.9, C(scontrol), C(squeue) and the C(slurm.conf) of the cluster; and root.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Take work off a node, and wait an hour for its jobs
  baremetal.gpu.slurm_maintenance:
    node: "{{ inventory_hostname }}"
    state: drained
    reason: another fan
    timeout: 3600
  delegate_to: head1

- name: Have it take jobs again
  baremetal.gpu.slurm_maintenance:
    node: "{{ inventory_hostname }}"
    state: active
  delegate_to: head1
"""

RETURN = r"""
wanted:
  description: The state that was asked for, as in O(state).
  returned: success
  type: str
action:
  description: What was done, V(drain), V(resume) or V(hand_back) to the reconciler; null for nothing.
  returned: success
  type: str
ours:
  description: Whether the node is drained afterwards, and by an operator from here.
  returned: success
  type: bool
node:
  description: The node afterwards; null for one that Slurm does not have.
  returned: success
  type: dict
  contains:
    name:
      description: Its name.
      type: str
    state:
      description: Its state in Slurm, in check mode the present one.
      type: str
    owner:
      description: Who has taken it out, V(operator), V(reconciler) or V(other); null if it was not taken out.
      type: str
    reason:
      description: Why.
      type: str
    reason_by:
      description: The user who gave the reason.
      type: str
    reason_since:
      description: When, by the controller's clock.
      type: str
    before:
      description: Who had taken it out before, as in C(owner).
      type: str
jobs:
  description:
    - The users' jobs on a node that is drained, where they are not waited for.
    - C(id), C(user), C(state), C(gpus) (device files, null if they are unknown), C(limit_min) (time limit in
      minutes, null without one) and C(ends) (Unix seconds, null without a limit).
  returned: success
  type: list
  elements: dict
problems:
  description: What is in the way.
  returned: failed
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import maintenance
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

TIMEOUT_S = 20.0
TOLD = ("name", "state", "reason", "reason_by", "reason_since")


def settle(module: AnsibleModule) -> dict[str, Any]:
    """Bring the node into its state."""
    given, slurm = module.params, Slurm(run, TIMEOUT_S)
    try:
        before = maintenance.find(slurm, given["node"])
    except Refused as why:
        if given["unknown"] != "left" or why.problem.code not in ("no_slurm", "no_node"):
            raise
        return {"changed": False, "wanted": given["state"], "action": None, "ours": False, "node": None, "jobs": []}
    jobs: list[dict[str, Any]] = []
    if given["state"] == "drained":
        done = maintenance.drain(slurm, before, given["reason"], module.check_mode)
        if given["timeout"] > 0 and not module.check_mode:
            maintenance.wait_empty(slurm, given["node"], given["timeout"])
        else:
            left = slurm.jobs_on(given["node"])
            jobs = maintenance.as_rows(left, maintenance.devices(slurm, given["node"]) if left else [])
    else:
        done = maintenance.restore(slurm, before, given["foreign"], given["slurmd_started"], module.check_mode)
    after = done["row"]
    owner = maintenance.owner(after)
    return {
        "changed": done["changed"],
        "wanted": given["state"],
        "action": done["action"],
        "ours": owner == maintenance.OPERATOR,
        "node": {**{key: after[key] for key in TOLD}, "owner": owner, "before": maintenance.owner(before)},
        "jobs": jobs,
        "diff": {"before": maintenance.shown(before), "after": maintenance.shown(after)},
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["active", "drained"], "required": True},
            "reason": {"type": "str", "default": "maintenance"},
            "timeout": {"type": "float", "default": 900},
            "foreign": {"type": "str", "choices": ["left", "refused", "taken"], "default": "refused"},
            "unknown": {"type": "str", "choices": ["left", "refused"], "default": "refused"},
            "slurmd_started": {"type": "float"},
        },
        supports_check_mode=True,
    )
    try:
        result = settle(module)
    except Refused as reason:
        module.fail_json(**failure(module.params["node"], [reason.problem]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
