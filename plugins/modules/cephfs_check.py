#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cephfs_check
short_description: Check that CephFS mounts answer, keep written data and enforce quotas
version_added: 0.1.0
description:
  - Accesses each mount, which also triggers automounts, and names those that are not CephFS or do not answer in time.
  - Mounts O(scratch) for a moment, writes a file there, syncs it to the disks (fsync), reads it back past the cache and
    compares its SHA-256. With O(scratch_quota) it then writes until the quota refuses. It removes the files and the
    mount, also those of an interrupted run.
options:
  mounts:
    description: Paths that must be mounted.
    type: list
    elements: path
    default: []
  scratch:
    description: A directory of CephFS with a small quota, and how to mount it.
    type: dict
    suboptions:
      subpath:
        description: The directory.
        type: str
        required: true
      client:
        description: Name of the key, without C(client.).
        type: str
        required: true
      secret:
        description: The secret of that key.
        type: str
        required: true
      filesystem:
        description: Name of the file system.
        type: str
        default: cephfs
      monitors:
        description: Addresses of the monitors, as in C(mon_host) of ceph.conf.
        type: list
        elements: str
        required: true
      fsid:
        description: UUID of the cluster.
        type: str
        default: ""
      kernel:
        description: Whether the kernel mounts it, and not ceph-fuse.
        type: bool
        default: false
      ms_mode:
        description: How the kernel's client talks to the cluster.
        type: str
        default: prefer-crc
  scratch_quota:
    description: Whether to write in O(scratch) until its quota refuses.
    type: bool
    default: false
  most:
    description: Bytes after which a quota that has refused nothing counts as not enforced.
    type: int
    default: 1073741824
  timeout:
    description: Seconds in which a mount must answer.
    type: int
    default: 60
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode only O(mounts) are looked at. Nothing is mounted or written.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See that the homes answer
  baremetal.gpu.cephfs_check:
    mounts: [/home/alice, /home/bob]

- name: Write as a client does, read it back, and be refused by a quota
  baremetal.gpu.cephfs_check:
    scratch:
      subpath: /volumes/_nogroup/scratch/5d02
      client: scratch
      secret: "{{ scratch_secret }}"
      monitors: [10.0.0.11, 10.0.0.12, 10.0.0.13]
    scratch_quota: true
"""

RETURN = r"""
mounts:
  description: The type of each mount, V(ceph) for the kernel's client and V(fuse.ceph-fuse) for the other one.
  returned: success
  type: dict
  sample: {/home/alice: ceph}
sha256:
  description: Of what was written and read back.
  returned: if something was
  type: str
refused_after:
  description: Bytes that the quota let through.
  returned: if the quota was tried
  type: int
"""

import socket
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import probe as ceph_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import scratch_mount
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure

SCRATCH = {
    "subpath": {"type": "str", "required": True},
    "client": {"type": "str", "required": True},
    "secret": {"type": "str", "required": True, "no_log": True},
    "filesystem": {"type": "str", "default": "cephfs"},
    "monitors": {"type": "list", "elements": "str", "required": True},
    "fsid": {"type": "str", "default": ""},
    "kernel": {"type": "bool", "default": False},
    "ms_mode": {"type": "str", "default": "prefer-crc"},
}


def look(paths: list[str], timeout: int) -> tuple[dict[str, str], list[str]]:
    """The types of mounts, and what is wrong with them."""
    problems = ceph_probe.unanswered(paths, timeout)
    kinds = ceph_probe.mounted()
    problems += [
        f"{path} is not a CephFS mount" for path in paths if path not in kinds and path not in " ".join(problems)
    ]
    return {path: kinds[path] for path in paths if path in kinds}, problems


def prove(scratch: dict[str, Any], most: int, timeout: int) -> dict[str, Any]:
    """What was written and refused in the scratch directory."""
    with scratch_mount.mounted(scratch, {**scratch, "timeout": timeout}) as where:
        # Filling it up may take as long as the first file, which may have to wait for room.
        most_time = 2 * (timeout + ceph_probe.LATE)
        return scratch_mount.within(most_time, lambda: ceph_probe.prove(where, socket.gethostname(), most, timeout))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "mounts": {"type": "list", "elements": "path", "default": []},
            "scratch": {"type": "dict", "options": SCRATCH},
            "scratch_quota": {"type": "bool", "default": False},
            "most": {"type": "int", "default": 1 << 30},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    mounts, problems = look(given["mounts"], given["timeout"])
    if problems:
        remedy = (
            "see 'systemctl status' and 'sudo journalctl -u' of the mount's unit, that the monitors' ports 3300 and "
            "6789 "
            "can be reached, and that the key may do this"
        )
        problem = Problem("mount_not_answering", "cephfs", "; ".join(problems), remedy=remedy)
        module.fail_json(**failure("mounts of CephFS", [problem]))
    result: dict[str, Any] = {"changed": False, "mounts": mounts}
    scratch = given["scratch"]
    if scratch and not module.check_mode:
        try:
            result.update(prove(scratch, given["most"] if given["scratch_quota"] else 0, given["timeout"]))
        except (ceph_probe.Failed, OSError) as error:
            subject = (
                f"this host does not count as a working client: {scratch['subpath']} of {scratch['filesystem']} "
                f"as client.{scratch['client']}"
            )
            module.fail_json(**failure(subject, [ceph_module.problem_of(error, "cephfs")]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
