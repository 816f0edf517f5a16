#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_daemons_info
short_description: List the Ceph daemons of a host, and which of them need a restart
version_added: 0.1.0
description:
  - Finds the daemons by their units, and checks whether their program or one of their libraries was replaced since they
    started, as a package upgrade does, and whether the role P(baremetal.gpu.ceph_common#role) has changed settings that
    they read only when they start. Works without Ceph on the host.
options:
  kind:
    description: The daemons that RV(due) is about; by default all.
    type: str
    choices: [mon, mgr, osd, mds]
  before:
    description:
      - Seconds since 1970. Daemons that started before are due.
      - By default, daemons with one of the reasons in O(because) are due.
    type: float
  because:
    description: What makes a daemon due, a replaced program or library, or changed settings.
    type: list
    elements: str
    choices: [program, settings]
    default: [program, settings]
  changing:
    description: Kinds whose settings are about to change, as check mode announces it. Their daemons have old ones.
    type: list
    elements: str
    choices: [mon, mgr, osd, mds]
    default: []
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Find the OSDs that run an older program than the one that is installed
  baremetal.gpu.ceph_daemons_info:
    kind: osd
"""

RETURN = r"""
daemons:
  description: >-
    All daemons, with C(kind), C(id), C(unit), C(started) in seconds since 1970, C(outdated) and C(old_settings).
  returned: success
  type: list
  elements: dict
due:
  description: Those of them that are to be restarted.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import processes as ceph_processes


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": list(ceph_processes.KINDS)},
            "before": {"type": "float"},
            "because": {
                "type": "list",
                "elements": "str",
                "choices": list(ceph_processes.REASONS),
                "default": list(ceph_processes.REASONS),
            },
            "changing": {"type": "list", "elements": "str", "choices": list(ceph_processes.KINDS), "default": []},
        },
        supports_check_mode=True,
    )
    found = ceph_processes.daemons()
    due = ceph_processes.due(found, **module.params)
    module.exit_json(changed=False, daemons=found, due=due)


if __name__ == "__main__":
    main()
