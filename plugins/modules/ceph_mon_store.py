#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_mon_store
short_description: Create the store of a Ceph monitor
version_added: 0.1.0
description:
  - Creates the directory from which a monitor starts. An existing store is never touched, and one of another cluster is
    refused.
  - An interrupted run leaves no incomplete store, because it is created in another place and then moved.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  name:
    description: Name of the monitor.
    type: str
    required: true
  fsid:
    description: UUID of the cluster.
    type: str
    required: true
  keys:
    description: First keys of the cluster, by name. Only the first monitors of a cluster use them.
    type: dict
    required: true
  monitors:
    description: All monitors of the cluster.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the monitor.
        type: str
        required: true
      address:
        description: IP address by which others reach it.
        type: str
        required: true
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Create the store of the monitor
  baremetal.gpu.ceph_mon_store:
    name: stor1
    fsid: "{{ secrets.fsid }}"
    keys: "{{ secrets['keys'] }}"
    monitors:
      - {name: stor1, address: 192.0.2.21}
      - {name: stor2, address: 192.0.2.22}
      - {name: stor3, address: 192.0.2.23}
"""

RETURN = r"""
path:
  description: The directory.
  returned: success
  type: str
  sample: /var/lib/ceph/mon/ceph-stor1
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import daemon as ceph_daemon
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mon import store as ceph_monitor
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "name": {"type": "str", "required": True},
            "fsid": {"type": "str", "required": True},
            "keys": {"type": "dict", "required": True, "no_log": True},
            "monitors": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": {"type": "str", "required": True}, "address": {"type": "str", "required": True}},
            },
        },
        supports_check_mode=True,
    )
    given = module.params
    path = ceph_monitor.store_of(given["cluster"], given["name"])
    changed = not os.path.exists(path)
    if not changed:
        fsid = ceph_daemon.mon_fsid(path, given["cluster"])
        if fsid and fsid != given["fsid"]:
            cause = f"it is the store of a monitor of the cluster {fsid}, not of {given['fsid']}. Nothing was changed"
            remedy = "correct the cluster's secrets, or remove that cluster from the host first"
            module.fail_json(**failure(path, [Problem("other_cluster", path, cause, fsid, remedy)]))
    elif not module.check_mode:
        try:
            ceph_monitor.make_store(
                host_run.run,
                given["cluster"],
                given["name"],
                given["fsid"],
                given["monitors"],
                ceph_conf.keyring(given["keys"]),
            )
        except (Refused, KeyError, OSError) as error:
            subject = f"the store of the monitor {given['name']} cannot be made"
            module.fail_json(**failure(subject, [ceph_module.problem_of(error, path)]))
    before, after = ("nothing\n", f"a store for {given['fsid']}\n") if changed else ("", "")
    diff = {"before_header": path, "after_header": path, "before": before, "after": after}
    module.exit_json(changed=changed, path=path, diff=diff)


if __name__ == "__main__":
    main()
