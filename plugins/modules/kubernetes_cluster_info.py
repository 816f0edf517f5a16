#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_cluster_info
short_description: Return nodes and pods of a Kubernetes cluster
version_added: 0.1.0
description:
  - Queries the API server for nodes, pods that have resources and waiting pods, and returns the problems of nodes and
    pods, each with a remedy.
  - Run it as root on a control plane that C(kubeadm) has made.
  - Fails with the reason if the API server does not answer.
options:
  timeout:
    description: Seconds in which the API server must answer each query.
    type: int
    default: 15
  problems_of:
    description: Nodes whose problems are returned, without a look at pods; by default all, and those of pods.
    type: list
    elements: str
    default: []
  gpu_nodes:
    description: Nodes that are known to have GPUs. It is a problem if Kubernetes knows no GPU of one.
    type: list
    elements: str
    default: []
requirements:
  - On the host Python 3.9, C(kubectl) and C(/etc/kubernetes/admin.conf).
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Ask who has which GPU
  baremetal.gpu.kubernetes_cluster_info:
  register: kubernetes
"""

RETURN = r"""
nodes:
  description:
    - The nodes by name. C(state) as kubectl prints it, and C(reason) for one that is not ready; C(version) of kubelet;
      C(control_plane), C(in_service), C(drained) (cordoned), C(takes_jobs), C(cordoned_by), why by who has done it, and
      C(closed_by), the keys of taints that close it.
    - C(way), by which it gives GPUs to pods (C(device_plugin), C(dra) or none); C(gpus), C(gpus_used), C(gpus_free),
      how many a pod could get now, and C(gpus_held), how many are withheld; C(withheld), the UUIDs of those that are
      known; C(gpu_health), its condition GpuHealthy.
    - C(cpus) and C(memory_mib) that pods can have, and C(free_cpus) and C(free_memory_mib).
  returned: success
  type: list
  elements: dict
jobs:
  description:
    - Pods of users that have a node, then those that wait, in the order in which they were made, the first 500. Pods of
      the cluster itself are among them where they have GPUs.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Namespace and name, such as V(alice/train-0).
      type: str
    name:
      description: What has made it, such as a Job, or its own name.
      type: str
    user:
      description: The label C(baremetal-gpu/user) of its namespace; empty for none.
      type: str
    partition:
      description: Its namespace.
      type: str
    state:
      description: Its phase, or what a container of it waits for, such as V(ImagePullBackOff).
      type: str
    waits:
      description: Whether it has no node yet.
      type: bool
    reason:
      description: The scheduler's word for why it has none; empty for others.
      type: str
    waits_for:
      description: The same in plain words.
      type: str
    cpus:
      description: CPUs that it asks for, rounded up.
      type: int
    gpus:
      description: GPUs that it has or asks for.
      type: int
    submitted:
      description: When it was made, in Unix seconds.
      type: float
    started:
      description: When its node took it, in Unix seconds; null for one that waits.
      type: float
    ends:
      description: When its time is over at the latest, in Unix seconds; null without a limit.
      type: float
    nodes:
      description: Its node, with the UUIDs of its GPUs there; null for one that the API does not tell.
      type: list
      elements: dict
waiting_total:
  description: How many pods of users wait.
  returned: success
  type: int
problems:
  description:
    - Why nodes take no pods, why their GPUs are not known or not watched, and why pods do not start by themselves. Each
      has C(code), C(subject), C(cause), C(evidence) and C(remedy). The subject of a node is its name.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import cluster, diagnosis
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "int", "default": 15},
            "problems_of": {"type": "list", "elements": "str", "default": []},
            "gpu_nodes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    kubectl = Kubectl(run, float(module.params["timeout"]))
    try:
        found = cluster.read(kubectl, module.params["problems_of"], module.params["gpu_nodes"])
    except CallFailed as why:
        module.fail_json(**failure("Kubernetes", [diagnosis.no_answer(why.problem.cause)]))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
