#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_objects
short_description: Create, change or delete objects of Kubernetes
version_added: 0.1.0
description:
  - Applies objects on the server side with C(kubectl), on a control plane. Fields that others have set, and that are
    not in O(objects), stay.
options:
  objects:
    description: The objects, as a manifest has them.
    type: list
    elements: dict
    required: true
  state:
    description: Whether they exist. V(absent) deletes them.
    type: str
    choices: [present, absent]
    default: present
  kubeconfig:
    description: The file with the credentials.
    type: path
    default: /etc/kubernetes/admin.conf
  manager:
    description: >-
      Whose fields those of O(objects) are. What is no longer in an object was set by the same manager, and is removed;
      so parts of one object that are described in several places need several managers.
    type: str
    default: baremetal-gpu
  grace_period:
    description: >-
      With O(state=absent), the seconds in which pods are to end, whatever they ask for. Their end is not waited for.
    type: int
  timeout:
    description: Seconds for each command of kubectl.
    type: int
    default: 60
requirements:
  - On the host Python 3.9 and C(kubectl).
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows what C(kubectl diff) shows.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Let claims request GPUs by the name of their class
  baremetal.gpu.kubernetes_objects:
    objects:
      - apiVersion: resource.k8s.io/v1
        kind: DeviceClass
        metadata: {name: gpu}
        spec:
          selectors:
            - cel: {expression: device.driver == "gpu.baremetal-gpu"}
"""

RETURN = r"""
deleted:
  description: The names of the objects that were deleted.
  returned: success and O(state=absent)
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import ADMIN, MANAGER, Kubectl


def settle(module: AnsibleModule, kubectl: Kubectl) -> dict[str, Any]:
    objects = module.params["objects"]
    if module.check_mode and not kubectl.is_set_up():
        # The cluster would be made first.
        described = "".join(f"{one.get('kind')} {(one.get('metadata') or {}).get('name')}\n" for one in objects)
        present = module.params["state"] == "present"
        return {"changed": present, "diff": {"before": "", "after": described if present else ""}}
    if module.params["state"] == "absent":
        names = kubectl.present(objects)
        if names and not module.check_mode:
            kubectl.delete(objects, module.params["grace_period"])
        before = "".join(f"{name}\n" for name in names)
        return {"changed": bool(names), "deleted": names, "diff": {"before": before, "after": ""}}
    difference = kubectl.difference(objects)
    if difference and not module.check_mode:
        kubectl.apply(objects)
    return {"changed": bool(difference), "diff": {"prepared": difference}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "objects": {"type": "list", "elements": "dict", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "kubeconfig": {"type": "path", "default": ADMIN},
            "manager": {"type": "str", "default": MANAGER},
            "grace_period": {"type": "int"},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params = module.params
    kubectl = Kubectl(run, float(params["timeout"]), params["kubeconfig"], params["manager"])
    try:
        result = settle(module, kubectl)
    except CallFailed as why:
        module.fail_json(**failure(why.problem.subject, [why.problem]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
