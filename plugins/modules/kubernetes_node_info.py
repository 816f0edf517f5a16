#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_node_info
short_description: Return which pod has which GPU of a node of Kubernetes, and problems of the host
version_added: 0.1.0
description:
  - Returns which pod has which GPU, as kubelet has reported to the program that gives them to pods.
  - Returns the problems of the host, each with a remedy. Kubelet does not run, or a certificate has ended or ends soon.
options:
  host:
    description: What the host is called in problems.
    type: str
    required: true
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look which pod has which GPU, and for problems of the host
  baremetal.gpu.kubernetes_node_info:
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
leases:
  description:
    - Pods with GPUs, each with C(namespace), C(name) and C(gpus), the UUIDs. Empty where none was reported for five
      minutes.
  returned: success
  type: list
  elements: dict
problems:
  description: What is wrong, each with C(code), C(subject), C(cause), C(evidence) and C(remedy).
  returned: success
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import node


def main() -> None:
    module = AnsibleModule(argument_spec={"host": {"type": "str", "required": True}}, supports_check_mode=True)
    found = node.problems(module.params["host"], run, time.time())
    module.exit_json(changed=False, leases=node.leases(), problems=[problem.as_dict() for problem in found])


if __name__ == "__main__":
    main()
