#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health_info
short_description: Check the health of a host's NVIDIA GPUs once
version_added: 0.1.0
description:
  - Looks once at the driver, the GPUs and the kernel's log, and returns a verdict on the host and on every GPU, with
    evidence, the action to take and a remedy.
  - These are the rules of the agent (role P(baremetal.gpu.gpu_agent#role)). The agent also detects what takes time,
    such as lasting heat or errors per minute, remembers faults over reboots, and knows what an operator cleared.
  - On a host with an agent, RV(agent) has its verdict. What is not V(ok) for the agent is V(unknown) at best here,
    since one look does not know the history. If the agent's report is unusable, everything is V(unknown) at best.
  - A fault of a GPU does not make the module fail. Use the verdict with C(failed_when) or M(ansible.builtin.assert).
  - A child process with a deadline calls NVML, so a hanging GPU is a finding and does not block the play.
options:
  policy:
    description:
      - Settings of the health policy that differ from the defaults, such as thresholds, checks, the meaning of Xids,
        and what is expected of the host. The page on health has the keys.
    type: dict
    default: {}
  kernel_log:
    description:
      - Whether Xids that are still in the kernel's log count. They stay in it until the next boot, so leave them out
        to see whether a reset of the GPU has helped.
    type: bool
    default: true
  nvml_timeout:
    description:
      - Seconds that NVML has for all its answers together. Without persistence mode a GPU takes seconds to wake up.
    type: int
    default: 60
  _binding:
    description:
      - The controller's pynvml, packed. The action plugin sets it; playbooks do not.
    type: str
requirements:
  - On the host nothing but Python 3.9, and root to read the kernel's log.
  - On the controller nvidia-ml-py, whose pynvml travels to the host with the module. Without it, a pynvml on the
    host is used.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  action:
    description: An action plugin takes the controller's pynvml along.
    support: full
seealso:
  - module: baremetal.gpu.gpu_facts
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Read the health of the GPUs
  baremetal.gpu.gpu_health_info:
  register: looked

- name: Stop on a host that should get no work
  ansible.builtin.assert:
    that: looked.health.verdict in ['ok', 'degraded']
    fail_msg: "{{ inventory_hostname }}: {{ looked.health.devices | map(attribute='reasons') | flatten }}"

- name: Expect eight GPUs without MIG, and take a narrow PCIe link for fatal
  baremetal.gpu.gpu_health_info:
    policy:
      expected:
        gpus: 8
        mig: false
      checks:
        pcie_width:
          verdict: fatal
"""

RETURN = r"""
health:
  description: The verdict on the host and its GPUs.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
      sample: 1
    verdict:
      description: The worst of the host's own and of its GPUs. V(ok), V(degraded), V(fatal) or V(unknown).
      type: str
      sample: degraded
    since:
      description: When it was found, in seconds since 1970.
      type: float
    reasons:
      description: Why the host itself is not ok. As the reasons of a GPU.
      type: list
      elements: dict
    suspected:
      description: As those of a GPU.
      type: list
      elements: dict
    checks:
      description: Code of every check of the host, with V(ok), V(fail), V(unknown) or V(not_applicable).
      type: dict
    devices:
      description: The GPUs.
      type: list
      elements: dict
      contains:
        uuid:
          description: UUID, null for a GPU that does not tell it.
          type: str
          sample: GPU-5c3a1f2e-0000-4000-8000-000000000000
        index:
          description: NVML's index, null for a GPU that NVML does not list.
          type: int
          sample: 0
        pci_address:
          description: PCI address as the kernel writes it.
          type: str
          sample: "0000:3b:00.0"
        verdict:
          description: V(ok), V(degraded), V(fatal) or V(unknown).
          type: str
          sample: degraded
        since:
          description: When it was found, in seconds since 1970.
          type: float
        reasons:
          description: Why it is not ok, the worst first.
          type: list
          elements: dict
          contains:
            code:
              description: Stable name of the check. The page on health codes explains every one.
              type: str
              sample: pcie_width
            verdict:
              description: V(degraded) or V(fatal).
              type: str
              sample: degraded
            state:
              description: Always V(fail).
              type: str
              sample: fail
            evidence:
              description: The C(value) that was seen, the C(threshold) that it is measured by (null for an event),
                C(since) when in seconds since 1970, and C(xids) with how many of each number if it was Xids.
              type: dict
              sample: {"value": 8, "threshold": 16, "since": 1790000000.0}
            action:
              description: V(none), V(restart_app), V(inspect), V(reset_gpu), V(reboot) or V(rma).
              type: str
              sample: inspect
            remedy:
              description: What to do, in words.
              type: str
            text:
              description: What is wrong, in words.
              type: str
              sample: the PCIe link has 8 of 16 lanes
        suspected:
          description: Checks that failed in this look, but need more time to count, such as heat.
          type: list
          elements: dict
        checks:
          description: Code of every check of a GPU, with V(ok), V(fail), V(unknown) or V(not_applicable).
          type: dict
agent:
  description: What the host's agent says. Null on a host that none is to watch.
  returned: success
  type: dict
  contains:
    verdict:
      description: Its verdict on the host, null where its report cannot be used.
      type: str
      sample: ok
    error:
      description: Why its report cannot be used. It is of another boot, too old, dated in the future, or cannot be
        read. Else null.
      type: str
log_error:
  description: Why the kernel's log could not be read, null if it was read or left out.
  returned: success
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.health.policy import PolicyError


def _beside_agent(report: dict[str, Any]) -> dict[str, Any]:
    """The look's report, as far as it can be relied on where an agent is to watch the host, and what the agent says."""
    result, error = health_facts.of_agent()
    if error:
        return {"health": health_facts.at_best_unknown(report), "agent": {"verdict": None, "error": error}}
    if result is None:
        return {"health": report, "agent": None}
    told = result["health"]
    return {
        "health": health_facts.beside_agent(report, told),
        "agent": {"verdict": told["verdict"], "error": None},
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "dict", "default": {}},
            "kernel_log": {"type": "bool", "default": True},
            "nvml_timeout": {"type": "int", "default": 60},
            # Filled in by the action plugin.
            "_binding": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    try:
        found = health_probe.probe(
            module.params["policy"],
            binding_source=nvml.unpack(module.params["_binding"]),
            deadline_s=module.params["nvml_timeout"],
            log="/dev/kmsg" if module.params["kernel_log"] else None,
        )
    except PolicyError as wrong:
        module.fail_json(msg=f"{wrong}")
    module.exit_json(changed=False, log_error=found["log_error"], **_beside_agent(found["health"]))


if __name__ == "__main__":
    main()
