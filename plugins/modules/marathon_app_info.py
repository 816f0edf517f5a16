#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: marathon_app_info
short_description: Return the apps of Marathon with their tasks and deployments
version_added: 0.1.0
description:
  - Returns one app, those that a label selects, or all, and the running deployments.
options:
  id:
    description: Id of one app, such as V(/jobs/smoke).
    type: str
  label:
    description: Label selector, such as V(team==vision) or V(team). Several are joined with commas, and all must match.
    type: str
  show_env:
    description: Whether values of environment variables are returned instead of hidden.
    type: bool
    default: false
extends_documentation_fragment:
  - baremetal.gpu.marathon
  - baremetal.gpu.attributes.looks
attributes:
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Ask for the apps of a team
  baremetal.gpu.marathon_app_info:
    urls: [http://master1:8080, http://master2:8080, http://master3:8080]
    label: team==vision
  register: vision
"""

RETURN = r"""
leader:
  description: Marathon that leads, as host:port.
  returned: success
  type: str
  sample: master1:8080
apps:
  description: The apps by id; empty if O(id) is not there.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Id of the app.
      type: str
    version:
      description: Version that is wanted now.
      type: str
    definition:
      description: The app as Marathon keeps it, with its defaults.
      type: dict
    instances:
      description: How many instances are wanted.
      type: int
    running:
      description: Tasks that run.
      type: int
    healthy:
      description: Tasks that pass all their health checks.
      type: int
    unhealthy:
      description: Tasks that fail one.
      type: int
    staged:
      description: Tasks that are being started.
      type: int
    tasks:
      description: Tasks, each with id, host, state, ports and the version of the app that it runs.
      type: list
      elements: dict
    deployments:
      description: Ids of the deployments that are under way for the app.
      type: list
      elements: str
    last_failure:
      description: The last task that failed, as Marathon tells it; null if none did.
      type: dict
deployments:
  description: The deployments that are under way for these apps.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Id of the deployment.
      type: str
    apps:
      description: Ids of the apps that it changes.
      type: list
    step:
      description: Step that it is at, from 1.
      type: int
    steps:
      description: Number of steps.
      type: int
    actions:
      description: What the step does, such as V(ScaleApplication /jobs/smoke).
      type: list
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import arguments as marathon_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import info as marathon_info
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **marathon_arguments.SPEC,
            "id": {"type": "str"},
            "label": {"type": "str"},
            "show_env": {"type": "bool", "default": False},
        },
        mutually_exclusive=[("id", "label")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        marathon = marathon_arguments.marathon(params)
        told = marathon_info.tell(marathon, params["id"], params["label"], params["show_env"])
    except Failed as why:
        module.fail_json(**failure("Marathon", [why.problem]))
    module.exit_json(changed=False, **told)


if __name__ == "__main__":
    main()
