#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_hold
short_description: Keep the free GPUs of a node of Slurm from other jobs for a while
version_added: 0.1.0
description:
  - With O(state=held) it submits a job that has all free GPUs of the node and sleeps, and waits until it runs. With
    O(state=released) it cancels that job.
  - The job has the lowest priority. If it is not cancelled, it ends 30 minutes after O(minutes).
  - A drained node gets no job, because it takes no other jobs either.
  - Where nothing can be held the module does not fail, and says why.
  - It runs on the host of slurmctld, as root.
options:
  state:
    description: Whether the GPUs are to be held.
    type: str
    choices: [held, released]
    required: true
  node:
    description: The node, as Slurm names it.
    type: str
    required: true
  name:
    description: Name of the job. At the end all jobs of that name are cancelled.
    type: str
    required: true
  minutes:
    description: How long the GPUs are needed.
    type: float
    default: 1
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode no job is submitted, and no GPU is held.
seealso:
  - module: baremetal.gpu.gpu_load
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Keep the free GPUs of the host from other jobs
  baremetal.gpu.accept_hold:
    state: held
    node: "{{ inventory_hostname }}"
    name: gpuops-accept-1
    minutes: 10
  delegate_to: head1
  register: hold
"""

RETURN = r"""
held:
  description:
    - With O(state=held) the C(job), null where none was needed, the C(minors) of the GPUs that no other job gets, and
      C(why) there are none.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import holding
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["held", "released"]},
            "node": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "minutes": {"type": "float", "default": 1},
        },
        supports_check_mode=True,
    )
    given = module.params
    held = None
    try:
        if module.check_mode:
            held = {"job": None, "minors": [], "why": "check mode"}
        elif given["state"] == "held":
            held = holding.hold(run, given["node"], given["name"], given["minutes"])
        else:
            holding.release(run, given["name"])
    except Refused as why:
        held = {"job": None, "minors": [], "why": str(why.problem)}
    module.exit_json(changed=False, held=held)


if __name__ == "__main__":
    main()
