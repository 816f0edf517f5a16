#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_maintenance
short_description: Change the maintenance schedule of a Mesos cluster
version_added: 0.1.0
description:
  - Adds machines to the maintenance schedule or removes them, and takes them down or up.
  - Mesos replaces the whole schedule at every change. The module reads it, makes its change, and keeps the windows of
    others.
  - Use either the schedule or M(baremetal.gpu.mesos_agent_state) for a machine, never both.
options:
  state:
    description:
      - V(scheduled) and V(unscheduled) say whether the machines are in the schedule.
      - V(down) makes the agents on scheduled machines exit, V(up) ends that and the window.
    type: str
    choices: [scheduled, unscheduled, down, up]
    required: true
  machines:
    description: >-
      The machines, with both names as their agents announce them. Hostnames are compared without regard to case.
    type: list
    elements: dict
    required: true
    suboptions:
      hostname:
        description: Hostname of the agent.
        type: str
        required: true
      ip:
        description: Address of the agent.
        type: str
        required: true
  start:
    description: Start of the window in seconds since 1970. Needed with O(state=scheduled).
    type: int
  duration:
    description: Length of the window in seconds. Without it the window has no end.
    type: int
extends_documentation_fragment:
  - baremetal.gpu.mesos_masters
  - baremetal.gpu.attributes.changes
attributes:
  diff_mode:
    description: Shows the schedule before and after.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Announce two hours of maintenance
  baremetal.gpu.mesos_maintenance:
    masters: [http://master1:5050, http://master2:5050, http://master3:5050]
    state: scheduled
    machines:
      - hostname: gpu1
        ip: 10.0.0.11
    start: 1790000000
    duration: 7200
"""

RETURN = r"""
schedule:
  description: The schedule afterwards.
  returned: success
  type: dict
down:
  description: Machines that are down afterwards.
  returned: success
  type: list
  elements: dict
  contains:
    hostname:
      description: Hostname.
      type: str
    ip:
      description: Address.
      type: str
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed, Operator


def change(operator: Operator, params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    key = mesos_operator.machine_key
    machines = list(
        {key(row["hostname"], row["ip"]): (row["hostname"], row["ip"]) for row in params["machines"]}.values()
    )
    before, down = operator.schedule(), operator.machines_down()
    out = {key(*machine) for machine in down}
    after, down_after = before, down
    if params["state"] in ("scheduled", "unscheduled"):
        window = {"start_s": params["start"], "duration_s": params["duration"]}
        after = mesos_operator.change_schedule(before, machines, window if params["state"] == "scheduled" else None)
        stuck = [name for name, ip in machines if params["state"] == "unscheduled" and key(name, ip) in out]
        if stuck:
            raise Failed(f"{', '.join(stuck)} are down and cannot leave the schedule", "bring them up")
        if after != before and not check_mode:
            operator.set_schedule(after)
    elif params["state"] == "down":
        missing = [machine for machine in machines if key(*machine) not in out]
        down_after = [*down, *missing]
        if missing and not check_mode:
            operator.set_machines("down", missing)
    else:
        there = [machine for machine in machines if key(*machine) in out]
        gone = {key(*machine) for machine in there}
        down_after = [machine for machine in down if key(*machine) not in gone]
        after = mesos_operator.change_schedule(before, there, None)
        if there and not check_mode:
            operator.set_machines("up", there)
    shown = [
        {"schedule": schedule, "down": [{"hostname": name, "ip": ip} for name, ip in rows]}
        for schedule, rows in ((before, down), (after, down_after))
    ]
    return {
        "changed": shown[0] != shown[1],
        **shown[1],
        "diff": {
            side: json.dumps(row, indent=1, sort_keys=True) + "\n" for side, row in zip(("before", "after"), shown)
        },
    }


def main() -> None:
    machine = {"hostname": {"type": "str", "required": True}, "ip": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            **mesos_arguments.SPEC,
            "state": {"type": "str", "choices": ["scheduled", "unscheduled", "down", "up"], "required": True},
            "machines": {"type": "list", "elements": "dict", "required": True, "options": machine},
            "start": {"type": "int"},
            "duration": {"type": "int"},
        },
        required_if=[("state", "scheduled", ("start",))],
        supports_check_mode=True,
    )
    try:
        done = change(mesos_arguments.operator(module.params), module.params, module.check_mode)
    except Failed as why:
        module.fail_json(**failure("the maintenance schedule", [why.problem]))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
