#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_daemon_key
short_description: Give a Ceph mgr or MDS its key
version_added: 0.1.0
description:
  - Creates a daemon's key in the cluster, or reads the existing one, and writes it into the keyring from which the
    daemon starts. This needs the bootstrap key of its kind on the host, not the admin key.
  - The key never appears on a command line or in what the module returns.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  kind:
    description: Kind of daemon.
    type: str
    choices: [mgr, mds]
    required: true
  name:
    description: Name of the daemon.
    type: str
    required: true
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Create the key of the mgr
  baremetal.gpu.ceph_daemon_key:
    kind: mgr
    name: stor1
"""

RETURN = r"""
path:
  description: The keyring.
  returned: success
  type: str
  sample: /var/lib/ceph/mgr/ceph-stor1/keyring
"""

import os
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import library as ceph_library
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import failure

# What the bootstrap keys may hand out, word by word.
CAPS = {
    "mgr": ("mon", "allow profile mgr", "osd", "allow *", "mds", "allow *"),
    "mds": ("mon", "allow profile mds", "osd", "allow rwx", "mds", "allow"),
}


def write(path: str, text: str) -> None:
    """Write a keyring that Ceph's user alone can read, whole or not at all."""
    ceph = pwd.getpwnam("ceph")
    directory = os.path.dirname(path)
    host_files.make_directories(directory, 0o750, ceph.pw_uid, ceph.pw_gid)
    with host_files.place(directory, follow=True) as there:
        there.give(None, ceph.pw_uid, ceph.pw_gid)
    host_files.write(path, text, 0o600, ceph.pw_uid, ceph.pw_gid)


def read(path: str, entity: str) -> str:
    """The key that is there; empty if there is none."""
    try:
        return ceph_conf.key_in(host_files.read(path).decode("utf-8"), entity)
    except (OSError, UnicodeDecodeError):
        return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "kind": {"type": "str", "choices": list(CAPS), "required": True},
            "name": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    cluster, kind = module.params["cluster"], module.params["kind"]
    entity = f"{kind}.{module.params['name']}"
    path = f"/var/lib/ceph/{kind}/{cluster}-{module.params['name']}/keyring"
    there = read(path, entity)
    changed = not there
    if not module.check_mode:
        ceph = Ceph(
            host_run.run,
            cluster=cluster,
            name=f"client.bootstrap-{kind}",
            keyring=f"/var/lib/ceph/bootstrap-{kind}/{cluster}.keyring",
            library=ceph_library.connect,
        )
        try:
            answer = ceph.json("auth", "get-or-create", entity, *CAPS[kind])
            key = answer[0]["key"]
            changed = key != there
            if changed:
                write(path, ceph_conf.keyring({entity: key}))
        except (CephError, OSError, KeyError) as error:
            module.fail_json(**failure(f"{entity} gets no key", [ceph_module.problem_of(error, entity)]))
    before = f"{entity}: {'another key' if there else 'no key'}\n" if changed else ""
    diff = {
        "before_header": path,
        "after_header": path,
        "before": before,
        "after": f"{entity}: its key\n" if changed else "",
    }
    module.exit_json(changed=changed, path=path, diff=diff)


if __name__ == "__main__":
    main()
