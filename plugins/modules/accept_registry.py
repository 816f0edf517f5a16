#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_registry
short_description: Pull an image from the site's registry to nowhere
version_added: 0.1.0
description:
  - Sees whether the host reaches the registry and trusts it, reads an image and compares its digests. Nothing is
    written, and no engine is asked.
  - A registry that fails does not make the module fail.
options:
  server:
    description: Name and port of the registry, as V(registry.example.org:5000).
    type: str
    required: true
  authority:
    description: The authority of its certificate.
    type: path
    default: /etc/baremetal-gpu/registry-client/ca.crt
  image:
    description: The image, as V(catalogue/pytorch:2.9). Empty for none.
    type: str
    default: ""
  login:
    description: C(NAME:PASSWORD) for an image that not everybody may pull.
    type: str
    default: ""
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
seealso:
  - module: baremetal.gpu.accept_services
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Pull an image of the catalogue
  baremetal.gpu.accept_registry:
    server: registry.example.org:5000
    image: catalogue/pytorch:2.9
"""

RETURN = r"""
registry:
  description:
    - C(error) (why the registry could not be used, or null), the C(image), C(pull_error), and the C(bytes) that were
      pulled in C(seconds). Of an image beyond 512 MiB the smallest blobs are pulled.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import services


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "server": {"type": "str", "required": True},
            "authority": {"type": "path", "default": "/etc/baremetal-gpu/registry-client/ca.crt"},
            "image": {"type": "str", "default": ""},
            "login": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    found = services.registry(given["server"], given["authority"], given["image"], given["login"])
    module.exit_json(changed=False, registry=found)


if __name__ == "__main__":
    main()
