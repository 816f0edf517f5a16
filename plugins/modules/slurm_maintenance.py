#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_maintenance
short_description: Drain a node of Slurm for maintenance, and have it take jobs again
version_added: 0.1.0
description:
  - Drains a node with a reason that begins with C(gpuops drain:), and waits until no job of a user's is on it. Jobs are
    never cancelled. Those of the partition C(gpuops), which keep GPUs from users, are not waited for.
  - Slurm keeps the reason, which tells whose a drain is. What somebody else has drained is neither given another reason
    nor resumed.
options:
  node:
    description: The node, as Slurm names it.
    type: str
    required: true
  state:
    description:
      - V(drained) lets no new job start on the node. A node that the reconciler has drained is taken over, with its
        reason behind the new one.
      - V(active) lets jobs start again, once slurmd has registered with all that C(slurm.conf) claims. A node that has
        not is refused at once; repeat the task to wait for it. One that was the reconciler's is given back to it,
        drained as it was.
    type: str
    choices: [active, drained]
    required: true
  reason:
    description: Why the node is drained, in a few words. Users read it.
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
      - What becomes of a node that somebody else has taken out, when it is to take jobs again. V(left) leaves it,
        V(refused) fails, V(taken) resumes it.
    type: str
    choices: [left, refused, taken]
    default: refused
  unknown:
    description:
      - What to do where Slurm is not set up on the host that the module runs on, or slurmctld has no such node.
        V(left) does nothing, V(refused) fails.
    type: str
    choices: [left, refused]
    default: refused
  slurmd_started:
    description:
      - When the process of slurmd was started on the node, in Unix seconds by the clock of the node. The node takes no
        jobs before that slurmd has registered. Without it the last one that did will do.
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
      description: Its state as Slurm tells it, in check mode that of now.
      type: str
    owner:
      description: Who has taken it out, V(operator), V(reconciler) or V(other); null for nobody.
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
    - C(id), C(user), C(state), C(gpus) (device files, null where they are not told), C(limit_min) (time limit in
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
