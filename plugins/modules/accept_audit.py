#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_audit
short_description: Run the audit that buyers of clusters use
version_added: 0.1.0
description:
  - Runs C(cmax audit --slurm) of the package clustermax, if it is installed on the host, and returns its checks.
  - The program runs commands and jobs of its own as the user of this module. What it writes is removed.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode nothing is run.
seealso:
  - module: baremetal.gpu.accept_jobs
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Audit the cluster
  baremetal.gpu.accept_audit:
"""

RETURN = r"""
audit:
  description:
    - Whether the program is C(installed), the C(error) that kept it from its end, and C(rows) with C(id), C(title),
      C(status) and what was C(observed). Null in check mode.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept.audit import audit


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, audit=None if module.check_mode else audit())


if __name__ == "__main__":
    main()
