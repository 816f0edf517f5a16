#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: zookeeper_info
short_description: Check whether ZooKeeper servers are one complete ensemble
version_added: 0.1.0
description:
  - Queries every server with the words C(srvr) and C(mntr) over TCP, from the host on which the module runs. Returns
    the role of each and what is missing for a complete ensemble.
  - An ensemble is complete if every server serves, one leads, and the leader has all others in step. A single server
    is complete if it serves as standalone.
  - A missing server does not make the module fail. Use RV(complete) with C(failed_when).
options:
  servers:
    description: All servers of the ensemble.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Name or IP address.
        type: str
        required: true
      port:
        description: The port for clients.
        type: int
        default: 2181
  wait:
    description: Seconds to wait until the ensemble is complete. By default it checks once.
    type: int
    default: 0
  timeout:
    description: Seconds in which a server must answer.
    type: int
    default: 2
requirements:
  - On the host nothing but Python 3.9.
  - C(srvr) and C(mntr) in the C(4lw.commands.whitelist) of the servers.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Wait until all three servers are in the ensemble
  baremetal.gpu.zookeeper_info:
    servers:
      - host: zk1
      - host: zk2
      - host: zk3
    wait: 60
  register: zookeeper
  failed_when: not zookeeper.complete
"""

RETURN = r"""
complete:
  description: Whether every server serves, one leads and all others are in step with it.
  returned: success
  type: bool
quorum:
  description: Whether one server leads and a majority serves.
  returned: success
  type: bool
leader:
  description: Host and port of the leader, or of a single server; null if there is none.
  returned: success
  type: str
  sample: "zk2:2181"
problems:
  description: What is missing for a complete ensemble; empty if nothing is.
  returned: success
  type: list
  elements: str
servers:
  description:
    - What each server is. C(state) is C(serving), C(electing) (it runs and is in no quorum), C(not_allowed) (the words
      are not in its whitelist), C(strange) (something else has the port) or C(unreachable); C(why) says more.
    - C(peers) is the number of followers in step, as the leader reports it. What is not known is null.
  returned: success
  type: list
  elements: dict
  sample:
    - host: zk1
      port: 2181
      state: serving
      why: ""
      mode: leader
      version: 3.9.3
      zxid: "0x100000003"
      epoch: 1
      connections: 2
      outstanding: 0
      nodes: 5
      peers: 2
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words as zookeeper


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "servers": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "host": {"type": "str", "required": True},
                    "port": {"type": "int", "default": 2181},
                },
            },
            "wait": {"type": "int", "default": 0},
            "timeout": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    given = module.params
    seen = zookeeper.wait_until(
        lambda found: bool(found["complete"]), given["servers"], given["wait"], float(given["timeout"])
    )
    module.exit_json(changed=False, **seen)


if __name__ == "__main__":
    main()
