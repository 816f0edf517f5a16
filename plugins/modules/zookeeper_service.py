#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: zookeeper_service
short_description: Start a ZooKeeper server, and restart it only if that is due and safe for the ensemble
version_added: 0.1.0
description:
  - Starts the server of this host if it does not run, and restarts it if its files have changed. The notes say when.
  - The members are O(servers). A server that serves no clients counts as one that does not answer. All work while the
    ensemble is complete.
options:
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
extends_documentation_fragment:
  - baremetal.gpu.member_service
  - baremetal.gpu.attributes.changes
attributes:
  diff_mode:
    description: Shows what would be done or was done.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Restart followers whose configuration has changed, one after another
  baremetal.gpu.zookeeper_service:
    unit: zookeeper.service
    stamp: /run/zookeeper/started
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
  description: The ensemble as it was last seen, as M(baremetal.gpu.zookeeper_info) returns it; null if it was not read.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import member_service
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.ensemble import Ensemble


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **member_service.ARGUMENTS,
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
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["id"] not in [row["id"] for row in given["servers"]]:
        module.fail_json(msg=f"servers has no server with the id {given['id']}: list every server of the ensemble")
    ensemble = Ensemble(given["servers"], given["id"])
    try:
        done = member_service.converge(given, ensemble, host_run.run, module.check_mode)
    except Refused as wrong:
        module.fail_json(**failure(given["unit"], [wrong.problem]))
    module.exit_json(**done, ensemble=ensemble.seen)


if __name__ == "__main__":
    main()
