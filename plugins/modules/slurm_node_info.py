#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_node_info
short_description: Return what a host brings to a Slurm cluster
version_added: 0.1.0
description:
  - Reads the host's processors, memory and name, which release of Slurm it has or would get from its package sources,
    and what would keep it from working in a cluster. Works without Slurm on the host.
options:
  controller_time:
    description: The time of the Ansible controller in seconds since 1970, to compare the host's clock with.
    type: float
  config:
    description: The directory of a C(slurm.conf) and a C(gres.conf) whose lines of nodes are returned.
    type: path
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look at a host of the cluster
  baremetal.gpu.slurm_node_info:
    controller_time: "{{ now().timestamp() }}"
  register: slurm_node
"""

RETURN = r"""
hostname:
  description: The host's name up to the first dot, by which Slurm's daemons know themselves.
  returned: success
  type: str
processors:
  description:
    - C(sockets), C(cores_per_socket), C(threads_per_core), and C(cores), the numbers of the CPUs of each core in the
      order in which Slurm counts cores.
  returned: success
  type: dict
memory_mib:
  description: Memory of the host in MiB.
  returned: success
  type: int
installed:
  description: Version of Slurm that is installed; empty without one.
  returned: success
  type: str
candidate:
  description:
    - Version of Slurm that the package sources offer; empty where they have none, null where apt has not read them yet.
  returned: success
  type: str
distribution:
  description: Name and version of the distribution.
  returned: success
  type: str
  sample: debian 13
users:
  description: C(uid) and C(gid) of the users slurm and munge; null without one.
  returned: success
  type: dict
clock_ahead_s:
  description: Seconds by which the host's clock is ahead of O(controller_time); null without that.
  returned: success
  type: float
node_lines:
  description:
    - Of each node the lines of C(slurm.conf) and C(gres.conf) that begin with its name alone; empty without O(config).
  returned: success
  type: dict
  sample:
    node1: {slurm_conf: [NodeName=node1 RealMemory=64000 State=UNKNOWN], gres_conf: []}
"""

import socket
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.memory import memory_mib
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import node as slurm_node
from ansible_collections.baremetal.gpu.plugins.module_utils.system.release import os_release


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "controller_time": {"type": "float"},
            "config": {"type": "path"},
        },
        supports_check_mode=True,
    )
    now, given, release = time.time(), module.params, os_release()
    module.exit_json(
        changed=False,
        hostname=socket.gethostname().split(".")[0],
        processors=slurm_node.processors(),
        memory_mib=memory_mib(),
        installed=slurm_node.installed_version(),
        candidate=slurm_node.candidate_version(),
        distribution=f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip(),
        users={name: slurm_node.user(name) for name in ("slurm", "munge")},
        clock_ahead_s=None if given["controller_time"] is None else round(now - given["controller_time"], 1),
        node_lines=slurm_node.node_lines(given["config"]) if given["config"] else {},
    )


if __name__ == "__main__":
    main()
