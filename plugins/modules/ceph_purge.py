#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_purge
short_description: Remove everything of a Ceph cluster from a host
version_added: 0.1.0
description:
  - Stops and disables the daemons, wipes the devices that are labelled as OSDs of this cluster, and removes stores,
    keys, configuration and the roles' systemd files. This destroys the data.
  - Does nothing on a host that has something of another cluster.
  - A device that is not labelled with this cluster is skipped, even if it is listed. The records of OSDs in logical
    volumes are removed; their volumes stay.
  - Packages stay.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  fsid:
    description: UUID of the cluster to remove.
    type: str
    required: true
  devices:
    description: Devices to check in addition to those on which OSDs were created.
    type: list
    elements: str
    default: []
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows what would be removed.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Take a cluster off the host, with its data
  baremetal.gpu.ceph_purge:
    fsid: 2f7c1d3e-2a64-4b6f-9d53-6f1f9f0c1a11
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [stop ceph-osd@7, wipe /dev/disk/by-id/wwn-0x5000c500a1b2c3d4]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import purge as ceph_purge
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.activate import alone_unless
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "fsid": {"type": "str", "required": True},
            "devices": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    purge = ceph_purge.Purge(given["fsid"], given["devices"], host_run.run, given["cluster"])
    try:
        with alone_unless(module.check_mode):
            steps = purge.work(module.check_mode)
    except (Refused, OSError) as error:
        module.fail_json(**failure("Ceph on this host", [ceph_module.problem_of(error, "ceph")]))
    listed = "".join(f"{step}\n" for step in steps)
    module.exit_json(changed=bool(steps), plan=steps, diff={"before": listed, "after": ""})


if __name__ == "__main__":
    main()
