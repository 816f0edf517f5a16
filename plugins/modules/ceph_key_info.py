#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_key_info
short_description: Read the capabilities of Ceph's keys
version_added: 0.1.0
description:
  - Returns the names and capabilities of keys, without the secrets.
options:
  names:
    description: The keys. By default all.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.attributes.looks
seealso:
  - module: baremetal.gpu.ceph_key
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See who may do what
  baremetal.gpu.ceph_key_info:
  register: keys
"""

RETURN = r"""
caps:
  description: What each key may do, by its name and the kind of daemon. A key that is not there is missing here.
  returned: success
  type: dict
  sample: {client.alice: {mon: allow r}}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import key as ceph_key
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph


def main() -> None:
    module = AnsibleModule(
        argument_spec={**ceph_module.CONNECTION, "names": {"type": "list", "elements": "str", "default": []}},
        supports_check_mode=True,
    )
    names = set(module.params["names"])

    def work(ceph: Ceph) -> dict[str, Any]:
        listed = ceph_key.read_all(ceph)
        caps = {name: key["caps"] for name, key in listed.items() if not names or name in names}
        return {"changed": False, "caps": caps}

    ceph_module.guarded(module, "the keys", work)


if __name__ == "__main__":
    main()
