#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_agent_state
short_description: Drain, deactivate, reactivate or remove a Mesos agent
version_added: 0.1.0
description:
  - Brings an agent into a state and waits for it. If the wait ends earlier, the tasks that block are named.
  - Mesos does not record who drained an agent. The module keeps a ledger of the agents that it drained or deactivated,
    and reactivates only those.
options:
  state:
    description:
      - V(drained) kills the tasks within the grace and takes no new ones.
      - V(deactivated) takes no new tasks and lets running ones continue.
      - V(active) takes tasks again. The module waits for an agent that still drains, because a drain cannot be
        cancelled.
      - V(gone) makes the agent exit. It can never come back under its id.
    type: str
    choices: [active, deactivated, drained, gone]
    required: true
  hostname:
    description: Hostname of the agent. One of O(hostname) and O(agent_id) is needed.
    type: str
  agent_id:
    description: Id of the agent.
    type: str
  grace_period:
    description: Seconds that a drain gives the tasks between SIGTERM and SIGKILL.
    type: int
    default: 600
  timeout:
    description: Seconds to wait until the agent is drained. V(0) does not wait.
    type: float
    default: 900
  ledger:
    description: File with the agents that it drained or deactivated, on the host on which the module runs.
    type: path
    default: /var/lib/baremetal-gpu/mesos-ledger.json
  takeover:
    description: Reactivate an agent that others drained or deactivated.
    type: bool
    default: false
extends_documentation_fragment:
  - baremetal.gpu.mesos_masters
  - baremetal.gpu.attributes.changes
attributes:
  diff_mode:
    description: Shows the state before and after.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Drain a node within ten minutes
  baremetal.gpu.mesos_agent_state:
    masters: [http://master1:5050, http://master2:5050, http://master3:5050]
    hostname: gpu1
    state: drained

- name: Let no new job land there, and leave those that run
  baremetal.gpu.mesos_agent_state:
    masters: [http://master1:5050, http://master2:5050, http://master3:5050]
    principal: operator
    secret: "{{ mesos_operator_secret }}"
    hostname: gpu1
    state: deactivated
"""

RETURN = r"""
action:
  description: What was done, V(drain), V(deactivate), V(reactivate) or V(gone); null for nothing.
  returned: success
  type: str
before:
  description: State of the agent before, as in RV(agent.state); null for none.
  returned: success
  type: str
ours:
  description: Whether the agent is out, and the ledger has it. In check mode, whether the ledger has it now.
  returned: success
  type: bool
agent:
  description: The agent afterwards, null for one that is not registered.
  returned: success
  type: dict
  contains:
    id:
      description: Agent id.
      type: str
    hostname:
      description: Hostname.
      type: str
    ip:
      description: Address that the agent announces.
      type: str
    port:
      description: Port.
      type: int
    state:
      description: V(active), V(disconnected), V(deactivated), V(draining) or V(drained).
      type: str
    grace_s:
      description: Grace of the drain in seconds, null without one.
      type: int
    drain_since:
      description: When the drain began in Unix seconds, null without a drain or where the master does not tell.
      type: float
    mark_gone:
      description: Whether the agent is gone for good once drained, null without a drain.
      type: bool
    resources:
      description: What the agent has.
      type: dict
    used_resources:
      description: What its tasks hold.
      type: dict
    attributes:
      description: Attributes, numbers and text.
      type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import agent_state as mesos_agent_state
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed

_STATE = {"drain": "drained", "deactivate": "deactivated", "reactivate": "active", "gone": "gone"}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **mesos_arguments.SPEC,
            "state": {"type": "str", "choices": list(mesos_agent_state.WANTED), "required": True},
            "hostname": {"type": "str"},
            "agent_id": {"type": "str"},
            "grace_period": {"type": "int", "default": 600},
            "timeout": {"type": "float", "default": 900},
            "ledger": {"type": "path", "default": "/var/lib/baremetal-gpu/mesos-ledger.json"},
            "takeover": {"type": "bool", "default": False},
        },
        required_one_of=[("hostname", "agent_id")],
        mutually_exclusive=[("hostname", "agent_id")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        done = mesos_agent_state.change(
            mesos_arguments.operator(params),
            params["hostname"],
            params["agent_id"],
            params["state"],
            mesos_agent_state.Ledger(params["ledger"]),
            params["grace_period"],
            params["takeover"],
            params["timeout"],
            module.check_mode,
            time.monotonic,
            time.sleep,
        )
    except Failed as why:
        module.fail_json(**failure(params["hostname"] or params["agent_id"], [why.problem]))
    before = done["before"] and done["before"]["state"]
    after = _STATE[done["action"]] if done["action"] else before
    module.exit_json(
        changed=done["changed"],
        action=done["action"],
        before=before,
        ours=done["ours"],
        agent=done["after"],
        diff={"before": f"{before}\n", "after": f"{after}\n"},
    )


if __name__ == "__main__":
    main()
