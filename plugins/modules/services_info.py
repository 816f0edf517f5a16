#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: services_info
short_description: Return which services of a host do not work
version_added: 0.1.0
description:
  - Looks whether units of systemd are active, and whether something answers at their ports of the loopback address.
options:
  part:
    description: What the services are for, such as C(registry). It is returned as it is.
    type: str
    required: true
  host:
    description: What the host is called in problems.
    type: str
    required: true
  services:
    description: The services.
    type: list
    elements: dict
    required: true
    suboptions:
      unit:
        description: The unit.
        type: str
        required: true
      port:
        description: A port at which it answers.
        type: int
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look whether Prometheus works
  baremetal.gpu.services_info:
    part: monitoring
    host: "{{ inventory_hostname }}"
    services:
      - {unit: prometheus.service, port: 9090}
"""

RETURN = r"""
part:
  description: What was given.
  returned: success
  type: str
problems:
  description: What does not work, each with C(code), C(subject), C(cause), C(evidence) and C(remedy).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import services
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run

SERVICE = {"unit": {"type": "str", "required": True}, "port": {"type": "int"}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "part": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "services": {"type": "list", "elements": "dict", "required": True, "options": SERVICE},
        },
        supports_check_mode=True,
    )
    found = services.problems(module.params["services"], module.params["host"], run)
    module.exit_json(changed=False, part=module.params["part"], problems=[problem.as_dict() for problem in found])


if __name__ == "__main__":
    main()
