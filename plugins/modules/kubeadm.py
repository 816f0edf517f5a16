#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubeadm
short_description: Make a host a member of a Kubernetes cluster
version_added: 0.1.0
description:
  - Creates a cluster with C(kubeadm init), or joins one with C(kubeadm join). A host that is a member already is not
    changed.
  - An attempt that was cut continues in the next run. What else is on the host is never overwritten; a host with the
    data of a cluster, or in another cluster, is refused.
options:
  command:
    description:
      - Whether the host creates the cluster or joins it.
      - V(settings) gives a control plane the settings of O(config), and V(record) has the cluster remember them, once
        all control planes have them. With both the task is changed whenever it runs.
    type: str
    choices: [init, join, settings, record]
    required: true
  config:
    description: >-
      The documents of kubeadm's configuration. They may have a token, so they are in a file for root alone, which is
      removed after the command. Not needed in check mode and for a member.
    type: str
    default: ""
  server:
    description: Host and port of the cluster's API server.
    type: str
    required: true
  ignore:
    description: Checks of kubeadm that it does not make, such as V(SystemVerification).
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds for the command. It pulls images.
    type: int
    default: 900
requirements:
  - On the host Python 3.9, C(kubeadm) and a container runtime.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Create the cluster
  baremetal.gpu.kubeadm:
    command: init
    server: 10.0.0.1:6443
    config: "{{ lookup('ansible.builtin.template', 'kubeadm.yaml.j2') }}"
"""

RETURN = r"""
cut:
  description: Whether an earlier attempt of this host was cut.
  returned: success
  type: bool
due:
  description: Whether the host was not a member before.
  returned: success
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import settings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.membership import Membership


def change(module: AnsibleModule) -> None:
    """Of a control plane that is there."""
    started: list[str] = []
    try:
        if not module.check_mode and module.params["command"] == "settings":
            started = settings.change(module.params["config"], run)
        elif not module.check_mode:
            settings.record(module.params["config"], run)
    except (Refused, OSError) as why:
        problem = why.problem if isinstance(why, Refused) else Problem("not_written", "kubeadm", str(why))
        module.fail_json(**failure(problem.subject, [problem], "Run it again: what is done is not done twice."))
    module.exit_json(
        changed=True, due=True, diff={"before": "", "after": "".join(f"{name} anew\n" for name in started)}
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "command": {"type": "str", "choices": ["init", "join", "settings", "record"], "required": True},
            "config": {"type": "str", "default": "", "no_log": True},
            "server": {"type": "str", "required": True},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["command"] in ("settings", "record"):
        change(module)
    member = Membership(run, given["command"], given["server"], tuple(given["ignore"]))
    try:
        due, cut = member.is_due(), member.begun.exists()
        if due and not module.check_mode:
            member.perform(given["config"], float(given["timeout"]))
    except Refused as why:
        module.fail_json(**failure(why.problem.subject, [why.problem]))
    after = f"member of the cluster at {given['server']}\n"
    module.exit_json(changed=due, due=due, cut=cut, diff={"before": "" if due else after, "after": after})


if __name__ == "__main__":
    main()
