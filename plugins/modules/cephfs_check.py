#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cephfs_check
short_description: See that CephFS mounts answer, and that data written there stay and quotas hold
version_added: 0.1.0
description:
  - Looks at each mount, which mounts it where systemd does so at the first look, and tells those that are no CephFS or
    do not answer in time.
  - In O(probe) it writes a file, has it on the disks (fsync), reads it back past the cache and compares its SHA-256,
    then writes until the quota refuses. It leaves nothing behind there.
options:
  mounts:
    description: Paths that must be mounted.
    type: list
    elements: path
    default: []
  probe:
    description: A mount with a small quota that nobody else uses.
    type: path
  most:
    description: Bytes after which a quota that has refused nothing counts as not kept.
    type: int
    default: 1073741824
  timeout:
    description: Seconds that a mount has to answer.
    type: int
    default: 60
attributes:
  check_mode:
    description: In check mode only O(mounts) are looked at, and nothing is written.
    support: full
  diff_mode:
    description: Nothing is changed, so there is nothing to show.
    support: none
  platform:
    description: Where the module runs.
    support: full
    platforms: linux
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See that the homes answer
  baremetal.gpu.cephfs_check:
    mounts: [/home/alice, /home/bob]
"""

RETURN = r"""
mounts:
  description: The type of each mount, V(ceph) for the kernel's client and V(fuse.ceph-fuse) for the other one.
  returned: success
  type: dict
  sample: {/home/alice: ceph}
sha256:
  description: Of what was written and read back.
  returned: if there is a probe
  type: str
refused_after:
  description: Bytes that the quota let through.
  returned: if there is a probe
  type: int
"""

import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils import ceph_probe


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "mounts": {"type": "list", "elements": "path", "default": []},
            "probe": {"type": "path"},
            "most": {"type": "int", "default": 1 << 30},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    probe = given["probe"]
    paths = [*given["mounts"], *([probe] if probe else [])]
    problems = ceph_probe.unanswered(paths, given["timeout"])
    kinds = ceph_probe.mounted()
    problems += [f"{path} is no CephFS mount" for path in paths if path not in kinds and path not in " ".join(problems)]
    if problems:
        module.fail_json(
            msg="; ".join(problems)
            + ". To do: see 'systemctl status' and 'journalctl -u' of the mount's unit, that the "
            "monitors' ports 3300 and 6789 can be reached, and that the key may do this"
        )
    result: dict[str, Any] = {"changed": False, "mounts": {path: kinds[path] for path in paths}}
    if probe and not module.check_mode:
        try:
            result.update(ceph_probe.prove(probe, socket.gethostname(), given["most"], given["timeout"]))
        except ceph_probe.Failed as error:
            module.fail_json(msg=f"{probe}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
