#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: user_software_info
short_description: Return what a host has that people load as a module
version_added: 0.1.0
description:
  - Finds CUDA toolkits, Open MPI, compilers, NCCL and environments of the site as they are installed, no matter how.
    It runs C(nvcc) and C(ompi_info) for their versions and changes nothing.
options:
  environments:
    description: Directories of environments of the site, by the names of their modules.
    type: dict
    default: {}
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See what people can load
  baremetal.gpu.user_software_info:
    environments: {pytorch/2.6: /opt/environments/pytorch}
"""

RETURN = r"""
modules:
  description: A row for each.
  returned: success
  type: list
  elements: dict
  sample: [{name: cuda/12.4, kind: cuda, path: /usr/local/cuda-12.4, default: true}]
written:
  description: Module files that the role P(baremetal.gpu.user_software#role) wrote, sorted.
  returned: success
  type: list
  elements: str
  sample: [/etc/lmod/modules/cuda/12.4.lua]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.system import user_software


def main() -> None:
    module = AnsibleModule(
        argument_spec={"environments": {"type": "dict", "default": {}}},
        supports_check_mode=True,
    )
    module.exit_json(
        changed=False,
        modules=user_software.modules(module.params["environments"], run),
        written=user_software.written(),
    )


if __name__ == "__main__":
    main()
