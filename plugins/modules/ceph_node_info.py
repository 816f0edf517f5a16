#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_node_info
short_description: Return what a host already has of Ceph
version_added: 0.1.0
description:
  - Reads to which cluster a host belongs (by ceph.conf, monitors and OSDs), which release of Ceph is installed or would
    be, and the host's addresses. Works without Ceph on the host.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  from_distribution:
    description:
      - Whether Ceph comes from the distribution. Its release is then known without package lists.
    type: bool
    default: true
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look for traces of Ceph
  baremetal.gpu.ceph_node_info:
  register: node
"""

RETURN = r"""
traces:
  description: Clusters that the host belongs to, with what says so. The fsid is empty if it is unknown.
  returned: success
  type: list
  elements: dict
  sample: [{"fsid": "1d8d3c1c-5b8f-4d0e-9c0a-0d6d1f3f7a51", "where": "/etc/ceph/ceph.conf"}]
addresses:
  description: IP addresses of the host.
  returned: success
  type: list
  elements: str
hostname:
  description: What the host is called in the CRUSH map, which is its name up to the first dot.
  returned: success
  type: str
  sample: stor1
room:
  description: How much of the file system of C(/var/lib/ceph) is available, in percent.
  returned: success
  type: float
  sample: 71.3
version:
  description: Version of the packages of Ceph that are installed, otherwise the one that would be; empty if unknown.
  returned: success
  type: str
  sample: 18.2.7+ds-1+deb13u1
"""

import os
import re
import socket

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import daemon as ceph_daemon
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import distributions as ceph_distributions
from ansible_collections.baremetal.gpu.plugins.module_utils.host import net as host_net
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run


def version(from_distribution: bool) -> str:
    """What is installed, or else what the package lists offer, or else what the distribution is known to have."""
    rc, stdout = host_run.run(["apt-cache", "policy", "ceph-common"], None, 60)[:2]
    if rc == 0:
        found = dict(re.findall(r"^  (Installed|Candidate): (\S+)$", stdout, re.MULTILINE))
        known = [text for text in (found.get("Installed"), found.get("Candidate")) if text and text != "(none)"]
    else:
        rc, stdout = host_run.run(["rpm", "-q", "--queryformat", "%{VERSION}", "ceph-common"], None, 60)[:2]
        known = [stdout] if rc == 0 else []
    if known:
        return known[0]
    return ceph_distributions.packaged_release() if from_distribution else ""


def room(directory: str = "/var/lib/ceph") -> float:
    """How much of the file system is available in which the directory is, or would be; in percent, as Ceph counts."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    found = os.statvfs(directory)
    return 100.0 * found.f_bavail / found.f_blocks if found.f_blocks else 100.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "from_distribution": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    module.exit_json(
        changed=False,
        traces=ceph_daemon.traces(module.params["cluster"]),
        addresses=sorted(host_net.local_addresses()),
        hostname=socket.gethostname().partition(".")[0],
        room=round(room(), 1),
        version=version(module.params["from_distribution"]),
    )


if __name__ == "__main__":
    main()
