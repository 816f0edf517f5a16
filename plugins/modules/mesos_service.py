#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_service
short_description: Start a master, an agent or a Marathon, and restart it only where that is due and the others stand it
version_added: 0.1.0
description:
  - Starts the program of this host if it does not run.
  - A restart is due if one of O(files) is another than the one that the running program was started with, which its
    unit has written to O(stamp) as C(sha256sum) does.
  - One that answers is restarted only while all of O(members) do their work, and the module ends when all do again. So
    with C(throttle) set to 1 one is down at a time, and after one that did not come back no other is touched, whoever
    asks. A program that does not answer may be restarted at any time.
options:
  unit:
    description: The unit of systemd.
    type: str
    required: true
  files:
    description: What the program reads when it starts, such as its settings.
    type: list
    elements: path
    required: true
  stamp:
    description: Where the unit writes the checksums of O(files) before it starts the program.
    type: path
    required: true
  own:
    description: The name of this host among them.
    type: str
    required: true
  only:
    description:
      - Which may be restarted now. V(idle) stands for those that do not answer, V(follower) for those that do not lead,
        V(any) for all.
    type: str
    choices: [idle, follower, any]
    default: any
  join:
    description: Whether this one has to do its work before the module ends, as an empty master among others has to.
    type: bool
    default: false
  may_restart:
    description:
      - Command that tells whether a program that runs may be restarted. With another exit status than 0 it is left
        alone, and what the command prints says why.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds for all to do their work, before a restart and after it.
    type: int
    default: 120
requirements:
  - On the host nothing but Python 3.9, systemd and root.
attributes:
  diff_mode:
    description: Shows what would be done or was done.
extends_documentation_fragment:
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

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import watch as mesos_watch


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **mesos_arguments.MEMBERS,
            "unit": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "path", "required": True},
            "stamp": {"type": "path", "required": True},
            "own": {"type": "str", "required": True},
            "only": {"type": "str", "choices": ["idle", "follower", "any"], "default": "any"},
            "join": {"type": "bool", "default": False},
            "may_restart": {"type": "list", "elements": "str", "default": []},
            "wait": {"type": "int", "default": 120},
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
        cluster = mesos_arguments.members(given)
        held = mesos_watch.asked(given["may_restart"], host_run.run)
        service = mesos_watch.Service(given["unit"], given["own"], cluster, given["wait"], host_run.run, held)
        action, due = service.step(given["only"], given["join"], given["files"], given["stamp"], module.check_mode)
    except Refused as wrong:
        module.fail_json(**failure(f"{given['unit']} on {given['own']}", [wrong.problem]))
    done = {"start": "started\n", "restart": "restarted\n", "": ""}[action]
    module.exit_json(changed=bool(action), action=action, due=due, diff={"before": "", "after": done})


if __name__ == "__main__":
    main()
