#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_load
short_description: Put every NVIDIA GPU of a host under load and measure it
version_added: 0.1.0
description:
  - Tests all free memory of every GPU with patterns, computes in FP32, FP64 and, from compute capability 8.0 on, in
    BF16 on tensor cores, and compares every result. Measures copies between host and GPU and between every pair of
    GPUs. Reads power, temperature, clocks and counters of errors meanwhile.
  - Before the memory test counts, it turns a bit itself and has to find it.
  - Needs the driver and no CUDA toolkit. The kernels are PTX text that the driver compiles for the GPU.
  - Uses only idle GPUs. A job on one of them would be slowed down, and would take memory from the test.
  - A child process for each GPU does the work. A GPU that never answers is a finding, and the others go on. The
    children end with the module, so a run that is killed leaves no load behind.
  - A fault does not make the module fail.
options:
  minutes:
    description: How long memory and arithmetic take turns. At least one turn of every kind is taken.
    type: float
    default: 1
  memory_mib:
    description: MiB of each GPU's memory to test, V(0) for all that is free.
    type: int
    default: 0
  copy_mib:
    description: Size of a timed copy in MiB.
    type: int
    default: 256
  repeats:
    description: How many copies are timed. The median counts.
    type: int
    default: 5
  peers:
    description: Whether to measure copies between the GPUs.
    type: bool
    default: true
  uuids:
    description: UUIDs of the GPUs to use. Empty for all.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds without any news after which a GPU counts as hanging.
    type: int
    default: 120
  library:
    description: Name or path of the CUDA driver library.
    type: str
    default: libcuda.so.1
  _binding:
    description:
      - The controller's pynvml, packed. The action plugin sets it; playbooks do not.
    type: str
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode no GPU is used, and C(load) is null.
  action:
    description: An action plugin takes the controller's pynvml along.
    support: full
seealso:
  - module: baremetal.gpu.gpu_query
  - module: baremetal.gpu.accept_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Put every GPU under load for ten minutes
  baremetal.gpu.gpu_load:
    minutes: 10
  register: under_load
"""

RETURN = r"""
load:
  description: What was found. Null in check mode.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
    error:
      description: Why no GPU could be used, or null. C(call), C(code), C(name) and C(text).
      type: dict
    nvml_error:
      description: Why NVML could not be read meanwhile, or null.
      type: dict
    devices:
      description:
        - The GPUs with their properties as M(baremetal.gpu.gpu_query) has them, and C(error) as above.
        - C(copies) has the rates in 10^9 bytes a second, C(memory) that of reading and writing, C(fp32), C(fp64) and
          C(bf16) 10^12 operations a second. Each has C(wrong), the number of results that were wrong.
        - C(own_flip) has the bit that the test turned itself, whether it was C(found), and how many C(others) were.
        - C(memory_errors) has places of wrong bits, C(readings) what NVML returned.
      type: list
      elements: dict
    pairs:
      description: Pairs of GPUs with the rates C(there_gb_s) and C(back_gb_s), and whether they are C(peers).
      type: list
      elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.accept.load import Options
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "minutes": {"type": "float", "default": 1},
            "memory_mib": {"type": "int", "default": 0},
            "copy_mib": {"type": "int", "default": 256},
            "repeats": {"type": "int", "default": 5},
            "peers": {"type": "bool", "default": True},
            "uuids": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 120},
            "library": {"type": "str", "default": "libcuda.so.1"},
            # Filled in by the action plugin.
            "_binding": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    for name, least in (("minutes", 0), ("memory_mib", 0), ("copy_mib", 1), ("repeats", 1), ("timeout", 1)):
        if not given[name] >= least:
            module.fail_json(msg=f"{name} is {given[name]}; set it to {least} or more")
    if module.check_mode:
        module.exit_json(changed=False, load=None)
    options = Options(
        seconds=60 * given["minutes"],
        memory_mib=given["memory_mib"],
        copy_mib=given["copy_mib"],
        repeats=given["repeats"],
        timeout_s=given["timeout"],
        library=given["library"],
        devices=tuple(given["uuids"]),
    )
    module.exit_json(changed=False, load=gpus.run(options, nvml.unpack(given["_binding"]), given["peers"]))


if __name__ == "__main__":
    main()
