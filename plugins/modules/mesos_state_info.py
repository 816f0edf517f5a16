#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_state_info
short_description: Return the agents and tasks of a Mesos cluster
version_added: 0.1.0
description:
  - Finds the leading master and returns its agents with their state, and the tasks that hold resources.
extends_documentation_fragment:
  - baremetal.gpu.mesos_masters
  - baremetal.gpu.attributes.looks
attributes:
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Ask what the cluster does
  baremetal.gpu.mesos_state_info:
    masters: [http://master1:5050, http://master2:5050, http://master3:5050]
  register: cluster
"""

RETURN = r"""
leader:
  description: URL of the master that leads.
  returned: success
  type: str
  sample: http://10.0.0.1:5050
agents:
  description: The registered agents, by hostname.
  returned: success
  type: list
  elements: dict
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
tasks:
  description: Tasks that hold resources.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Task id.
      type: str
    name:
      description: Name of the task.
      type: str
    framework:
      description: Name of the framework.
      type: str
    agent_id:
      description: Agent that runs it.
      type: str
    state:
      description: State, such as V(TASK_RUNNING).
      type: str
    resources:
      description: What it holds.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed


def main() -> None:
    module = AnsibleModule(argument_spec=mesos_arguments.SPEC, supports_check_mode=True)
    try:
        operator = mesos_arguments.operator(module.params)
        module.exit_json(changed=False, leader=operator.leader(), agents=operator.agents(), tasks=operator.tasks())
    except Failed as why:
        module.fail_json(**failure("the masters", [why.problem]))


if __name__ == "__main__":
    main()
