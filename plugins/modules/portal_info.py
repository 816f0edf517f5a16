#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: portal_info
short_description: Check whether the portal of a host works
version_added: 0.1.0
description:
  - Asks the hub and the proxy of the portal whether they answer, and reads how many sessions the hub has written down.
  - Run it as root on the host of the portal. What is wrong does not make the module fail; see RV(problems).
options:
  hub_port:
    description: The port of the hub.
    type: int
    default: 8081
  port:
    description: The port of the proxy.
    type: int
    default: 443
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Check the portal
  baremetal.gpu.portal_info:
  register: portal
  failed_when: portal.problems | length > 0
"""

RETURN = r"""
hub:
  description: Whether the hub answers.
  returned: success
  type: bool
proxy:
  description: Whether the proxy answers.
  returned: success
  type: bool
sessions:
  description: How many sessions run (C(run)) and wait (C(wait)); null where the hub does not tell.
  returned: success
  type: dict
  sample: {"run": 3, "wait": 1}
problems:
  description: What is wrong, each with C(code), C(subject), C(cause), C(evidence) and C(remedy).
  returned: success
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import portal


def main() -> None:
    module = AnsibleModule(
        argument_spec={"hub_port": {"type": "int", "default": 8081}, "port": {"type": "int", "default": 443}},
        supports_check_mode=True,
    )
    found = portal.condition(module.params["hub_port"], module.params["port"], portal.TOLD)
    module.exit_json(changed=False, **portal.summary(found, time.time()))


if __name__ == "__main__":
    main()
