#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Gather facts about a host's NVIDIA GPUs and driver
version_added: 0.1.0
description:
  - Returns what the PCI bus, the driver's files and NVML report about the host's NVIDIA GPUs as C(ansible_facts.gpu).
  - Works on a host without a GPU, without a driver or without pynvml. An unknown value is null, and the reason and the
    remedy are in the facts. The module does not fail because of it.
  - The PCI bus is read from sysfs, so lspci is not needed, and a GPU is found before it has a driver.
  - A child process with a deadline calls NVML, so a hanging GPU does not block the play.
options:
  gather_subset:
    description:
      - Which parts to gather. Whether there are GPUs is always returned.
      - V(pci) and V(driver) need no NVML and take a few milliseconds.
      - V(topology) adds how near the GPUs are to each other. V(details) adds to each GPU its serial number, error
        counters, the other ends of its NVLinks and the number of its processes. Both include V(devices).
      - V(health) adds the verdicts on the host and its GPUs. If the agent of the role P(baremetal.gpu.gpu_agent#role)
        runs, they are those of its last report, which costs nothing. Otherwise they come from one look and the kernel's
        log since boot, as with M(baremetal.gpu.gpu_health_info) but without the InfoROM.
      - Details are left out by default, so that the facts of a large fleet stay small in a cache. V(all) is every part.
      - The facts contain only the selected parts.
    type: list
    elements: str
    choices: [all, pci, driver, devices, topology, health, details]
    default: [pci, driver, devices, topology, health]
  nvml_timeout:
    description:
      - Seconds that NVML has for all its answers together. Without persistence mode a GPU takes seconds to wake up.
    type: int
    default: 30
  _binding:
    description:
      - The controller's pynvml, packed. The action plugin sets it; playbooks do not.
    type: str
requirements:
  - On the host nothing but Python 3.9.
  - On the controller nvidia-ml-py, whose pynvml travels to the host with the module. Without it, a pynvml on the
    host is used.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  facts:
    description: Returns facts only.
    support: full
  action:
    description: An action plugin takes the controller's pynvml along.
    support: full
seealso:
  - module: baremetal.gpu.gpu_health_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Gather what playbooks need to know about the GPUs
  baremetal.gpu.gpu_facts:

- name: Only find out whether there are GPUs
  baremetal.gpu.gpu_facts:
    gather_subset: [pci]

- name: Gather all facts, for a look at one host
  baremetal.gpu.gpu_facts:
    gather_subset: [all]

- name: Stop on a host with a GPU that is not healthy
  ansible.builtin.assert:
    that: ansible_facts['gpu']['health']['verdict'] == 'ok'
    fail_msg: "{{ ansible_facts['gpu']['health']['devices'] | map(attribute='reasons') | flatten }}"

- name: Show how near the second GPU is to the others
  ansible.builtin.debug:
    msg: "{{ ansible_facts['gpu']['topology']['scores'][1] }}"

- name: Show the memory of every GPU
  ansible.builtin.debug:
    msg: "{{ item.name }}: {{ item.memory_mib }} MiB"
  loop: "{{ ansible_facts['gpu']['devices'] }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts.
  returned: always
  type: dict
  contains:
    gpu:
      description: The GPUs of the host.
      returned: always
      type: dict
      contains:
        schema:
          description: Version of this structure.
          returned: always
          type: int
          sample: 1
        present:
          description: Whether the PCI bus has an NVIDIA GPU; null where the bus cannot be read.
          returned: always
          type: bool
        reason:
          description: Why there is no GPU, or why the GPUs could not be asked, with the remedy. Null if all is well.
          returned: always
          type: str
          sample: no NVIDIA GPU on the PCI bus
        pci:
          description:
            - NVIDIA's GPUs, NVSwitches and the ways to NVSwitches that are not PCI devices, by address, without virtual
              functions.
            - A GPU that is bound to C(vfio-pci) or the like is listed and counts nowhere; RV(ansible_facts.gpu.present)
              is false where there are only such.
          returned: if the subset V(pci) is asked for
          type: list
          elements: dict
          contains:
            address:
              description: PCI address as the kernel writes it.
              type: str
              sample: "0000:3b:00.0"
            vendor:
              description: PCI vendor id.
              type: str
              sample: 10de
            device:
              description: PCI device id.
              type: str
              sample: 20b0
            class:
              description: PCI class and subclass.
              type: str
              sample: "0302"
            model:
              description: Model, null for an id that is not in the collection's table.
              type: str
              sample: A100 SXM4 40GB
            architecture:
              description: Architecture, null for an id that is not known.
              type: str
              sample: ampere
            driver:
              description: Kernel driver that is bound to the device, null for none.
              type: str
              sample: nvidia
            driver_override:
              description: Driver, such as C(vfio-pci), that a device without one is set aside for.
              returned: if it is set aside for a driver that gives it away
              type: str
              sample: vfio-pci
            kind:
              description:
                - V(gpu), V(nvswitch), or V(nvswitch_bridge) for a ConnectX function through which the NVSwitches of HGX
                  B200 and B300 are managed.
              type: str
              sample: gpu
        driver:
          description: The driver.
          returned: if the subset V(driver) is asked for
          type: dict
          contains:
            installed:
              description: Version of the installed driver library, or of the module if there is no library.
              type: str
              sample: 550.163.01
            loaded:
              description: Version of the module in the kernel, null if none is loaded.
              type: str
              sample: 550.163.01
            nouveau_loaded:
              description: Whether the nouveau module is loaded.
              type: bool
            branch:
              description: Branch of the loaded driver, else of the installed one.
              type: int
              sample: 550
            flavour:
              description: V(open) or V(proprietary) kernel module.
              type: str
              sample: proprietary
            cuda:
              description: Newest CUDA version that the driver runs.
              type: str
              sample: "12.4"
            nvml_error:
              description: Why NVML could not be asked, null if it could or was not asked.
              type: dict
              contains:
                code:
                  description: NVML's return code, null where the failure is not NVML's own.
                  type: int
                  sample: 9
                name:
                  description: Name of the failure.
                  type: str
                  sample: driver_not_loaded
                text:
                  description: What was said.
                  type: str
                  sample: Driver Not Loaded
                remedy:
                  description: What to do.
                  type: str
                device:
                  description: Index of the GPU that was asked last.
                  returned: if NVML hung or crashed over a GPU
                  type: int
                  sample: 3
        devices:
          description: The GPUs as NVML numbers them. A GPU that cannot be reached has only C(index), C(error) and
            what the bus and the driver's files say about it.
          returned: if the subset V(devices) is asked for
          type: list
          elements: dict
          contains:
            index:
              description: NVML's index, which may change at a reboot.
              type: int
              sample: 0
            uuid:
              description: UUID of the GPU.
              type: str
              sample: GPU-5c3a1f2e-0000-4000-8000-000000000000
            minor:
              description: Minor number, the N of /dev/nvidiaN.
              type: int
              sample: 0
            pci_address:
              description: PCI address as the kernel writes it.
              type: str
              sample: "0000:3b:00.0"
            name:
              description: Name of the model.
              type: str
              sample: NVIDIA A100-SXM4-40GB
            slug:
              description: The name for files, labels and attributes.
              type: str
              sample: a100-sxm4-40gb
            architecture:
              description: Architecture.
              type: str
              sample: ampere
            compute_capability:
              description: CUDA compute capability.
              type: str
              sample: "8.0"
            memory_mib:
              description: Memory of the GPU in MiB.
              type: int
              sample: 40960
            ecc:
              description: Whether error correction is C(enabled), and whether it will be after a reset (C(pending)).
                With V(details) also the errors, C(corrected) and C(uncorrected), since the driver was loaded
                (C(volatile)) and ever (C(aggregate)); null where error correction is off.
              type: dict
              sample: {enabled: true, pending: true}
            mig:
              description:
                - Whether MIG is C(enabled), and whether it will be after a reset (C(pending)). Where it is enabled,
                  C(instances) has each MIG device.
                - A device has C(uuid), C(profile) and C(memory_mib), the numbers C(gpu_instance) and
                  C(compute_instance), C(placement) (start and size in units of the GPU's memory, null without root),
                  and C(device_nodes), the capability nodes that a process needs beside those of the GPU.
                - A UUID is that of one life. An instance that is made again has another one.
              type: dict
              sample: {enabled: false, pending: false}
            numa_node:
              description: NUMA node of the GPU, null on a machine without.
              type: int
              sample: 0
            cpus:
              description: The CPUs that are nearest to the GPU, as the kernel writes a list.
              type: str
              sample: 0-31,64-95
            pcie:
              description: PCIe C(generation) and C(width) now, and the C(generation_max) and C(width_max) that
                GPU and slot can do. The generation drops when the GPU is idle.
              type: dict
              sample: {generation: 4, generation_max: 4, width: 16, width_max: 16}
            nvlinks:
              description: Number of NVLinks that are up.
              type: int
              sample: 12
            nvlink_peers:
              description: What the NVLinks that are up lead to. For the PCI address of each GPU or NVSwitch, the
                numbers of the links.
              returned: if V(details) is asked for and the GPU has NVLinks
              type: dict
              sample: {"0000:c0:00.0": "0-1", "0000:c1:00.0": "2-3"}
            nvlinks_down:
              description: Numbers of the NVLinks that are down. Those of a GPU without a bridge are.
              returned: if V(details) is asked for and the GPU has NVLinks
              type: list
              elements: int
              sample: []
            process_count:
              description: Number of processes that compute on the GPU, those of other containers included.
              returned: if V(details) is asked for
              type: int
              sample: 0
            serial:
              description: Serial number of the GPU. GeForce GPUs have none.
              returned: if V(details) is asked for
              type: str
              sample: "1324520001234"
            not_applicable:
              description: What this GPU or its driver does not have; the value is null then. A part of a value is
                named after a dot, such as V(pcie.width).
              type: list
              elements: str
              sample: [nvlinks]
            error:
              description: First failure of a question to this GPU, in the form of C(nvml_error).
              returned: if a question failed
              type: dict
        topology:
          description: How near the GPUs are to one another. Null with fewer than two GPUs.
          returned: if the subset V(topology) is asked for
          type: dict
          contains:
            scores:
              description: A row and a column for each GPU, in the order of C(devices). More is nearer. A score is 100
                for each NVLink that joins the pair, counting those through NVSwitches, plus 10 to 60 for the way over
                PCIe. Null for a GPU with itself and for a GPU that cannot be reached.
              type: list
              elements: list
              sample: [[null, 1250], [1250, null]]
            kinds:
              description: What each score that occurs stands for. C(nvlinks) is the number of NVLinks, and C(pcie) is
                V(board) (60, both on one board), V(pix) (50, one PCIe switch), V(pxb) (40, several switches), V(phb)
                (30, one host bridge), V(node) (20, one NUMA node), V(sys) (10, different NUMA nodes), or null (0, not
                known).
              type: dict
              sample: {"1250": {nvlinks: 12, pcie: pix}}
        health:
          description: The verdict on the host and its GPUs. Null on a host without a GPU that no agent watches.
          returned: if the subset V(health) is asked for
          type: dict
          contains:
            source:
              description: V(agent) if this is the report of the agent, which remembers what was before. V(look) if the
                host was looked at once.
              type: str
              sample: agent
            log_error:
              description: Why the kernel's log could not be read, so that Xids were not judged. Else null.
              type: str
            agent_error:
              description: Why the report of the agent that is to watch the host cannot be used. There is none, or it is
                of another boot, too old, dated in the future, or cannot be read. Then the host was looked at once, and
                nothing is better than V(unknown), since a look does not know what was there before. Else null.
              type: str
            problems:
              description: What hinders the agent, such as a history that was lost or a full disk.
              type: list
              elements: str
              sample: []
            schema:
              description: Version of this structure.
              type: int
              sample: 1
            verdict:
              description: The worst of the host's own and of its GPUs. V(ok), V(degraded), V(fatal) or V(unknown).
              type: str
              sample: ok
            since:
              description: When it was found, in seconds since 1970.
              type: float
            reasons:
              description: Why the host itself is not ok. As those of a GPU.
              type: list
              elements: dict
            devices:
              description: The GPUs. With V(details) also C(since), C(suspected) and C(checks), as
                M(baremetal.gpu.gpu_health_info) returns them.
              type: list
              elements: dict
              contains:
                uuid:
                  description: UUID, null for a GPU that does not report it.
                  type: str
                index:
                  description: NVML's index, null for a GPU that NVML does not list.
                  type: int
                pci_address:
                  description: PCI address as the kernel writes it.
                  type: str
                verdict:
                  description: V(ok), V(degraded), V(fatal) or V(unknown).
                  type: str
                  sample: degraded
                reasons:
                  description: Why it is not ok, the worst first. Each has C(code), C(verdict), C(state), C(evidence),
                    C(action), C(remedy) and C(text), as M(baremetal.gpu.gpu_health_info) returns them.
                  type: list
                  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdicts as gpu_verdicts


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "gather_subset": {
                "type": "list",
                "elements": "str",
                "choices": ["all", *gpu_facts.SUBSETS],
                "default": list(gpu_facts.COMPACT),
            },
            "nvml_timeout": {"type": "int", "default": 30},
            # Filled in by the action plugin.
            "_binding": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    subset = module.params["gather_subset"]
    facts = gpu_facts.gather(
        subset=gpu_facts.SUBSETS if "all" in subset else subset,
        binding_source=nvml.unpack(module.params["_binding"]),
        deadline_s=module.params["nvml_timeout"],
        verdicts=gpu_verdicts,
    )
    module.exit_json(changed=False, ansible_facts={"gpu": facts})


if __name__ == "__main__":
    main()
