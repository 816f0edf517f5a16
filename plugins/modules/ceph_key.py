#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_key
short_description: Keep a key of Ceph and its capabilities
version_added: 0.1.0
description:
  - Creates a key and keeps its capabilities and, with O(path), the file in which a client or daemon finds it.
  - Capabilities are compared by what they grant. Their order and blanks do not matter.
  - The secret never appears on a command line, in the diff or in what the module returns.
options:
  name:
    description: Name of the key with its kind, such as V(client.alice).
    type: str
    required: true
  state:
    description: Whether the key exists. With V(absent) its users lose access, and the file at O(path) is removed.
    type: str
    choices: [present, absent]
    default: present
  caps:
    description: Capabilities by kind of daemon. If unset, the current ones stay.
    type: dict
  secret:
    description:
      - The secret of a new key. By default Ceph generates one.
      - If the key exists with another secret, the module refuses.
    type: str
  path:
    description: A file for the key.
    type: path
  format:
    description: Whether the file is a V(keyring), as most programs need it, or has the V(secret) alone.
    type: str
    choices: [keyring, secret]
    default: keyring
  owner:
    description: User to whom the file belongs.
    type: str
    default: root
  group:
    description: Group of the file. By default that of the user.
    type: str
  mode:
    description: Mode of the file. One that lets others read it is refused.
    type: str
    default: "0600"
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
seealso:
  - module: baremetal.gpu.ceph_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: A key that may write one directory
  baremetal.gpu.ceph_key:
    name: client.datasets
    caps:
      mon: allow r
      mds: allow rw path=/datasets
      osd: allow rw pool=cephfs_data
    path: /etc/ceph/ceph.client.datasets.keyring

- name: Take the key away
  baremetal.gpu.ceph_key:
    name: client.datasets
    state: absent
    path: /etc/ceph/ceph.client.datasets.keyring
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [make the key client.datasets, write /etc/ceph/ceph.client.datasets.keyring]
caps:
  description: What the key may do.
  returned: if the state is present
  type: dict
"""

import grp
import os
import pwd
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import key as ceph_key
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def owner_of(module: AnsibleModule) -> tuple[int, int, int]:
    """User, group and mode of the file."""
    owner, group = module.params["owner"], module.params["group"]
    try:
        user = pwd.getpwnam(owner)
        gid = grp.getgrnam(group).gr_gid if group else user.pw_gid
        mode = int(module.params["mode"], 8)
    except KeyError:
        raise Refused(f"the host has no user {owner} or no group {group}", "make them first") from None
    except ValueError:
        raise Refused(f"mode {module.params['mode']!r} is not octal", "write it as in '0600'") from None
    if mode & 0o137:
        raise Refused(f"mode {mode:04o} would let others read the secret", "use 0600, or 0640 with a group")
    return user.pw_uid, gid, mode


def keep_file(module: AnsibleModule, found: dict[str, Any] | None) -> list[str]:
    """Bring the file into its state; what was done to it."""
    path, name = module.params["path"], module.params["name"]
    if module.params["state"] == "absent":
        if not os.path.lexists(path):
            return []
        if not module.check_mode:
            os.unlink(path)
        return [f"remove {path}"]
    uid, gid, mode = owner_of(module)
    if not found:
        # In check mode of a first run.
        return [f"write {path}"]
    key = found["key"]
    text = key + "\n" if module.params["format"] == "secret" else ceph_key.keyring(name, key)
    wrong = secret_file.differences(path, text, uid, gid, mode)
    if wrong and not module.check_mode:
        secret_file.write(path, text, uid, gid, mode)
    return wrong


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "name": {"type": "str", "required": True},
            "state": ceph_module.STATES,
            "caps": {"type": "dict"},
            "secret": {"type": "str", "no_log": True},
            "path": {"type": "path"},
            "format": {"type": "str", "choices": ["keyring", "secret"], "default": "keyring"},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str"},
            "mode": {"type": "str", "default": "0600"},
        },
        supports_check_mode=True,
    )
    given = module.params
    name, absent = given["name"], given["state"] == "absent"

    def work(ceph: Ceph) -> dict[str, Any]:
        caps = None if given["caps"] is None else {kind: str(text) for kind, text in given["caps"].items()}
        if given["path"] and not absent:
            owner_of(module)
        result = ceph_module.settle(
            module,
            ceph,
            read=lambda: ceph_key.read(ceph, name),
            plan=lambda found: ceph_key.plan(found, name, caps, given["secret"] or "", absent),
            show=lambda found: found and {"caps": found["caps"]},
            wanted=None if absent else {"caps": caps} if caps is not None else {},
        )
        found = ceph_key.read(ceph, name)
        if given["path"]:
            done = keep_file(module, found)
            result["plan"] += done
            result["changed"] = bool(result["plan"])
            after = "".join(f"{line}\n" for line in done)
            result["diff"]["after"] += after
        if not absent:
            result["caps"] = caps if caps is not None else (found or {}).get("caps", {})
        return result

    ceph_module.guarded(module, f"the key {name}", work)


if __name__ == "__main__":
    main()
