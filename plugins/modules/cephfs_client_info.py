#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cephfs_client_info
short_description: Return how a host can mount CephFS, and what earlier runs left there
version_added: 0.1.0
description:
  - Looks for the kernel's client, for automounts, and for units and secrets of the role
    P(baremetal.gpu.cephfs_client#role). Works without Ceph and without a network.
options:
  set:
    description: Which of the host's sets of mounts, as the role's variable C(cephfs_client_set).
    type: str
    required: true
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See what the host can mount with
  baremetal.gpu.cephfs_client_info:
    set: mounts
  register: client
"""

RETURN = r"""
kernel:
  description: Release of the running kernel.
  returned: success
  type: str
  sample: 6.12.48+deb13-amd64
kernel_client:
  description: Whether that kernel has a client of CephFS, loaded or to be loaded.
  returned: success
  type: bool
automount:
  description: Whether a path can be mounted when it is first looked at.
  returned: success
  type: bool
written:
  description: Paths of the units and secrets of the set, sorted.
  returned: success
  type: list
  elements: str
  sample: [/etc/ceph/cephfs/mounts/client.data.secret, /etc/systemd/system/data.mount]
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mounts as ceph_mounts
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run


def main() -> None:
    module = AnsibleModule(argument_spec={"set": {"type": "str", "required": True}}, supports_check_mode=True)
    probed = host_run.run(["modprobe", "--dry-run", "--quiet", "ceph"], None, 30)
    module.exit_json(
        changed=False,
        kernel=os.uname().release,
        kernel_client=probed[0] == 0,
        automount=os.path.exists("/dev/autofs"),
        written=ceph_mounts.written(module.params["set"]),
    )


if __name__ == "__main__":
    main()
