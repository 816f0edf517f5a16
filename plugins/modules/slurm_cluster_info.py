#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_cluster_info
short_description: Return nodes, partitions and jobs of a Slurm cluster
version_added: 0.1.0
description:
  - Queries slurmctld for nodes, partitions, jobs with resources and waiting jobs, and returns the problems of nodes and
    jobs, each with a remedy.
  - Run it as root on a host that has the configuration of the cluster. The GPUs of jobs are known only on a host with
    C(/etc/slurm/gres.conf), which is the controller.
  - Fails with the reason if slurmctld does not answer.
options:
  timeout:
    description: Seconds in which each command of Slurm must answer.
    type: int
    default: 15
  problems_of:
    description: Nodes whose problems are returned; by default all.
    type: list
    elements: str
    default: []
requirements:
  - On the host Python 3.9, C(scontrol) and C(squeue).
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Ask who has which GPU
  baremetal.gpu.slurm_cluster_info:
  register: slurm
"""

RETURN = r"""
nodes:
  description:
    - The nodes by name. C(state) and C(reason) as Slurm has them, with C(reason_by) and C(reason_since);
      C(gpus), C(cpus) and C(memory_mib), and what of them is in use or free; C(in_service), C(drained), C(silent) and
      C(busy).
    - C(takes_jobs), whether a user's job can start there; C(gpus_free), how many GPUs such a job could get now;
      C(gpus_held), how many the reconciler keeps out of service; C(guard), when its reservation of the node ends; and
      C(fenced), the minors of the GPUs that its jobs have or get next, null for one that is not known.
  returned: success
  type: list
  elements: dict
partitions:
  description: The partitions, with C(state), C(nodes), C(default), C(hidden) and C(max_time).
  returned: success
  type: list
  elements: dict
jobs:
  description:
    - Jobs that have resources, then those that wait. Of these the first 500, and of each user who has fewer than 20
      among them the next ones, as long as those are no more than 500.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: What squeue shows, such as V(12) or V(12_3).
      type: str
    name:
      description: What its user calls it.
      type: str
    user:
      description: Whose it is.
      type: str
    account:
      description: Account.
      type: str
    partition:
      description: Partition.
      type: str
    qos:
      description: QOS.
      type: str
    state:
      description: State and its flags, such as V(RUNNING).
      type: str
    waits:
      description: Whether it waits.
      type: bool
    reason:
      description: Slurm's word for why it waits; empty for others.
      type: str
    waits_for:
      description: The same in plain words.
      type: str
    cpus:
      description: CPUs that it has or asks for.
      type: int
    gpus:
      description: GPUs that it has or asks for, on all nodes.
      type: int
    submitted:
      description: When it was submitted, in Unix seconds.
      type: float
    started:
      description: When it started, in Unix seconds; null for one that waits.
      type: float
    ends:
      description: When its time is over at the latest, in Unix seconds; null without a limit.
      type: float
    holder:
      description: Whether it is a job of the reconciler's that keeps a GPU out of service.
      type: bool
    nodes:
      description: Its nodes, with the minors of its GPUs there; null for one that is not known.
      type: list
      elements: dict
waiting_total:
  description: How many jobs of users wait.
  returned: success
  type: int
problems:
  description:
    - Why nodes take no jobs, why partitions are closed, why jobs do not start by themselves, why a bad GPU is not taken
      out of service, whose uid slurmctld does not know, which of two controllers does not answer, and whether the state
      directory of slurmctld is full. Each has C(code), C(subject), C(cause),
      C(evidence) and C(remedy). The subject of a node is its name.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import accounts, cluster, diagnosis, state_directory
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "int", "default": 15},
            "problems_of": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    about = module.params["problems_of"]
    here = [] if about else state_directory.problems()
    try:
        found = cluster.read(Slurm(run, float(module.params["timeout"])), about)
    except CallFailed as why:
        module.fail_json(**failure("Slurm", [diagnosis.no_answer(why.problem.cause), *here]))
    if not about:
        slurm = Slurm(run, float(module.params["timeout"]))
        here += diagnosis.shut_out_problems(accounts.shut_out(slurm.uids()))
    found["problems"] = [*(problem.as_dict() for problem in here), *found["problems"]]
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
