#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_query
short_description: Run a copy and a kernel on every NVIDIA GPU of a host
version_added: 0.1.0
description:
  - Reads every GPU's properties from the CUDA driver library, copies memory to the GPU, on it and back and measures the
    bandwidth, launches a kernel and checks every element of its result.
  - Needs the driver and no CUDA toolkit. The kernel is PTX text that the driver compiles for the GPU.
  - Runs in a child process with a deadline, so a GPU that never answers is a finding, and the other GPUs are still
    queried.
  - Also compares the device nodes with those that the loaded driver requires.
  - Can repeat the query in containers with some of the GPUs, and compares the GPUs that a container sees with those
    that it was given.
  - A fault does not make the module fail. It returns cause and remedy, and C(ok) is false.
options:
  copy_mib:
    description: Size of each copy in MiB. On a GPU that is nearly full it is a quarter of what is free.
    type: int
    default: 64
  repeats:
    description: How many copies are timed together.
    type: int
    default: 5
  elements:
    description: Number of elements that the kernel computes.
    type: int
    default: 262144
  timeout:
    description:
      - Seconds that one step may take, such as the initialisation or the copies of one GPU.
      - Without persistence mode the initialisation alone takes seconds per GPU.
    type: int
    default: 60
  library:
    description: Name or path of the CUDA driver library.
    type: str
    default: libcuda.so.1
  container_engine:
    description:
      - Repeat the query in containers of this engine, one with the first GPU and one with all GPUs.
      - The image has only empty directories and is imported once, which is the only change. The interpreter is mounted
        from the host.
    type: str
    choices: [none, docker, podman]
    default: none
  container_mode:
    description:
      - How the containers get their GPUs. V(cdi) is C(--device nvidia.com/gpu=0), V(runtime) is C(--gpus) of NVIDIA's
        container runtime, V(explicit) is a list of device files and mounts.
      - V(auto) is the first of these that the engine supports.
    type: str
    choices: [auto, cdi, runtime, explicit]
    default: auto
  container_mounts:
    description: Further paths of the host that the driver library needs, mounted read-only into the containers.
    type: list
    elements: path
    default: []
  cuda_runtime:
    description:
      - Repeat the query through the CUDA runtime, with a program that the default toolkit's nvcc compiles for the
        host's GPUs. The program is kept, and compiled again only for another source, toolkit or GPU.
      - V(auto) compiles and runs it where a toolkit is installed, V(compile) does not run it, V(run) makes a missing
        toolkit an error.
    type: str
    choices: [skip, auto, compile, run]
    default: skip
  cuda_runtime_source:
    description: Text of the program. The role C(gpu_verify) has it in its files.
    type: str
  nvcc:
    description: Path of the compiler, if it is not in /usr/local/cuda, /usr/bin or /usr/local/cuda-*.
    type: path
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: Can run in check mode and answers the same there. Only what would have to be made first is left
      out, the containers' image and the program of the CUDA runtime.
  diff_mode:
    description: The image and the program that it may make are nothing to show.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Query every GPU
  baremetal.gpu.gpu_query:
  register: query

- name: Query every GPU, also in containers
  baremetal.gpu.gpu_query:
    container_engine: docker

- name: Stop where a GPU does not compute
  ansible.builtin.assert:
    that: query.ok
    fail_msg: "{{ query.causes | map(attribute='text') | join('; ') }}"
"""

RETURN = r"""
ok:
  description: Whether there is a GPU, every GPU passed, and every device node is as it must be.
  returned: always
  type: bool
causes:
  description: What is wrong. Empty where C(ok) is true.
  returned: always
  type: list
  elements: dict
  contains:
    where:
      description: The GPU's PCI address, a path, or V(host).
      type: str
      sample: "0000:3b:00.0"
    code:
      description: Short name of the cause.
      type: str
      sample: driver_library_mismatch
    text:
      description: What was found.
      type: str
    remedy:
      description: What to do.
      type: str
query:
  description: The query's result.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
      sample: 1
    source:
      description: The interface that was used.
      type: str
      sample: driver_api
    ok:
      description: Whether there is a GPU and every GPU passed.
      type: bool
    cuda:
      description: Newest CUDA version that the driver library runs.
      type: str
      sample: "12.4"
    count:
      description: Number of GPUs that CUDA sees.
      type: int
      sample: 2
    error:
      description: The failed call of the initialisation with C(call), C(code), C(name) and C(text), or null.
      type: dict
    cause:
      description: The cause of C(error) with C(code), C(text) and C(remedy), or null.
      type: dict
    device_files:
      description: Paths of the device files under /dev/nvidia*.
      type: list
      elements: str
    devices:
      description: The GPUs as CUDA numbers them in the order of the PCI bus.
      type: list
      elements: dict
      contains:
        index:
          description: CUDA's index.
          type: int
        ok:
          description: Whether the GPU passed.
          type: bool
        name:
          description: Name of the model.
          type: str
          sample: NVIDIA A100-SXM4-40GB
        uuid:
          description: UUID of the GPU.
          type: str
        pci_address:
          description: PCI address as the kernel writes it.
          type: str
          sample: "0000:3b:00.0"
        compute_capability:
          description: CUDA compute capability.
          type: str
          sample: "8.0"
        memory_mib:
          description: Memory in MiB.
          type: int
        ecc:
          description: Whether error correction is on.
          type: bool
        compute_mode:
          description: V(default), V(exclusive_process) or V(prohibited).
          type: str
        multiprocessors:
          description: Number of streaming multiprocessors.
          type: int
        clock_mhz:
          description: Peak clock of the multiprocessors.
          type: int
        memory_clock_mhz:
          description: Peak clock of the memory.
          type: int
        memory_bus_bits:
          description: Width of the memory bus.
          type: int
        l2_cache_kib:
          description: Size of the second-level cache.
          type: int
        copy:
          description:
            - The copies, with C(mib), C(host_to_device_gb_s), C(device_to_host_gb_s) and C(device_to_device_gb_s).
            - The rates are in 10^9 bytes copied per second, from pinned memory. A byte that is copied on the device
              counts once, though it is read and written.
          type: dict
        kernel:
          description: The kernel, with C(entry), C(elements), C(wrong) and C(ms).
          type: dict
        error:
          description: The failed call with C(call), C(code), C(name) and C(text), or null.
          type: dict
        cause:
          description: The cause of C(error) with C(code), C(text) and C(remedy), or null.
          type: dict
containers:
  description: The query in containers. Null where O(container_engine=none).
  returned: always
  type: dict
  contains:
    mode:
      description: How the containers were given their GPUs.
      type: str
      sample: cdi
    skipped:
      description: Why no container ran, or null.
      type: str
    containers:
      description: The containers, each with C(name), C(mode), C(ok), C(causes) and C(query).
      type: list
      elements: dict
    causes:
      description: What is wrong, in the form of C(causes).
      type: list
      elements: dict
runtime:
  description: The query through the CUDA runtime. Null where O(cuda_runtime=skip).
  returned: always
  type: dict
  contains:
    nvcc:
      description: The compiler, or null.
      type: str
      sample: /usr/bin/nvcc
    program:
      description: The program that it made, or null.
      type: str
    skipped:
      description: Why it was not compiled, or null.
      type: str
    query:
      description: Its result in the form of C(query), or null where it did not run.
      type: dict
    causes:
      description: What is wrong, in the form of C(causes).
      type: list
      elements: dict
state:
  description: What the host's files say that bears on the query.
  returned: always
  type: dict
  contains:
    GPUs:
      description: The GPUs on the PCI bus.
      type: list
      elements: dict
    left_out:
      description: The GPUs on the PCI bus that are another's, such as a virtual machine's, and why.
      returned: if there are such
      type: list
      elements: str
    nvswitches:
      description: Number of NVSwitches on the PCI bus, or of the bridges to those that are not.
      type: int
    loaded:
      description: Version of the loaded driver, or null.
      type: str
    installed:
      description: Version of the installed driver libraries, or null.
      type: str
    secure_boot:
      description: Whether Secure Boot is on; null if it is unknown.
      type: bool
    minors:
      description: PCI address to minor number of the GPUs that the driver has.
      type: dict
    nodes:
      description: The device nodes that the loaded driver asks for.
      type: list
      elements: str
    node_differences:
      description: The nodes and links that are not as they must be.
      type: list
      elements: dict
due:
  description: Whether there is a record that the host must be verified before it gets its work back.
  returned: always
  type: bool
"""

import inspect
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import container as verify_container
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import runtime as verify_runtime

# Same as in plugins/module_utils/drift/compare.py.
RECORD = "/var/lib/baremetal-gpu/pending/proof-gpu_verify"


def query_containers(module: AnsibleModule, result: dict[str, Any], state: dict[str, Any]) -> dict[str, Any] | None:
    """The same in containers; None where none is asked for or the host itself has nothing to give them."""
    if module.params["container_engine"] == "none":
        return None
    answer: dict[str, Any] = {"changed": False, "mode": None, "containers": [], "skipped": None, "causes": []}
    if not result["devices"] or result["error"]:
        return {**answer, "skipped": "no GPU answers on the host itself"}
    # Numbered as NVML has them, which is by address too.
    gpus = sorted((gpu for gpu in result["devices"] if "pci_address" in gpu), key=lambda gpu: gpu["pci_address"])
    given = [
        {**gpu, "index": index, "minor": state["minors"].get(gpu["pci_address"])} for index, gpu in enumerate(gpus)
    ]
    try:
        found = cdi.gather(given=given)
    except cdi.CannotTell as error:
        return {**answer, "causes": [{"where": "host", **verify_query.cause("container", str(error))}]}
    return verify_container.run_all(
        inspect.getsource(cuda_driver),
        module.params["container_engine"],
        module.params["container_mode"],
        found,
        state,
        mounts=module.params["container_mounts"],
        timeout_s=module.params["timeout"],
        check_mode=module.check_mode,
    )


def query_runtime_api(
    module: AnsibleModule, options: cuda_driver.Options, result: dict[str, Any], state: dict[str, Any]
) -> dict[str, Any] | None:
    """The same through the CUDA runtime; None where it is not asked for."""
    wanted = module.params["cuda_runtime"]
    if wanted == "skip":
        return None
    answer = verify_runtime.run_all(
        module.params["cuda_runtime_source"],
        options,
        state,
        [gpu["compute_capability"] for gpu in result["devices"] if "compute_capability" in gpu],
        # Where the driver itself does not answer, the runtime has nothing to add.
        execute=wanted != "compile" and result["error"] is None,
        nvcc=module.params["nvcc"],
        check_mode=module.check_mode,
    )
    if wanted == "run" and answer["skipped"] and not module.check_mode:
        answer["causes"].append({"where": "CUDA runtime", **verify_query.cause("toolkit_missing", answer["skipped"])})
    return answer


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "copy_mib": {"type": "int", "default": 64},
            "repeats": {"type": "int", "default": 5},
            "elements": {"type": "int", "default": 262144},
            "timeout": {"type": "int", "default": 60},
            "library": {"type": "str", "default": "libcuda.so.1"},
            "container_engine": {"type": "str", "choices": ["none", "docker", "podman"], "default": "none"},
            "container_mode": {"type": "str", "choices": ["auto", "cdi", "runtime", "explicit"], "default": "auto"},
            "container_mounts": {"type": "list", "elements": "path", "default": []},
            "cuda_runtime": {"type": "str", "choices": ["skip", "auto", "compile", "run"], "default": "skip"},
            "cuda_runtime_source": {"type": "str"},
            "nvcc": {"type": "path"},
        },
        required_if=[("cuda_runtime", wanted, ("cuda_runtime_source",)) for wanted in ("auto", "compile", "run")],
        supports_check_mode=True,
    )
    for name in ("copy_mib", "repeats", "elements", "timeout"):
        if module.params[name] < 1:
            module.fail_json(msg=f"{name} is {module.params[name]}; set it to 1 or more")
    options = cuda_driver.Options(
        copy_mib=module.params["copy_mib"],
        repeats=module.params["repeats"],
        elements=module.params["elements"],
        timeout_s=module.params["timeout"],
        library=module.params["library"],
    )
    # The state is read first: libcuda loads modules and makes nodes itself where it can, which would hide what is
    # missing for everybody else.
    state = verify_query.host_state()
    result = verify_query.judge(cuda_driver.run(options), state)
    causes = verify_query.causes_of(result) + verify_query.node_causes(state)
    containers = query_containers(module, result, state)
    if containers:
        causes += containers["causes"]
    runtime = query_runtime_api(module, options, result, state)
    if runtime:
        causes += runtime["causes"]
    module.exit_json(
        changed=any(part["changed"] for part in (containers, runtime) if part),
        ok=not causes and result["ok"],
        causes=causes,
        query=result,
        containers=containers,
        runtime=runtime,
        state=state,
        due=os.path.exists(RECORD),
    )


if __name__ == "__main__":
    main()
