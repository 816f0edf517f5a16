#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_node_info
short_description: Return what a host already has of Mesos or Marathon
version_added: 0.1.0
description:
  - Reads a program's last settings, what an agent or a master has on disk, how cgroups are mounted, the resources to
    offer, and what would keep a new program from working.
  - Works without Mesos on the host, and contacts no other host.
options:
  environment_file:
    description: The file with the settings of the program.
    type: path
    required: true
  work_dir:
    description: The program's directory, if it has one. A directory in its settings takes precedence.
    type: str
    default: ""
  unit:
    description: The unit of systemd.
    type: str
    required: true
  ports:
    description: Ports that the program needs.
    type: list
    elements: int
    default: []
  stamp:
    description: The file with the checksums that the unit writes when it starts the program, if it does.
    type: path
  names:
    description: Names or addresses that must resolve on this host.
    type: list
    elements: str
    default: []
  files:
    description: Files whose existence is returned.
    type: list
    elements: path
    default: []
requirements:
  - On the host nothing but Python 3.9, and root to see who holds a port.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look whether the host has an agent that will come back under its id
  baremetal.gpu.mesos_node_info:
    environment_file: /etc/mesos-agent.env
    work_dir: /var/lib/mesos/agent
    unit: mesos-agent.service
    ports: [5051]
  register: node
"""

RETURN = r"""
environment:
  description: The variables that the program was given last, without those that may be secrets.
  returned: success
  type: dict
running:
  description: Whether the unit is active.
  returned: success
  type: bool
stale:
  description: >-
    Whether the program runs, and was started with other settings than those in O(environment_file); false without
    O(stamp).
  returned: success
  type: bool
executors:
  description: >-
    How many processes of the agent's executors live that were started with each C(off), C(downgrade) or C(required) of
    TLS.
  returned: success
  type: dict
  sample: {"off": 2}
agent_id:
  description: The id that an agent comes back with; null without a checkpoint.
  returned: success
  type: str
rebooted:
  description: Whether the host has booted since the agent last recovered.
  returned: success
  type: bool
has_log:
  description: Whether there is a replicated log of a master.
  returned: success
  type: bool
cgroups:
  description: How cgroups are mounted. C(v1), C(v2), C(hybrid) or C(none).
  returned: success
  type: str
cpus:
  description: Processors of the host.
  returned: success
  type: int
memory_mib:
  description: Memory of the host in MiB.
  returned: success
  type: int
disk_mib:
  description: Size of the file system of O(work_dir) in MiB.
  returned: success
  type: int
resolved:
  description: Addresses of each name as this host resolves it.
  returned: success
  type: dict
own_ip:
  description: Of each name the address that is this host's own, null if there is none that others can reach.
  returned: success
  type: dict
held_ports:
  description: Ports on which something else listens, with name and pid of its process.
  returned: success
  type: dict
device_directories:
  description: Directories among the NVIDIA device nodes, at which the launch of a container fails.
  returned: success
  type: list
  elements: str
files:
  description: Of O(files) those that are there.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import net as host_net
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host import units as host_units
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.memory import memory_mib
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import node as mesos_node


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "environment_file": {"type": "path", "required": True},
            "work_dir": {"type": "str", "default": ""},
            "unit": {"type": "str", "required": True},
            "ports": {"type": "list", "elements": "int", "default": []},
            "stamp": {"type": "path"},
            "names": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    environment = mesos_node.environment(read_text(given["environment_file"]))
    work_dir = environment.get("MESOS_WORK_DIR") or given["work_dir"]
    resolved = {name: host_net.resolve(name) for name in given["names"]}
    running = host_units.Unit(given["unit"], host_run.run).is_running()
    checkpoint = mesos_node.checkpoint(work_dir)
    module.exit_json(
        changed=False,
        environment=environment,
        running=running,
        stale=running and bool(given["stamp"]) and mesos_node.is_stale(given["environment_file"], given["stamp"]),
        executors=mesos_node.executors(work_dir, checkpoint["agent_id"]),
        **checkpoint,
        has_log=mesos_node.has_log(work_dir),
        cgroups=mesos_node.cgroups(),
        cpus=os.cpu_count() or 1,
        memory_mib=memory_mib(),
        disk_mib=mesos_node.disk_mib(work_dir or "/"),
        resolved=resolved,
        own_ip=mesos_node.own_addresses(resolved, host_net.local_addresses()),
        held_ports=host_net.held_ports(given["ports"], given["unit"]),
        device_directories=mesos_node.device_directories(),
        files=[path for path in given["files"] if os.path.exists(path)],
    )


if __name__ == "__main__":
    main()
