#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_job
short_description: Submit a batch job of Slurm for a user, and cancel it
version_added: 0.1.0
description:
  - Submits a job or an array of jobs with C(sbatch) as its user, unless the same job waits, runs, or has ended well. A
    job is the same if name, user and content are.
  - A job with the same name and another content that was submitted by this module is cancelled and replaced. One that
    its user submitted otherwise is never touched; the module fails.
  - Every job, and every task of an array, leaves its output in C(output.log) and its hash and exit status in C(result),
    in a directory of its own. Tasks that failed, and new ones, run at the next submission; tasks that ended well do
    not.
options:
  name:
    description: Name of the job.
    type: str
    required: true
  user:
    description: The account that it runs as.
    type: str
    required: true
  directory:
    description:
      - Directory of the job, the same on all hosts. V(~/) is the home of the user. It is created as that user.
      - With O(tasks) each task has the directory with its name below it.
    type: str
    required: true
  command:
    description:
      - Shell command that the job runs in its directory, in a login shell of its user. It ends with 0 on success.
      - Required with O(state=present).
    type: str
  tasks:
    description: Tasks of an array. Without them it is a single job.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the task and of its directory.
        type: str
        required: true
      environment:
        description: Variables of its environment.
        type: dict
        default: {}
  parallel:
    description: How many tasks run at a time; V(0) for no limit.
    type: int
    default: 0
  nodes:
    description: On how many nodes it runs. GPUs and memory are those of each node.
    type: int
    default: 1
  least_nodes:
    description: On how many nodes it starts where there is no room on more; V(0) for as many as O(nodes).
    type: int
    default: 0
  processes:
    description: How many processes C(srun) starts on each node.
    type: int
    default: 1
  resumable:
    description:
      - The command saves its state and continues where it was. It gets a SIGUSR1 when it is to save and to end, such as
        two minutes before the end of its time. With exit status 119 it is queued again; its output stays.
      - That exit status must be in C(RequeueExit) of C(slurm.conf), as the role slurm_common has it.
    type: bool
    default: false
  gpus:
    description: How many GPUs, for each task.
    type: int
    default: 0
  gpu_type:
    description: Type of the GPUs, as in V(a100); empty for any.
    type: str
    default: ""
  cpus:
    description: How many processors, for each task.
    type: int
    default: 1
  memory_mib:
    description: Memory in MiB, for each task; V(0) for the default of the partition.
    type: int
    default: 0
  minutes:
    description: Time limit in minutes; V(0) for that of the partition.
    type: int
    default: 0
  partition:
    description: Partition; empty for the default.
    type: str
    default: ""
  account:
    description: Account; empty for the user's default.
    type: str
    default: ""
  qos:
    description: QOS; empty for the user's default.
    type: str
    default: ""
  constraint:
    description: A feature that the nodes must have; empty for none.
    type: str
    default: ""
  again:
    description: Whether a job that has ended well is submitted again.
    type: bool
    default: false
  state:
    description: V(absent) cancels the job if it waits or runs. Its directory stays.
    type: str
    choices: [present, absent]
    default: present
  wait:
    description:
      - What the module waits for. With V(ended) it fails if the job, or a task, does not end well. Check mode does not
        wait.
    type: str
    choices: ["no", started, ended]
    default: "no"
  timeout:
    description: Seconds to wait. Then the module fails, and the job stays.
    type: float
    default: 600
requirements:
  - On the host that it runs on Python 3.9, C(sbatch), C(squeue), C(scancel) and the configuration of the cluster, the
    user, and root.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Train with two rates, each on a GPU
  baremetal.gpu.slurm_job:
    name: rates
    user: alice
    directory: ~/rates
    command: python3 ~/train.py --rate "$LR"
    gpus: 1
    tasks:
      - name: high
        environment: {LR: "0.1"}
      - name: low
        environment: {LR: "0.01"}
    wait: ended
    timeout: 86400

- name: End it
  baremetal.gpu.slurm_job:
    name: rates
    user: alice
    directory: ~/rates
    state: absent
"""

RETURN = r"""
job:
  description: Number of the job that waits, runs or ran; null where nothing had to run, and in check mode.
  returned: success
  type: int
action:
  description: What was done, V(submit), V(replace) or V(cancel); null for nothing.
  returned: success
  type: str
tasks:
  description:
    - The job, or each task of the array, with C(name), C(directory), C(state) (V(done), V(failed) or V(open)), and
      C(why) it failed.
  returned: success
  type: list
  elements: dict
hosts:
  description: Where it runs or ran, as Slurm names them; empty where it was not waited for.
  returned: success
  type: list
  elements: str
output:
  description: The end of what a single job has printed, if it was waited for.
  returned: success
  type: str
script:
  description: The batch script.
  returned: success
  type: str
problems:
  description: What is in the way, and what did not end well.
  returned: failed
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Found, Submitter, Wanted

PLAIN = (
    "name",
    "user",
    "directory",
    "gpus",
    "gpu_type",
    "cpus",
    "memory_mib",
    "minutes",
    "partition",
    "account",
    "qos",
    "constraint",
    "parallel",
    "nodes",
    "least_nodes",
    "processes",
    "resumable",
)


class Failed(Exception):
    """What did not end well."""

    def __init__(self, problems: list[Problem], result: dict[str, Any]) -> None:
        super().__init__(problems[0].cause)
        self.problems, self.result = problems, result


def _difference(before: str, after: str, job: Wanted) -> dict[str, str]:
    header = f"job {job.name} of {job.user}"
    return {"before": before, "after": after, "before_header": header, "after_header": header}


def absent(module: AnsibleModule, slurm: Submitter, job: Wanted, found: Found) -> dict[str, Any]:
    """Cancel what waits or runs."""
    numbers = sorted(found.live)
    before = "".join(slurm.script_of(number) for number in numbers)
    if numbers and not module.check_mode:
        slurm.cancel(job, numbers)
    return {
        "changed": bool(numbers),
        "job": None,
        "action": "cancel" if numbers else None,
        "tasks": [],
        "hosts": [],
        "output": "",
        "script": "",
        "diff": _difference(before, "", job),
    }


def present(module: AnsibleModule, slurm: Submitter, job: Wanted, found: Found) -> dict[str, Any]:
    """Submit what is not there yet, and wait for it."""
    number = submission.running(job, found)
    numbers = submission.todo(job, found, module.params["again"])
    others = sorted(set(found.live) - {number})
    action = None
    if others or (number is None and numbers):
        action = "replace" if others else "submit"
    text = submission.script(job, numbers or range(len(job.tasks)))
    before = "".join(slurm.script_of(one) for one in others)
    result: dict[str, Any] = {
        "changed": action is not None,
        "job": number,
        "action": action,
        "hosts": [],
        "output": "",
        "script": text,
        "diff": _difference(before, text if number is None and numbers else "", job) if action else {},
    }
    rows: list[Any] = []
    if not module.check_mode:
        if others:
            slurm.cancel(job, others)
        if number is None and numbers:
            result["job"] = slurm.submit(job, text)
        if result["job"] is not None and module.params["wait"] != "no":
            rows = slurm.wait(job, result["job"], module.params["wait"], module.params["timeout"])
            result["hosts"] = submission.hosts(rows)
    results = slurm.results(job) if result["job"] is not None and rows else found.results
    result["tasks"] = submission.ended(job, rows, results)
    if module.params["wait"] == "ended" and not module.check_mode:
        result["output"] = "" if job.tasks else slurm.output(job, job.directory)
        problems = submission.failures(job, result["tasks"], lambda directory: slurm.output(job, directory))
        if problems:
            raise Failed(problems, result)
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "directory": {"type": "str", "required": True},
            "command": {"type": "str"},
            "tasks": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "environment": {"type": "dict", "default": {}},
                },
            },
            "parallel": {"type": "int", "default": 0},
            "nodes": {"type": "int", "default": 1},
            "least_nodes": {"type": "int", "default": 0},
            "processes": {"type": "int", "default": 1},
            "resumable": {"type": "bool", "default": False},
            "gpus": {"type": "int", "default": 0},
            "gpu_type": {"type": "str", "default": ""},
            "cpus": {"type": "int", "default": 1},
            "memory_mib": {"type": "int", "default": 0},
            "minutes": {"type": "int", "default": 0},
            "partition": {"type": "str", "default": ""},
            "account": {"type": "str", "default": ""},
            "qos": {"type": "str", "default": ""},
            "constraint": {"type": "str", "default": ""},
            "again": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "wait": {"type": "str", "choices": ["no", "started", "ended"], "default": "no"},
            "timeout": {"type": "float", "default": 600},
        },
        required_if=[("state", "present", ["command"])],
        supports_check_mode=True,
    )
    given = module.params
    job = Wanted(command=given["command"] or "", **{key: given[key] for key in PLAIN})
    job = submission.with_tasks(submission.at_home(job), given["tasks"])
    wrong = submission.problems(job)
    if given["state"] == "absent":
        wrong = [problem for problem in wrong if problem.cause != "command is empty"]
    if wrong:
        module.fail_json(**failure(given["name"], wrong, "Nothing was submitted."))
    slurm = Submitter(run)
    try:
        found = slurm.find(job)
        act = present if given["state"] == "present" else absent
        result = act(module, slurm, job, found)
    except Failed as why:
        told = {key: value for key, value in why.result.items() if key not in ("script", "diff")}
        module.fail_json(**failure(given["name"], why.problems), **told)
    except Refused as why:
        module.fail_json(**failure(given["name"], [why.problem]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
