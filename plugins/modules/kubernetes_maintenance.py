#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_maintenance
short_description: Drain a node of Kubernetes for maintenance, and restore it
version_added: 0.1.0
description:
  - Cordons a node, notes in an annotation that an operator did and why, and evicts its pods as their disruption budgets
    allow it. Pods of DaemonSets stay. Pods that nothing would start again are named and not evicted.
  - A node that others have cordoned is left as it is, and is not restored.
options:
  node:
    description: The node, as Kubernetes names it.
    type: str
    required: true
  state:
    description:
      - V(drained) lets no new pod start on the node.
      - V(active) lets pods start again. A node that the reconciler had cordoned, too, stays cordoned.
    type: str
    choices: [active, drained]
    required: true
  reason:
    description: Short reason of the drain.
    type: str
    default: maintenance
  timeout:
    description:
      - Seconds in which the pods must have left. Then the module fails and names those that are left; the node stays
        cordoned. V(0) evicts none, and neither does check mode.
    type: float
    default: 900
  foreign:
    description:
      - What O(state=active) does with a node that others have cordoned. V(left) leaves it, V(refused) fails, V(taken)
        restores it.
    type: str
    choices: [left, refused, taken]
    default: refused
  unknown:
    description:
      - What to do if the host on which the module runs has no credentials of a cluster, or the cluster no such node.
        V(left) does nothing, V(refused) fails.
    type: str
    choices: [left, refused]
    default: refused
requirements:
  - On a control plane, as root, Python 3.9 and C(kubectl).
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Take the pods off a node
  baremetal.gpu.kubernetes_maintenance:
    node: "{{ inventory_hostname }}"
    state: drained
    reason: new power supply
  delegate_to: head1
"""

RETURN = r"""
owners:
  description: Who has the node cordoned afterwards, V(operator), V(reconciler) or V(other). Empty if it takes pods.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.maintenance import settle

TIMEOUT_S = 30.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["active", "drained"], "required": True},
            "reason": {"type": "str", "default": "maintenance"},
            "timeout": {"type": "float", "default": 900},
            "foreign": {"type": "str", "choices": ["left", "refused", "taken"], "default": "refused"},
            "unknown": {"type": "str", "choices": ["left", "refused"], "default": "refused"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        result = settle(
            Kubectl(run, TIMEOUT_S),
            given["node"],
            given["state"],
            given["reason"],
            given["timeout"],
            given["foreign"],
            given["unknown"],
            module.check_mode,
        )
    except Refused as why:
        module.fail_json(**failure(given["node"], [why.problem]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
