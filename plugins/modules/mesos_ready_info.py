#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_ready_info
short_description: Check whether masters, an agent or Marathons are ready
version_added: 0.1.0
description:
  - Masters are ready if each has a replicated log that has caught up and one of them leads. Marathons are ready if each
    knows their leader, and the leading master has that one as a connected framework.
  - An agent is ready if the leading master has it under its id and connected, deactivated or not, and its O(unit) stays
    up. The agent's own metrics do not prove that.
options:
  unit:
    description: Unit of this host, which must have been up for ten seconds; empty to skip that.
    type: str
    default: ""
  work_dir:
    description:
      - Directory of this host's agent. With it, an agent that the masters have marked gone is named as that. It ends
        with 0 and keeps an id that no master takes any more.
    type: path
  wait:
    description: Seconds to wait until they are ready.
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
            "work_dir": {"type": "path"},
            "wait": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        unit = host_units.Unit(given["unit"], host_run.run) if given["unit"] else None
        cluster = mesos_arguments.members(given, unit)
    except Failed as wrong:
        module.fail_json(**failure(module.params["program"], [wrong.problem]))
    module.exit_json(changed=False, **cluster.wait_until(lambda seen: bool(seen["complete"]), given["wait"]))


if __name__ == "__main__":
    main()
