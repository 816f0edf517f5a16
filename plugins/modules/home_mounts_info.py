#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: home_mounts_info
short_description: Return what a host mounts of homes, and what is in the way
version_added: 0.1.0
description:
  - Returns which units of the role P(baremetal.gpu.nfs_homes#role) are there, and whether a path can be mounted when it
    is first looked at.
  - Fails for O(paths) at which the host has a home of its own, which a mount would hide, and for O(homes) that do not
    answer or do not belong to their user alone.
options:
  paths:
    description: Where homes are to be mounted.
    type: list
    elements: path
    default: []
  homes:
    description: Homes that ought to be mounted.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where.
        type: path
        required: true
      uid:
        description: UID of its user.
        type: int
        required: true
      gid:
        description: GID of the user's group.
        type: int
        required: true
      kinds:
        description: Types that the mount may have. By default any.
        type: list
        elements: str
        default: []
  timeout:
    description: Seconds in which a mount must answer.
    type: int
    default: 60
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See that the homes answer
  baremetal.gpu.home_mounts_info:
    homes:
      - {path: /home/alice, uid: 2001, gid: 2001, kinds: [nfs4]}
"""

RETURN = r"""
automount:
  description: Whether a path can be mounted when it is first looked at.
  returned: success
  type: bool
nfs_client:
  description: Whether the kernel can mount NFS.
  returned: success
  type: bool
nfs_server:
  description: Whether the kernel can serve NFS.
  returned: success
  type: bool
written:
  description: Paths of the units that earlier runs wrote, sorted.
  returned: success
  type: list
  elements: str
  sample: [/etc/systemd/system/home-alice.mount]
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.homes import mounts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run

HOME = {
    "path": {"type": "path", "required": True},
    "uid": {"type": "int", "required": True},
    "gid": {"type": "int", "required": True},
    "kinds": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "homes": {"type": "list", "elements": "dict", "default": [], "options": HOME},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    problems = mounts.in_the_way(given["paths"], mounts.mounted())
    problems += mounts.wrong(given["homes"], run, given["timeout"])
    if problems:
        module.fail_json(**failure("homes", problems))
    module.exit_json(
        changed=False,
        automount=os.path.exists("/dev/autofs"),
        nfs_client=mounts.has("nfs4", "nfs", run),
        nfs_server=mounts.has("nfsd", "nfsd", run),
        written=mounts.written(),
    )


if __name__ == "__main__":
    main()
