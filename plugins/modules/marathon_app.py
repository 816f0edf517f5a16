#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: marathon_app
short_description: Deploy an app to Marathon, or remove it
version_added: 0.1.0
description:
  - Checks the app as Marathon 1.10 would, compares it with what Marathon has, deploys it if they differ, and waits
    until all its instances run and are healthy.
  - An app is replaced as a whole. A field that is left out goes back to Marathon's default, except for C(instances),
    which keeps its current value.
  - Deprecated fields (C(uris), C(ports), C(ipAddress), C(container.docker.network), C(container.docker.portMappings))
    are sent as their replacements. Networks, ports and strategies that the app does not name are left to Marathon.
  - In Marathon a deployment never fails; it only does not end. The module counts it as failed after O(timeout), and
    then returns the last failed task, the unhealthy tasks, and why offers do not fit.
options:
  app:
    description:
      - The app in the format of Marathon's C(/v2/apps). Needed with O(state=present).
      - Values of C(env) and C(labels) are text. Quote numbers.
    type: dict
  id:
    description: Id of the app, such as V(/jobs/smoke), for O(state=absent). By default the one in O(app).
    type: str
  secret_env:
    description:
      - Variables that are added to C(env) of the app. Their values are kept out of logs and diffs.
      - Marathon itself stores them in plain text and shows them to everybody who may read the app.
    type: dict
  state:
    description: Whether the app exists.
    type: str
    choices: [present, absent]
    default: present
  force:
    description:
      - Whether a running deployment of the app is cancelled. Otherwise the module fails and names it.
    type: bool
    default: false
  wait:
    description: Whether to wait until the app runs and is healthy, or until its tasks have ended.
    type: bool
    default: true
  timeout:
    description: Seconds to wait for the deployment and for health together, and again for a roll back.
    type: float
    default: 600
  poll_interval:
    description: Seconds between two queries of the deployment.
    type: float
    default: 1
  rollback:
    description:
      - Whether to undo a failed deployment. An existing app gets its former version, a new one is removed.
      - By default an existing app is rolled back, and a new one is left for inspection.
    type: bool
extends_documentation_fragment:
  - baremetal.gpu.marathon
  - baremetal.gpu.attributes.changes
attributes:
  check_mode:
    description: Says what it would do. It fails as the real run would for a wrong app and for one that is locked.
  diff_mode:
    description: Shows the fields that change.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Run the smoke job on one GPU of an A100
  baremetal.gpu.marathon_app:
    urls: [http://master1:8080, http://master2:8080, http://master3:8080]
    app:
      id: /jobs/smoke
      cmd: nvidia-smi -L && sleep 3600
      cpus: 1
      mem: 1024
      gpus: 1
      container:
        type: MESOS
        docker:
          image: nvidia/cuda:12.4.1-base-ubuntu22.04
      constraints:
        - [gpu_model, IS, A100]
      healthChecks:
        - protocol: COMMAND
          command:
            value: nvidia-smi

- name: Take it away
  baremetal.gpu.marathon_app:
    urls: [http://master1:8080, http://master2:8080, http://master3:8080]
    id: /jobs/smoke
    state: absent
"""

RETURN = r"""
id:
  description: Id of the app.
  returned: success
  type: str
changes:
  description: Fields of the app that differ from what Marathon had.
  returned: success
  type: list
  elements: str
deployment_id:
  description: The deployment that was started, null if none was.
  returned: success and O(state=present)
  type: str
version:
  description: Version of the app afterwards, null if it is not there.
  returned: success and O(state=present)
  type: str
instances:
  description: How many instances the app has.
  returned: success and O(state=present)
  type: int
tasks:
  description: The app's tasks afterwards.
  returned: success and O(state=present)
  type: list
  elements: dict
  contains:
    id:
      description: Task id.
      type: str
    host:
      description: Agent that runs it.
      type: str
    state:
      description: State, such as V(TASK_RUNNING).
      type: str
    ports:
      description: Ports that it was given.
      type: list
reasons:
  description: Why the app does not run.
  returned: when a deployment failed
  type: list
  elements: str
rolled_back:
  description: Whether the app is as it was before.
  returned: when a deployment failed
  type: bool
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import arguments as marathon_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import deploy as marathon_deploy
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.deploy import Invalid, Options, Unfinished
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed

SPEC: dict[str, dict[str, Any]] = {
    **marathon_arguments.SPEC,
    "app": {"type": "dict"},
    "id": {"type": "str"},
    "secret_env": {"type": "dict", "no_log": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "force": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 600},
    "poll_interval": {"type": "float", "default": 1},
    "rollback": {"type": "bool"},
}


def present(params: dict[str, Any], options: Options, check_mode: bool) -> dict[str, Any]:
    app, secret = dict(params["app"]), params["secret_env"] or {}
    in_the_open = app.get("env") or {}
    if secret:
        app["env"] = {**in_the_open, **secret}
    marathon = marathon_arguments.marathon(params)
    todo = marathon_deploy.plan(marathon, app)
    # What is only on the server may be a secret that is taken out now.
    hidden = {*secret, *set((todo.before or {}).get("env", {})) - set(in_the_open)}
    before, after = ({key: pair[side] for key, pair in todo.changes.items()} for side in (0, 1))
    done = marathon_deploy.bring(marathon, todo, options, check_mode)
    return {
        "changed": bool(todo.changes),
        "id": todo.wanted["id"],
        "changes": sorted(todo.changes),
        "diff": marathon_deploy.shown(before, after, hidden),
        **done,
    }


def absent(params: dict[str, Any], options: Options, check_mode: bool) -> dict[str, Any]:
    app = params["app"] or {}
    app_id = params["id"] or app.get("id")
    if not app_id:
        raise Failed("neither id nor app says which app is to go", "give id")
    before = marathon_deploy.remove(marathon_arguments.marathon(params), app_id, options, check_mode)
    diff = marathon_deploy.shown(before or {}, {}, (before or {}).get("env", {}))
    return {"changed": before is not None, "id": app_id, "changes": [], "diff": diff}


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC,
        required_if=[("state", "present", ("app",)), ("state", "absent", ("id", "app"), True)],
        supports_check_mode=True,
    )
    params = module.params
    options = Options(params["force"], params["wait"], params["timeout"], params["poll_interval"], params["rollback"])
    act = present if params["state"] == "present" else absent
    try:
        done = act(params, options, module.check_mode)
    except Unfinished as why:
        told = failure("Marathon", [why.problem])
        module.fail_json(**told, changed=why.sent, reasons=why.reasons, rolled_back=why.rolled_back)
    except Invalid as why:
        module.fail_json(**failure("Marathon", why.problems))
    except Failed as why:
        module.fail_json(**failure("Marathon", [why.problem]))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
