#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: zookeeper_node_info
short_description: Return what a host already has of ZooKeeper
version_added: 0.1.0
description:
  - Reads a host's id and data, its server's configuration, and what would keep a new server from working, such as names
    that do not resolve, ports in use, and memory. Works without ZooKeeper on the host.
options:
  data_dir:
    description: Directory of snapshots and of the id, C(dataDir).
    type: path
    required: true
  log_dir:
    description: Directory of transaction logs, C(dataLogDir); empty if they are with the snapshots.
    type: str
    default: ""
  configs:
    description: Possible paths of the configuration; the first that exists counts.
    type: list
    elements: path
    default: []
  unit:
    description: The unit of systemd whose processes may hold the ports.
    type: str
    default: zookeeper.service
  ports:
    description: Ports that the server needs.
    type: list
    elements: int
    default: []
  names:
    description: Names or addresses of all servers, which must resolve on this host.
    type: list
    elements: str
    default: []
requirements:
  - On the host nothing but Python 3.9, and root to see who holds a port.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look for an id and data of ZooKeeper
  baremetal.gpu.zookeeper_node_info:
    data_dir: /var/lib/zookeeper
    configs: [/etc/zookeeper/conf/zoo.cfg]
    ports: [2181, 2888, 3888]
    names: [zk1, zk2, zk3]
  register: node
"""

RETURN = r"""
id:
  description: The id in C(myid); null without one.
  returned: success
  type: int
has_data:
  description: Whether a server has run with these directories, or with those of its configuration.
  returned: success
  type: bool
data_dir:
  description: The directory that the id was read from.
  returned: success
  type: str
current:
  description:
    - What the server's configuration says. C(path), C(data_dir), C(log_dir), C(servers) (addresses by id) and
      C(quorum_auth) (C(off), C(offered), C(sent) or C(required)). Empty without one.
  returned: success
  type: dict
resolved:
  description: Addresses of each name as this host resolves it.
  returned: success
  type: dict
addresses:
  description: IP addresses of the host.
  returned: success
  type: list
  elements: str
held_ports:
  description: Ports on which something else listens, with name and pid of its process.
  returned: success
  type: dict
  sample: {"2181": "java (pid 815)"}
memory_mib:
  description: Memory of the host in MiB.
  returned: success
  type: int
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import net as host_net
from ansible_collections.baremetal.gpu.plugins.module_utils.host.memory import memory_mib
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import node as zookeeper_node


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data_dir": {"type": "path", "required": True},
            "log_dir": {"type": "str", "default": ""},
            "configs": {"type": "list", "elements": "path", "default": []},
            "unit": {"type": "str", "default": "zookeeper.service"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "names": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    current = zookeeper_node.current(given["configs"])
    data_dir = current.get("data_dir") or given["data_dir"]
    kept = zookeeper_node.kept_id(data_dir)
    module.exit_json(
        changed=False,
        id=kept if kept is not None else zookeeper_node.kept_id(given["data_dir"]),
        has_data=zookeeper_node.has_data(given["data_dir"], given["log_dir"], data_dir, current.get("log_dir") or ""),
        data_dir=data_dir,
        current=current,
        resolved={name: host_net.resolve(name) for name in given["names"]},
        addresses=sorted(host_net.local_addresses()),
        held_ports=host_net.held_ports(given["ports"], given["unit"]),
        memory_mib=memory_mib(),
    )


if __name__ == "__main__":
    main()
