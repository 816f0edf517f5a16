#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_info
short_description: Read what of a host bears on its acceptance
version_added: 0.1.0
description:
  - Reads versions, kernel parameters, NUMA, IOMMU and ACS, huge pages, limits, the clock, and the state of disks and
    network adapters. C(gpuops accept) judges it, together with the facts of all other hosts.
  - What cannot be read is null. Nothing is changed.
options:
  users:
    description: Users whose uid and gid are looked up. They must be the same on all hosts.
    type: list
    elements: str
    default: []
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
seealso:
  - module: baremetal.gpu.gpu_facts
  - module: baremetal.gpu.gpu_load
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Read what bears on acceptance
  baremetal.gpu.accept_info:
  register: host
"""

RETURN = r"""
accept:
  description: What was read.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
    versions:
      description: Of kernel, operating system, BIOS and board.
      type: dict
    command_line:
      description: The parameters of the running kernel.
      type: list
      elements: str
    numa_nodes:
      description: Number of NUMA nodes.
      type: int
    numa_balancing:
      description: Whether the kernel moves memory between NUMA nodes, as C(kernel.numa_balancing) has it.
      type: int
    iommu_groups:
      description: Number of IOMMU groups, 0 where the IOMMU is off.
      type: int
    iommu_types:
      description:
        - How the kernel has set up the IOMMU's groups. The number of C(groups) of each type, C(identity) for devices
          that pass through and C(DMA) or C(DMA-FQ) for translated ones, and the types of C(displays) by PCI address.
      type: dict
    acs_redirects:
      description: PCI bridges that send transfers between GPUs up to the root. Null where it cannot be read.
      type: list
      elements: str
    hugepages:
      description: Reserved huge pages, and the mode of transparent ones.
      type: dict
    limits:
      description:
        - By the name of each program that starts jobs, the locked memory and the open files that they may have. Null
          for no limit.
      type: dict
    time_synchronised:
      description: Whether something keeps the clock in step. Null if it is unknown.
      type: bool
    interfaces:
      description: Network interfaces with state, speed and errors.
      type: list
      elements: dict
    infiniband:
      description:
        - Ports of InfiniBand and RoCE adapters with state, physical state (C(phys_state)), link layer, rate, firmware
          and errors.
      type: list
      elements: dict
    disks:
      description: >-
        Disks with model, C(passed), whether they pass their own check, and C(said), what smartctl says of that. The
        first is null where the disk does not tell.
      type: list
      elements: dict
    memory_errors:
      description: Errors of the host's memory since its boot, C(corrected) and C(uncorrected). Null without EDAC.
      type: dict
    libraries:
      description: Which of NCCL, MPI and modules there are.
      type: list
      elements: str
    identities:
      description: The C(sources) of users, and the C(ids) of O(users), as uid and gid. Null for an unknown one.
      type: dict
    dmabuf:
      description:
        - Whether the kernel is C(built) so that a network adapter can reach a GPU's memory through a dma-buf, and
          whether nvidia_peermem is loaded, C(peermem).
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import node


def main() -> None:
    spec = {"users": {"type": "list", "elements": "str", "default": []}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    module.exit_json(changed=False, accept=node.gather(users=module.params["users"]))


if __name__ == "__main__":
    main()
