#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_room_info
short_description: Return what keeps a service from a host, its ports and the space for it
version_added: 0.1.0
description:
  - Names ports on which another program listens, and directories with too little space.
  - Contacts no other host.
options:
  ports:
    description: Ports that the service needs.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The number.
        type: int
        required: true
      unit:
        description: The unit of systemd whose port it is, or how the names of such units begin.
        type: str
        required: true
      setting:
        description: The variable with which another port is chosen.
        type: str
        default: ""
  spaces:
    description: What is to be installed.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where. It need not be there.
        type: path
        required: true
      mib:
        description: How much of it there is, in MiB.
        type: int
        required: true
      what:
        description: What it is, for people.
        type: str
        required: true
      unless:
        description: Where this is there, it is installed already.
        type: path
requirements:
  - On the host nothing but Python 3.9, and root to see who holds a port.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Check for another web server
  baremetal.gpu.host_room_info:
    ports:
      - {port: 443, unit: baremetal-gpu-portal, setting: portal_port}
    spaces:
      - {path: /opt, mib: 1500, what: the portal}
"""

RETURN = r"""
problems:
  description: What is in the way, each with C(code), C(subject), C(cause), C(evidence) and C(remedy).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import room

PORT = {
    "port": {"type": "int", "required": True},
    "unit": {"type": "str", "required": True},
    "setting": {"type": "str", "default": ""},
}
SPACE = {
    "path": {"type": "path", "required": True},
    "mib": {"type": "int", "required": True},
    "what": {"type": "str", "required": True},
    "unless": {"type": "path"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "ports": {"type": "list", "elements": "dict", "default": [], "options": PORT},
            "spaces": {"type": "list", "elements": "dict", "default": [], "options": SPACE},
        },
        supports_check_mode=True,
    )
    problems = room.taken_ports(module.params["ports"]) + room.too_small(module.params["spaces"])
    module.exit_json(changed=False, problems=[problem.as_dict() for problem in problems])


if __name__ == "__main__":
    main()
