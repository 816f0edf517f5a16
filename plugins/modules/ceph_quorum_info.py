#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_quorum_info
short_description: Wait for a quorum of all Ceph monitors, and return why there is none
version_added: 0.1.0
description:
  - Queries the monitor of this host, through its socket, until it is in a quorum of all monitors or O(wait) is over.
  - If there is none, it checks from this host the monitor's address and map of monitors, connections to the others'
    ports, the resolution of their names, and the clock.
  - A missing quorum does not make the module fail. Use RV(complete) with C(failed_when), so that every host is queried.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  name:
    description: Name of the monitor of this host.
    type: str
    required: true
  fsid:
    description: UUID of the cluster.
    type: str
    required: true
  monitors:
    description: All monitors of the cluster.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the monitor.
        type: str
        required: true
      address:
        description: IP address by which others reach it.
        type: str
        required: true
  wait:
    description: Seconds to wait for the quorum.
    type: int
    default: 60
  controller_time:
    description: The controller's clock in seconds since 1970, just before the task; without it clocks are not compared.
    type: float
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Wait for the quorum
  baremetal.gpu.ceph_quorum_info:
    name: stor1
    fsid: "{{ secrets.fsid }}"
    monitors: "{{ monitors }}"
    controller_time: "{{ now(utc=true).timestamp() }}"
  register: quorum
  failed_when: not quorum.complete
"""

RETURN = r"""
complete:
  description: Whether all monitors are in the quorum.
  returned: success
  type: bool
problems:
  description: What speaks against a quorum, as M(baremetal.gpu.refuse) takes it; empty if it is complete.
  returned: success
  type: list
  elements: dict
status:
  description: What the monitor said last, as C(mon_status) of its socket; null if it did not answer.
  returned: success
  type: dict
"""

import socket
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import daemon as ceph_daemon
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mon import store as ceph_monitor
from ansible_collections.baremetal.gpu.plugins.module_utils.host import net as host_net
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem


def resolved(host: str) -> list[str]:
    """The addresses of a name; none if it is not known."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(host, None)})
    except OSError:
        return []


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "name": {"type": "str", "required": True},
            "fsid": {"type": "str", "required": True},
            "monitors": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": {"type": "str", "required": True}, "address": {"type": "str", "required": True}},
            },
            "wait": {"type": "int", "default": 60},
            "controller_time": {"type": "float"},
        },
        supports_check_mode=True,
    )
    given = module.params
    begun, deadline = time.time(), time.monotonic() + given["wait"]
    names = [row["name"] for row in given["monitors"]]
    while True:
        status = ceph_daemon.mon_status(given["cluster"], given["name"])
        complete = ceph_monitor.is_complete(status, names)
        if complete or time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    problems = []
    if not complete:
        offset = begun - given["controller_time"] if given["controller_time"] else 0.0
        ports = {
            (row["address"], port): ceph_monitor.connects(row["address"], port)
            for row in given["monitors"]
            for port in (ceph_conf.MSGR2_PORT, ceph_conf.MSGR1_PORT)
        }
        cause = f"after {given['wait']} s the {len(names)} monitors have no quorum of all"
        problems = [Problem("no_quorum", f"mon.{given['name']}", cause)]
        problems += ceph_monitor.diagnose(
            given["name"],
            given["fsid"],
            given["monitors"],
            status,
            host_net.local_addresses(),
            ports,
            {name: resolved(name) for name in names},
            offset,
        )
    module.exit_json(
        changed=False, complete=complete, problems=[problem.as_dict() for problem in problems], status=status
    )


if __name__ == "__main__":
    main()
