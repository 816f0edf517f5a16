#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_collective
short_description: Run an all-reduce over nodes of Slurm
version_added: 0.1.0
description:
  - Runs one job over those of the nodes that have nothing else to do, with a rank for each GPU, or for each node where
    there are none. The ranks add up an array with torch, through NCCL or gloo, and compare the sum with the right one.
  - The ranks are processes of C(nobody), meet at a port that is drawn, and send numbers only.
  - The job needs a core for each rank and 4 GiB, has 5 minutes at most, and writes no file.
  - An all-reduce that fails does not make the module fail.
  - It runs on a host with Slurm's commands and the configuration of the cluster, as root.
options:
  addresses:
    description: Nodes, as Slurm names them, with the address by which the others reach them, empty for that name.
    type: dict
    required: true
  python:
    description: The Python on the nodes that has torch, and that everybody may run.
    type: str
    default: python3
  name:
    description: Name of the job. At the end all jobs of that name are cancelled.
    type: str
    required: true
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode no job is submitted.
seealso:
  - module: baremetal.gpu.accept_jobs
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Run an all-reduce over two nodes
  baremetal.gpu.accept_collective:
    addresses: {node1: 10.0.0.1, node2: 10.0.0.2}
    name: gpuops-accept-1
"""

RETURN = r"""
part:
  description: V(collectives).
  returned: success
  type: str
service:
  description:
    - The C(nodes), C(ok), which is null where it could not be tried, and C(text). Where it was, the C(backend), and the
      bandwidth of the bus in 10^9 bytes a second, C(gb_s). Null in check mode.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import jobs
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "addresses": {"type": "dict", "required": True},
            "python": {"type": "str", "default": "python3"},
            "name": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    found = None
    try:
        if not module.check_mode:
            addresses = {str(node): str(address or "") for node, address in given["addresses"].items()}
            found = jobs.between(run, addresses, given["name"], given["python"])
    except Refused as why:
        module.fail_json(**failure("the nodes", [why.problem]))
    module.exit_json(changed=False, part="collectives", service=found)


if __name__ == "__main__":
    main()
