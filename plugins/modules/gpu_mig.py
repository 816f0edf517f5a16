#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_mig
short_description: Cut the GPUs of a host by MIG
version_added: 0.1.0
description:
  - Brings the GPUs of a host to a layout of MIG instances, and makes the device nodes that these need.
  - Profiles and their places are read from each GPU. Instances that the layout has too stay as they are, with the
    processes in them. Each instance gets one compute instance with all of it.
  - Refuses, before it changes anything, a profile that a GPU does not have, a layout that does not fit, an instance
    that would have to go and has a process, and a change of the mode while other processes have the GPU open. The
    processes are named with their users.
  - Instances are lost at every reboot. The role C(gpu_mig) installs a unit that makes them again.
options:
  layout:
    description:
      - How each GPU is to be cut. A key is V(all), an index or a UUID, and the narrower one counts. A value is a
        mapping of profiles to how many there are to be, or V(false) for a GPU without MIG. A GPU that no key names
        stays as it is.
      - Or the content of a file of NVIDIA's mig-parted, which has C(mig-configs).
    type: dict
    required: true
  config:
    description: Which of the C(mig-configs) of O(layout) is to be.
    type: str
    default: ''
  stop_units:
    description:
      - Units that may have a GPU open while its mode changes. They are stopped for that and started again.
    type: list
    elements: str
    default:
      - baremetal-gpu-agent.service
      - nvidia-persistenced.service
      - nvidia-dcgm.service
      - dcgm.service
      - dcgm-exporter.service
  _binding:
    description:
      - The controller's pynvml, packed. The action plugin sets it; playbooks do not.
    type: str
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and says what it would do. Where MIG is off, the GPU does not tell places yet,
      and those that are shown are worked out from the memory of its profiles. On a host without the driver nothing is
      known, and a change is announced.
  diff_mode:
    description: Shows the instances of each GPU before and after.
  action:
    description: An action plugin takes the controller's pynvml along.
    support: full
seealso:
  - module: baremetal.gpu.gpu_facts
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Cut all GPUs in seven, and leave the last one whole
  baremetal.gpu.gpu_mig:
    layout:
      all: {1g.10gb: 7}
      "7": false

- name: Take a layout from a file of mig-parted
  baremetal.gpu.gpu_mig:
    layout: "{{ lookup('file', 'mig-parted.yaml') | from_yaml }}"
    config: all-balanced
"""

RETURN = r"""
steps:
  description: What was done, or would be in check mode, in order.
  returned: always
  type: list
  elements: str
  sample: [switch MIG on, create 1g.10gb at 0]
gpus:
  description: The GPUs afterwards; in check mode, before.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index.
      type: int
      sample: 0
    uuid:
      description: UUID of the GPU.
      type: str
    pci_address:
      description: PCI address as the kernel writes it.
      type: str
      sample: "0000:07:00.0"
    name:
      description: Name of the model.
      type: str
      sample: NVIDIA H100 80GB HBM3
    enabled:
      description: Whether MIG is on; null for a GPU without MIG.
      type: bool
    pending:
      description: Whether it will be after a reset.
      type: bool
    profiles:
      description: What the GPU can be cut into.
      type: list
      elements: str
      sample: [1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb]
    instances:
      description: The GPU instances with C(profile), C(placement) (start and size), C(gpu_instance), C(uuids) of their
        MIG devices, and C(clients), the processes in them.
      type: list
      elements: dict
problems:
  description: Why nothing was changed, in the form of RV(baremetal.gpu.refuse#module:problems).
  returned: on failure
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, mig, mig_layout, nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "layout": {"type": "dict", "required": True},
            "config": {"type": "str", "default": ""},
            "stop_units": {"type": "list", "elements": "str", "default": list(mig.OURS)},
            # Filled in by the action plugin.
            "_binding": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    nodes = []
    try:
        chosen = mig_layout.rules(given["layout"], given["config"])
        source = nvml.unpack(given["_binding"])
        found = mig.bring_about(chosen, source, host_run.run, module.check_mode, ours=given["stop_units"])
        if not found.problems and not module.check_mode:
            wanted = device_nodes.expected_nodes()
            nodes = device_nodes.compare(wanted) if device_nodes.may_modify() else []
            if nodes:
                device_nodes.create(wanted)
    except mig_layout.LayoutError as wrong:
        module.fail_json(**failure("MIG", [wrong.problem], "Nothing was changed."))
    except Refused as refused:
        if module.check_mode and refused.problem.code == "nvml_failed":
            # A run may install the driver before.
            module.warn(f"{refused.problem.cause}; what MIG would change is not known")
            module.exit_json(changed=True, steps=[], gpus=[])
        module.fail_json(**failure("MIG", [refused.problem]))
    if found.problems:
        module.fail_json(**failure("MIG", found.problems, "Nothing was changed."))
    module.exit_json(
        changed=found.changed or bool(nodes),
        steps=found.steps,
        gpus=found.gpus,
        diff={"before_header": "MIG", "after_header": "MIG", "before": found.before, "after": found.after},
    )


if __name__ == "__main__":
    main()
