#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_device_nodes
short_description: Create the device nodes of the NVIDIA driver
version_added: 0.1.0
description:
  - Creates every node under /dev that the loaded NVIDIA modules require, with their numbers, mode and owner, and the
    link in /dev/char that a container engine with the systemd cgroup driver needs.
  - Reads the list of nodes from /proc/devices and /proc/driver/nvidia. It includes the capability nodes of MIG.
  - Nodes are lost at every boot. The role C(gpu_device_nodes) installs a unit that creates them again.
  - Where the driver is loaded with C(NVreg_ModifyDeviceFiles=0), something else creates the nodes. Then the module
    changes nothing, and fails if a node is wrong.
options:
  load_modules:
    description:
      - Load the modules nvidia and nvidia-uvm first, and fail if that does not work.
      - NVIDIA modules in C(modules-load.d), such as nvidia-drm, are loaded too. A failure of these is ignored.
      - If V(false), a host without the loaded driver stays as it is, and C(loaded) is false.
    type: bool
    default: false
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and says what it would do. A module that is not loaded stays so, and the nodes
      that depend on it are not foretold.
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
  description: The nodes that must be there.
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
differences:
  description: What was not as it must be before the module ran.
  returned: always
  type: list
  elements: dict
  contains:
    path:
      description: Path of the node or link.
      type: str
      sample: /dev/nvidia-uvm
    kind:
      description:
        - One of V(missing), V(not_a_device), V(wrong_number), V(wrong_mode), V(wrong_owner), V(link_missing),
          V(link_wrong) and V(module_not_loaded).
      type: str
      sample: missing
    current:
      description: What was there.
      type: str
      sample: nothing
    expected:
      description: What must be there.
      type: str
      sample: character device 511:0
    remedy:
      description: What to do if the module does not repair it.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure


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
            problem = Problem(
                "modules_not_loaded",
                "nvidia",
                f"the NVIDIA modules cannot be loaded: {'; '.join(errors)}",
                "",
                "read what the kernel says ('sudo dmesg | tail'); the usual causes are nouveau on the GPUs, Secure "
                "Boot and "
                "a module that was built for another kernel",
            )
            module.fail_json(changed=loaded_now, **failure("device nodes", [problem]))
    try:
        nodes = device_nodes.expected_nodes()
    except device_nodes.DriverNotLoaded:
        if module.params["load_modules"] and not module.check_mode:
            problem = Problem(
                "driver_not_loaded",
                "nvidia",
                "the nvidia module is not loaded, so there are no device nodes to make",
                "",
                "run `gpuops up --tags driver`, or set gpu_device_nodes_start: false to leave it to the next boot",
            )
            module.fail_json(loaded=False, **failure("device nodes", [problem]))
        module.exit_json(changed=False, loaded=False, nodes=[], differences=[])

    differences = device_nodes.compare(nodes)
    before_text, after_text = device_nodes.describe(differences)
    if differences and not device_nodes.may_modify():
        listed = "; ".join(f"{one.path} is {one.current}, must be {one.expected}" for one in differences)
        problem = Problem(
            "nodes_of_others",
            "/dev",
            f"{listed}. The driver is loaded with ModifyDeviceFiles=0, so this module may not change the nodes",
            "",
            "correct what makes them on this host, or load the driver without that parameter",
        )
        module.fail_json(
            differences=[difference.as_dict() for difference in differences], **failure("device nodes", [problem])
        )
    if differences and not module.check_mode:
        try:
            device_nodes.create(nodes)
        except OSError as error:
            problem = Problem(
                "node_not_made",
                "/dev",
                f"a device node cannot be made: {error}",
                "",
                "run as root, in a system that may make device nodes; a container may not",
            )
            module.fail_json(
                differences=[difference.as_dict() for difference in differences], **failure("device nodes", [problem])
            )
    module.exit_json(
        changed=bool(differences) or loaded_now,
        loaded=True,
        nodes=[node.as_dict() for node in nodes],
        differences=[difference.as_dict() for difference in device_nodes.module_differences() + differences],
        diff={
            "before_header": "device nodes",
            "after_header": "device nodes",
            "before": before_text,
            "after": after_text,
        },
    )


if __name__ == "__main__":
    main()
