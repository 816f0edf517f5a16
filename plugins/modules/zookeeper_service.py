#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: zookeeper_service
short_description: Start a ZooKeeper server, and restart it only where that is due and the ensemble stands it
version_added: 0.1.0
description:
  - Starts the server of this host if it does not run.
  - A restart is due if one of O(files) is another than the one that the running server was started with, which the
    server's unit has written to O(stamp) as C(sha256sum) does.
  - A server that serves is restarted only while the ensemble is complete, and the module ends when it is complete
    again. So with C(throttle) set to 1 one server is down at a time, and after one that did not come back no other is
    touched, whoever asks.
  - A server that serves nobody may be restarted at any time.
options:
  unit:
    description: The unit of systemd.
    type: str
    default: zookeeper.service
  files:
    description: What the server reads when it starts, such as its configuration and its program.
    type: list
    elements: path
    required: true
  stamp:
    description: Where the unit writes the checksums of O(files) before it starts the server.
    type: path
    default: /run/zookeeper/started
  servers:
    description: All servers of the ensemble.
    type: list
    elements: dict
    required: true
    suboptions:
      id:
        description: The id of the server.
        type: int
        required: true
      host:
        description: Name or IP address.
        type: str
        required: true
      port:
        description: The port for clients.
        type: int
        default: 2181
  id:
    description: The id of the server of this host.
    type: int
    required: true
  only:
    description:
      - Which servers may be restarted now. V(idle) stands for those that serve nobody, V(follower) for those that do
        not lead, V(any) for all. Followers first, the leader last, and clients see one election.
    type: str
    choices: [idle, follower, any]
    default: any
  join:
    description:
      - Whether the server is empty and joins an ensemble that has data. Then the module waits until it has joined, so
        that two empty servers never elect each other.
    type: bool
    default: false
  wait:
    description: Seconds for the ensemble to be complete, before a restart and after it.
    type: int
    default: 120
requirements:
  - On the host nothing but Python 3.9, systemd and root.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows what would be done or was done.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Restart followers whose configuration has changed, one after another
  baremetal.gpu.zookeeper_service:
    id: 1
    servers:
      - {id: 1, host: zk1}
      - {id: 2, host: zk2}
      - {id: 3, host: zk3}
    files: [/etc/zookeeper/ensemble/zoo.cfg]
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
ensemble:
  description: The ensemble as it was last seen, as M(baremetal.gpu.zookeeper_info) returns it; null if nobody looked.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import node as zookeeper_node


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "zookeeper.service"},
            "files": {"type": "list", "elements": "path", "required": True},
            "stamp": {"type": "path", "default": "/run/zookeeper/started"},
            "servers": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "id": {"type": "int", "required": True},
                    "host": {"type": "str", "required": True},
                    "port": {"type": "int", "default": 2181},
                },
            },
            "id": {"type": "int", "required": True},
            "only": {"type": "str", "choices": ["idle", "follower", "any"], "default": "any"},
            "join": {"type": "bool", "default": False},
            "wait": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["id"] not in [row["id"] for row in given["servers"]]:
        module.fail_json(msg=f"servers has no server with the id {given['id']}: list every server of the ensemble")
    server = zookeeper_node.Server(given["unit"], given["servers"], given["id"], given["wait"], host_run.run)
    try:
        action, due, ensemble = zookeeper_node.step(
            server, given["only"], given["join"], given["files"], given["stamp"], module.check_mode
        )
    except Refused as wrong:
        module.fail_json(**failure(given["unit"], [wrong.problem]))
    done = {"start": "started\n", "restart": "restarted\n", "": ""}[action]
    module.exit_json(
        changed=bool(action), action=action, due=due, ensemble=ensemble, diff={"before": "", "after": done}
    )


if __name__ == "__main__":
    main()
