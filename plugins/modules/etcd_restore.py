#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: etcd_restore
short_description: Restore the etcd of a control plane from a snapshot
version_added: 0.1.0
description:
  - One step of a restore, each of which is done on all control planes before the next one.
  - The data of before stay in etcd's directory. An interrupted run is finished by the next one.
options:
  step:
    description:
      - V(looked) refuses where data of today would be lost, and returns what O(cluster) needs. It changes nothing.
      - V(stopped) stops the static pods of the control plane, V(restored) puts the snapshot in the place of the data,
        V(started) lets the static pods start again.
    type: str
    choices: [looked, stopped, restored, started]
    required: true
  snapshot:
    description: The snapshot on this host. With O(step=looked), left out on hosts that get it later.
    type: str
    default: ''
  directory:
    description: Where the snapshots of this host are. With O(step=looked), one of them has to be named if it is given.
    type: str
    default: ''
  host:
    description: The name of the host in the inventory.
    type: str
    default: ''
  cluster:
    description: All members of etcd, as NAME=URL.
    type: list
    elements: str
    default: []
  replace:
    description: Whether data of today may go.
    type: bool
    default: false
requirements:
  - On the host Python 3.9, C(ctr) of containerd, C(crictl) and the image of etcd.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    support: none
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Look for what stands against a restore
  baremetal.gpu.etcd_restore:
    step: looked
    snapshot: /var/backups/baremetal-gpu/etcd/head1-20261129-023000.db
"""

RETURN = r"""
member:
  description: The host's member of etcd, as NAME=URL.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.etcd_restore import Restore


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": ["looked", "stopped", "restored", "started"], "required": True},
            "snapshot": {"type": "str", "default": ""},
            "directory": {"type": "str", "default": ""},
            "host": {"type": "str", "default": ""},
            "cluster": {"type": "list", "elements": "str", "default": []},
            "replace": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given, restore = module.params, Restore(run)
    is_look = given["step"] == "looked"
    try:
        if is_look and given["directory"]:
            restore.named(given["snapshot"], given["directory"], given["host"])
        # With the other steps leave was given before.
        member = restore.look(given["replace"] or not is_look)
        if not is_look and not module.check_mode:
            steps = {
                "stopped": restore.stop,
                "restored": lambda: restore.restore(given["snapshot"], given["cluster"]),
                "started": restore.start,
            }
            steps[given["step"]]()
    except Refused as why:
        note = "Nothing was changed." if is_look else "Run it again: what is done is not done twice."
        module.fail_json(**failure(why.problem.subject, [why.problem], note))
    except OSError as why:
        module.fail_json(**failure("etcd", [Problem("not_restored", given["snapshot"], str(why))]))
    module.exit_json(changed=not is_look, member=f"{member.name}={member.url}")


if __name__ == "__main__":
    main()
