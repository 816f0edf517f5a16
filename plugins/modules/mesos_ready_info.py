#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_ready_info
short_description: Tell whether masters, an agent or Marathons do their work
version_added: 0.1.0
description:
  - Masters do where each has a replicated log that has caught up and one of them leads, and Marathons where each knows
    the one that leads, which the leading master has as a connected framework.
  - An agent does where the leading master has it under its id and connected, deactivated or not, and its O(unit) stays
    up. What the agent tells of itself is no proof of that.
options:
  unit:
    description: The unit of this host, which has to have been up for ten seconds. Empty for no look at it.
    type: str
    default: ""
  wait:
    description: Seconds that they have.
    type: int
    default: 0
requirements:
  - On the host nothing but Python 3.9.
attributes:
  platform:
    platforms: posix
extends_documentation_fragment:
  - baremetal.gpu.mesos_members
  - baremetal.gpu.attributes.looks
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Wait until one master leads and the others follow
  baremetal.gpu.mesos_ready_info:
    program: master
    members:
      - {name: master1, url: "http://master1:5050"}
      - {name: master2, url: "http://master2:5050"}
      - {name: master3, url: "http://master3:5050"}
    wait: 60
  register: masters
  failed_when: not masters.complete
"""

RETURN = r"""
complete:
  description: Whether all do their work.
  returned: success
  type: bool
leader:
  description: URL of the one that leads, null if it is not exactly one. Of an agent its own, where it is registered.
  returned: success
  type: str
problems:
  description: What is missing; empty if nothing is.
  returned: success
  type: list
  elements: str
members:
  description: Of each C(name), C(url), whether it answers (C(up)), C(leads), and can do its part (C(ready)).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host import units as host_units
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **mesos_arguments.MEMBERS,
            "unit": {"type": "str", "default": ""},
            "wait": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        age = host_units.Unit(given["unit"], host_run.run).up_s if given["unit"] else None
        cluster = mesos_arguments.members(given, age)
    except Failed as wrong:
        module.fail_json(**failure(module.params["program"], [wrong.problem]))
    module.exit_json(changed=False, **cluster.wait_until(lambda seen: bool(seen["complete"]), given["wait"]))


if __name__ == "__main__":
    main()
