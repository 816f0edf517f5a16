#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_usage_info
short_description: Return the GPU hours of users and accounts of a Slurm cluster
version_added: 0.1.0
description:
  - Reads the accounting with C(sacct) and returns how long users and accounts had GPUs. A job that is suspended keeps
    its GPUs, so that time counts. Each run of a job that was queued again counts, up to its end; a job that runs counts
    up to now.
  - Days are those of the time zone of the host.
  - Jobs of the reconciler, which keep a GPU out of service, do not count.
  - Run it as root on a host of slurmctld. Fails with the reason if slurmctld or slurmdbd does not answer.
options:
  first_day:
    description: The first day, such as V(2026-11-01).
    type: str
    required: true
  last_day:
    description: The last day, which is included; today if left out.
    type: str
    default: ""
  by:
    description: What the hours are grouped by.
    type: list
    elements: str
    choices: [user, account, model, day]
    default: [user, account, model, day]
  timeout:
    description: Seconds in which C(sacct) must answer.
    type: int
    default: 120
requirements:
  - On the host Python 3.9, C(sacct), C(scontrol) and C(squeue).
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Ask who had how many GPU hours in November
  baremetal.gpu.slurm_usage_info:
    first_day: "2026-11-01"
    last_day: "2026-11-30"
    by: [user]
  register: usage
"""

RETURN = r"""
days:
  description: The days, with C(name), C(begin) and C(end) in Unix seconds. Today ends now.
  returned: success
  type: list
  elements: dict
time_zone:
  description: The time zone of the last day, such as V(CET).
  returned: success
  type: str
rows:
  description: At most 20000 rows.
  returned: success
  type: list
  elements: dict
  contains:
    user:
      description: The user, if asked for.
      type: str
    account:
      description: The account of Slurm, if asked for.
      type: str
    model:
      description:
        - The type of the GPUs in Slurm, such as V(a100), if asked for. The accounting has it if
          C(AccountingStorageTRES) names it. Otherwise it is the type that the nodes of the job have now, and null if
          they have several.
      type: str
    day:
      description: The day, if asked for.
      type: str
    gpu_seconds:
      description: GPUs, each with the seconds for which a job had it.
      type: int
    jobs:
      description: Jobs that had them.
      type: int
jobs:
  description: Jobs of all rows. A job that is in several rows counts once.
  returned: success
  type: int
problems:
  description:
    - Records that are not counted, or why there is no result. Each has C(code), C(subject), C(cause), C(evidence) and
      C(remedy).
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import diagnosis, usage
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

# Of slurmctld, whose answers are small.
CONTROL_TIMEOUT_S = 15.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "first_day": {"type": "str", "required": True},
            "last_day": {"type": "str", "default": ""},
            "by": {"type": "list", "elements": "str", "choices": list(usage.BY), "default": list(usage.BY)},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    given = module.params
    days, timeout_s = (given["first_day"], given["last_day"]), float(given["timeout"])
    try:
        found = usage.usage(Slurm(run, CONTROL_TIMEOUT_S), run, *days, given["by"], timeout_s)
    except CallFailed as why:
        module.fail_json(**failure("Slurm", [diagnosis.no_answer(why.problem.cause)]))
    except Refused as why:
        module.fail_json(**failure("Slurm", [why.problem]))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
