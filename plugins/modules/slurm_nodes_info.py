#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_nodes_info
short_description: Return the state of the nodes of a Slurm cluster
version_added: 0.1.0
description:
  - Queries slurmctld for its nodes. If it does not answer, the nodes are those of O(config), and each counts as busy.
options:
  names:
    description: The nodes to wait for; by default none.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds to wait until all of O(names) are in service.
    type: int
    default: 0
  config:
    description: The configuration of slurmctld.
    type: path
    default: /etc/slurm/slurm.conf
requirements:
  - On the host Python 3.9, and C(scontrol) for an answer.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Wait until a node is in service
  baremetal.gpu.slurm_nodes_info:
    names: [node1]
    wait: 60
  register: slurm
"""

RETURN = r"""
answered:
  description: Whether slurmctld answered.
  returned: success
  type: bool
in_service:
  description: Whether all of O(names) are in service. A node that is drained is, too.
  returned: success
  type: bool
nodes:
  description:
    - The nodes by name. C(state) and C(reason) as Slurm has them, C(gres), C(busy) (whether it has jobs) and
      C(in_service).
  returned: success
  type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state

POLL_S = 1.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "default": []},
            "wait": {"type": "int", "default": 0},
            "config": {"type": "path", "default": "/etc/slurm/slurm.conf"},
        },
        supports_check_mode=True,
    )
    given = module.params
    deadline = time.monotonic() + given["wait"]
    while True:
        answer = state.nodes(run)
        found = answer if answer is not None else state.configured(given["config"])
        in_service = all(found.get(name, {}).get("in_service") for name in given["names"])
        if in_service or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    module.exit_json(changed=False, answered=answer is not None, in_service=in_service, nodes=found)


if __name__ == "__main__":
    main()
