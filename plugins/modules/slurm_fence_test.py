#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_fence_test
short_description: Test that Slurm starts the jobs that keep bad GPUs out of service
version_added: 0.1.0
description:
  - Submits a job as the reconciler submits its own, with a GPU, and waits until it starts. The job ends at once.
  - Fails with Slurm's reason if the job is refused or waits for something else than a free GPU, such as the end of a
    limit. A node with a bad GPU would then stay closed.
  - Run it as root on a host that has the configuration of the cluster.
options:
  timeout:
    description: Seconds in which the job must start.
    type: int
    default: 30
requirements:
  - On the host Python 3.9, C(sbatch), C(squeue) and C(scancel).
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Prove that a bad GPU can be taken out of service
  baremetal.gpu.slurm_fence_test:
"""

RETURN = r"""
proven:
  description: Whether the job has started. It has not if no GPU is free now, and in check mode, where there is none.
  returned: success
  type: bool
why:
  description: What was seen.
  returned: success
  type: str
problems:
  description: Why the job does not start.
  returned: failed
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import fence_test
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm


def main() -> None:
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 30}}, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, proven=False, why="no job is submitted in check mode")
    try:
        found = fence_test.prove(Slurm(run, timeout_s=15.0), float(module.params["timeout"]))
    except (CallFailed, Refused) as reason:
        module.fail_json(**failure("Slurm", [reason.problem]))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
