#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_jobs
short_description: Run a job of every kind on a node of Slurm
version_added: 0.1.0
description:
  - Runs on one node a batch job, an array of two, an interactive job, a job with one GPU, and one that takes more
    memory than it asked for; on a node with several GPUs an all-reduce over them, with C(all_reduce_perf) of nccl-tests
    or with torch; and looks for the first of them in the accounting.
  - The jobs need a core and 500 MiB, the all-reduce all GPUs, a core for each, and 4 GiB. They have 5 minutes at most,
    and write no file. What the accounting has of them stays.
  - A node that takes no jobs gets none. A job that fails does not make the module fail.
  - It runs on a host with Slurm's commands and the configuration of the cluster, as root.
options:
  node:
    description: The node, as Slurm names it.
    type: str
    required: true
  python:
    description: The Python on the nodes that has torch.
    type: str
    default: python3
  name:
    description: Name of the jobs. At the end all jobs of that name are cancelled.
    type: str
    required: true
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode no job is submitted.
seealso:
  - module: baremetal.gpu.accept_collective
  - module: baremetal.gpu.slurm_job
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Run a job of every kind on a node
  baremetal.gpu.accept_jobs:
    node: "{{ inventory_hostname }}"
    name: gpuops-accept-1
  delegate_to: head1
"""

RETURN = r"""
jobs:
  description: What came of it. Null in check mode.
  returned: success
  type: dict
  contains:
    node:
      description: The node.
      type: str
    state:
      description: Its state, as Slurm has it. C(in_service), C(drained) and C(takes_jobs) say the same, C(reason) why.
      type: str
    owner:
      description: Who took it out, V(operator), V(reconciler) or V(other). Null if it was not taken out.
      type: str
    why:
      description: Why no jobs were run; empty where they were.
      type: str
    kinds:
      description:
        - By the kind of the job C(ok), which is null where it could not be tried, and C(text). Without accounting, or
          without GPUs, that kind is left out.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import jobs
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "python": {"type": "str", "default": "python3"},
            "name": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, jobs=None)
    given = module.params
    try:
        found = jobs.check(run, given["node"], given["name"], given["python"])
    except Refused as why:
        module.fail_json(**failure(given["node"], [why.problem]))
    module.exit_json(changed=False, jobs=found)


if __name__ == "__main__":
    main()
