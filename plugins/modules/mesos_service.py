#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_service
short_description: Start a master, an agent or a Marathon, and restart it only if that is due and safe for the others
version_added: 0.1.0
description:
  - Starts the program of this host if it does not run, and restarts it if its files have changed. The notes say when.
options:
  own:
    description: The name of this host among them.
    type: str
    required: true
attributes:
  diff_mode:
    description: Shows what would be done or was done.
extends_documentation_fragment:
  - baremetal.gpu.member_service
  - baremetal.gpu.mesos_members
  - baremetal.gpu.attributes.changes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Restart masters whose settings have changed, one after another, but not the one that leads
  baremetal.gpu.mesos_service:
    program: master
    unit: mesos-master.service
    files: [/etc/baremetal-gpu/mesos-master.env]
    stamp: /run/mesos-master/started
    members:
      - {name: master1, url: "http://master1:5050"}
      - {name: master2, url: "http://master2:5050"}
      - {name: master3, url: "http://master3:5050"}
    own: master1
    only: follower
  throttle: 1
"""

RETURN = r"""
action:
  description: What was done, or would be in check mode. C(start), C(restart), or empty.
  returned: success
  type: str
due:
  description: Whether a restart is due still, because O(only) left it for later.
  returned: success
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import member_service
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **member_service.ARGUMENTS,
            **mesos_arguments.MEMBERS,
            "own": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["own"] not in [row["name"] for row in given["members"]]:
        module.fail_json(msg=f"members has no {given['own']}: list it too")
    if module.check_mode and given["ca_file"] and not os.path.exists(given["ca_file"]):
        # It would have been brought before.
        given = {**given, "ca_file": None}
    try:
        done = member_service.converge(given, mesos_arguments.members(given), host_run.run, module.check_mode)
    except Refused as wrong:
        module.fail_json(**failure(f"{given['unit']} on {given['own']}", [wrong.problem]))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
