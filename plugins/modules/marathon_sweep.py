#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: marathon_sweep
short_description: Run Marathon apps to their end, a few at a time
version_added: 0.1.0
description:
  - Marathon restarts every task that ends, so it runs no batches by itself. This module deploys the apps of a sweep,
    never more than O(parallel) at a time, until each has ended.
  - An app has succeeded once its task is healthy, so it needs a health check that shows when the work is done, and must
    wait then. It has failed once a task failed. Marathon starts lost tasks elsewhere.
  - An ended app is scaled to zero and keeps its result in the label C(BAREMETAL_GPU_RESULT). So the next run continues
    after an interruption or a timeout, and changes nothing once all have succeeded.
options:
  name:
    description: Name of the sweep. All apps with it as label C(BAREMETAL_GPU_SWEEP) are its own.
    type: str
    required: true
  apps:
    description:
      - The apps in the format of Marathon's C(/v2/apps), in the order in which they start. Needed with
        O(state=present). The module sets C(instances).
    type: list
    elements: dict
  parallel:
    description: How many may run at a time.
    type: int
    default: 1
  retry:
    description: Whether apps that failed in an earlier run are repeated.
    type: bool
    default: true
  state:
    description: Whether the apps are run, or removed with their results.
    type: str
    choices: [present, absent]
    default: present
  timeout:
    description: Seconds for the whole sweep. Apps that still run then continue.
    type: float
    default: 86400
  poll_interval:
    description: Seconds between two queries.
    type: float
    default: 5
extends_documentation_fragment:
  - baremetal.gpu.marathon
  - baremetal.gpu.attributes.changes
attributes:
  check_mode:
    description: Says which apps would be run.
  diff_mode:
    description: Shows the apps that are run, with what became of them before.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.marathon_app
"""

EXAMPLES = r"""
- name: Train with two learning rates, one after the other
  baremetal.gpu.marathon_sweep:
    urls: [http://master1:8080]
    name: rates
    apps:
      - id: /sweeps/rates/slow
        cmd: python3 /ceph/alice/train.py --rate 0.01 && touch finished && sleep 86400
        cpus: 4
        mem: 8192
        gpus: 1
        container: {type: MESOS}
        healthChecks:
          - protocol: COMMAND
            command: {value: test -e finished}
            maxConsecutiveFailures: 1000000
      - id: /sweeps/rates/fast
        cmd: python3 /ceph/alice/train.py --rate 0.1 && touch finished && sleep 86400
        cpus: 4
        mem: 8192
        gpus: 1
        container: {type: MESOS}
        healthChecks:
          - protocol: COMMAND
            command: {value: test -e finished}
            maxConsecutiveFailures: 1000000
"""

RETURN = r"""
points:
  description: The apps in their order.
  returned: always with O(state=present), once Marathon has answered
  type: list
  elements: dict
  contains:
    id:
      description: Id of the app.
      type: str
    state:
      description: V(waiting), V(running), V(finished) or V(failed).
      type: str
    host:
      description: Agent that runs it, null while none does.
      type: str
    message:
      description: Why it failed; empty if it did not.
      type: str
removed:
  description: Ids of the apps that were removed.
  returned: success and O(state=absent)
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import arguments as marathon_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.deploy import Invalid, Options
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.sweep import FAILED, FINISHED, Sweep
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed

SPEC: dict[str, dict[str, Any]] = {
    **marathon_arguments.SPEC,
    "name": {"type": "str", "required": True},
    "apps": {"type": "list", "elements": "dict"},
    "parallel": {"type": "int", "default": 1},
    "retry": {"type": "bool", "default": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "timeout": {"type": "float", "default": 86400},
    "poll_interval": {"type": "float", "default": 5},
}


def present(module: AnsibleModule, sweep: Sweep) -> dict[str, Any]:
    params = module.params
    rows = sweep.rows(sweep.look())
    due = [row for row in rows if row["state"] != FINISHED and (params["retry"] or row["state"] != FAILED)]
    diff = {
        "before": "".join(f"{row['id']}: {row['state']}\n" for row in due),
        "after": "".join(f"{row['id']}: {FINISHED}\n" for row in due),
    }
    if not module.check_mode:
        options = Options(timeout_s=params["timeout"], poll_s=params["poll_interval"])
        rows = sweep.run(params["parallel"], params["retry"], options)
    return {"changed": bool(due) if module.check_mode else sweep.sent, "points": rows, "diff": diff}


def absent(module: AnsibleModule, sweep: Sweep) -> dict[str, Any]:
    ids = sweep.remove(module.check_mode)
    diff = {"before": "".join(f"{app_id}\n" for app_id in ids), "after": ""}
    return {"changed": bool(ids), "removed": ids, "diff": diff}


def verdict(name: str, rows: list[dict[str, Any]], timeout: float) -> list[Problem]:
    """What is wrong with the sweep; empty if all have ended well."""
    failed = [f"{row['id']} failed: {row['message']}" for row in rows if row["state"] == FAILED]
    left = [row["id"] for row in rows if row["state"] not in (FAILED, FINISHED)]
    told = []
    if failed:
        remedy = "see the task's stderr in its sandbox, correct it, and run it again"
        told.append(Problem("apps_failed", name, "; ".join(failed), remedy=remedy))
    if left:
        cause = f"{len(left)} of {len(rows)} apps have not ended after {timeout:g} s"
        told.append(Problem("apps_not_ended", name, cause, remedy="run it again to go on"))
    return told


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, required_if=[("state", "present", ("apps",))], supports_check_mode=True)
    if module.params["parallel"] < 1:
        wrong = Problem("invalid_value", "parallel", f"it is {module.params['parallel']}", remedy="give at least 1")
        module.fail_json(**failure("parallel", [wrong]))
    name = f"sweep {module.params['name']}"
    try:
        sweep = Sweep(marathon_arguments.marathon(module.params), module.params["name"], module.params["apps"] or [])
        done = (present if module.params["state"] == "present" else absent)(module, sweep)
    except Invalid as why:
        module.fail_json(**failure(name, why.problems))
    except Failed as why:
        module.fail_json(**failure(name, [why.problem]))
    problems = [] if module.check_mode else verdict(name, done.get("points", []), module.params["timeout"])
    if problems:
        module.fail_json(**failure(name, problems), **done)
    module.exit_json(**done)


if __name__ == "__main__":
    main()
