#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_device_nodes
short_description: Make the device nodes of the NVIDIA driver
version_added: 0.1.0
description:
  - Makes every node under /dev that the loaded NVIDIA modules ask for, with the numbers, mode and owner that they ask
    for, and the link in /dev/char that a container engine with the systemd cgroup driver needs.
  - Which nodes these are is read from /proc/devices and /proc/driver/nvidia. Capability nodes of MIG are among them.
  - Nodes are lost at every boot. The role C(gpu_device_nodes) installs a unit that makes them again.
  - Where the driver is loaded with C(NVreg_ModifyDeviceFiles=0), something else makes the nodes. Then the module
    changes nothing, and fails if a node is not as it must be.
options:
  load_modules:
    description:
      - Load the modules nvidia and nvidia-uvm first where they are not loaded, and fail if that does not help.
      - Modules of NVIDIA's that C(modules-load.d) lists, such as nvidia-drm, are loaded too, as they will be at the
        next boot. It is no failure where they cannot be.
      - If V(false), a host without the loaded driver is left as it is, as RV(loaded) shows.
    type: bool
    default: false
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and returns what it would do. A module that is not loaded stays so, and the nodes
      that depend on it are not announced.
  diff_mode:
    description: Shows each node and link that is not as it must be, before and after.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Make the device nodes of the loaded driver
  baremetal.gpu.gpu_device_nodes:

- name: Load the driver where it is not loaded, and make its device nodes
  baremetal.gpu.gpu_device_nodes:
    load_modules: true
"""

RETURN = r"""
loaded:
  description: Whether the nvidia module is loaded.
  returned: always
  type: bool
nodes:
  description: The nodes that the loaded driver has.
  returned: always
  type: list
  elements: dict
  contains:
    path:
      description: Path of the node.
      type: str
      sample: /dev/nvidia0
    major:
      description: Major number.
      type: int
      sample: 195
    minor:
      description: Minor number.
      type: int
      sample: 0
    mode:
      description: Mode in octal digits.
      type: str
      sample: "0666"
    uid:
      description: Number of the owner.
      type: int
      sample: 0
    gid:
      description: Number of the group.
      type: int
      sample: 0
problems:
  description: What was not as it must be before the module ran, or why it failed.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - Of a node one of V(missing), V(not_a_device), V(wrong_number), V(wrong_mode), V(wrong_owner),
          V(link_missing), V(link_wrong) and V(module_not_loaded).
        - Of a failure one of V(modules_not_loaded), V(driver_not_loaded) and V(node_not_made).
      type: str
      sample: missing
    subject:
      description: Path of the node or link; what failed otherwise.
      type: str
      sample: /dev/nvidia-uvm
    cause:
      description: What is not as it must be.
      type: str
      sample: /dev/nvidia-uvm is nothing, must be character device 511:0
    evidence:
      description: The current state, or the error.
      type: str
      sample: nothing
    remedy:
      description: What to do where the module does not correct it.
      type: str
"""

from dataclasses import replace

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure

SUBJECT = "device nodes"


def main() -> None:
    module = AnsibleModule(
        argument_spec={"load_modules": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )
    loaded_now = False
    if module.params["load_modules"] and not module.check_mode:
        before = device_nodes.loaded_modules()
        errors = device_nodes.load_modules()
        if not errors:
            device_nodes.load_boot_modules()
        loaded_now = device_nodes.loaded_modules() != before
        if errors:
            listed = "; ".join(errors)
            problem = Problem(
                "modules_not_loaded",
                "nvidia",
                f"the NVIDIA modules cannot be loaded: {listed}",
                listed,
                "read what the kernel says ('dmesg | tail'); the usual causes are nouveau on the GPUs, Secure Boot and "
                "a module that was built for another kernel",
            )
            module.fail_json(**failure(SUBJECT, [problem]), changed=loaded_now)
    try:
        nodes = device_nodes.expected_nodes()
    except device_nodes.DriverNotLoaded:
        if module.params["load_modules"] and not module.check_mode:
            problem = Problem(
                "driver_not_loaded",
                "nvidia",
                "the nvidia module is not loaded, so there are no device nodes to make",
                remedy="run the role nvidia_driver, or set gpu_device_nodes_start: false to leave it to the next boot",
            )
            module.fail_json(**failure(SUBJECT, [problem]), loaded=False)
        module.exit_json(changed=False, loaded=False, nodes=[], problems=[])

    differences = device_nodes.compare(nodes)
    before_text, after_text = device_nodes.describe(differences)
    problems = [_problem(row) for row in differences]
    if problems and not device_nodes.may_modify():
        listed = "; ".join(problem.cause for problem in problems)
        remedy = "correct what makes them here, or load the driver without ModifyDeviceFiles=0"
        summary = Problem(
            "nodes_not_managed",
            "/dev",
            f"{listed}. The driver is loaded with ModifyDeviceFiles=0, so the nodes are not this module's to change",
            remedy=remedy,
        )
        rows = [replace(problem, remedy=remedy).as_dict() for problem in problems]
        module.fail_json(**{**failure(SUBJECT, [summary]), "problems": rows})
    if problems and not module.check_mode:
        try:
            device_nodes.create(nodes)
        except OSError as error:
            problem = Problem(
                "node_not_made",
                str(error.filename or "/dev"),
                f"a device node cannot be made: {error}",
                str(error),
                "run as root, in a system that may make device nodes; a container may not",
            )
            module.fail_json(**failure(SUBJECT, [problem]))
    modules = [replace(_problem(row), cause=row.found) for row in device_nodes.module_problems()]
    module.exit_json(
        changed=bool(problems) or loaded_now,
        loaded=True,
        nodes=[node.as_dict() for node in nodes],
        problems=[problem.as_dict() for problem in [*modules, *problems]],
        diff={
            "before_header": "device nodes",
            "after_header": "device nodes",
            "before": before_text,
            "after": after_text,
        },
    )


def _problem(row: device_nodes.Problem) -> Problem:
    return Problem(row.kind, row.path, f"{row.path} is {row.found}, must be {row.expected}", row.found, row.remedy)


if __name__ == "__main__":
    main()
