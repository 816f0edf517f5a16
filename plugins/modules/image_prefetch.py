#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_prefetch
short_description: Fetch an image from the nodes before this one, and serve it to those after it
version_added: 0.1.0
description:
  - Fetches the layers of an image from the nodes before this one or from its registry, and serves what is there to
    further nodes at the same time. Run on all nodes at once, it takes little longer than on one.
  - The container engine then takes the image from the module on this host, and from the registry under its own name,
    for which it has all layers.
  - What was fetched before a failure stays, and the next run goes on from there.
options:
  reference:
    description: The image without its digest, such as V(registry1:5000/catalogue/base).
    type: str
    required: true
  digest:
    description: The digest of its manifest.
    type: str
    required: true
  manifest:
    description: The manifest in base64. Not needed in check mode.
    type: str
    default: ""
  nodes:
    description:
      - Addresses of all nodes that fetch the image now, in their order. Those before O(own) serve this one, the nearest
        first. Empty for the registry alone.
    type: list
    elements: str
    default: []
  own:
    description: The address of this node in O(nodes).
    type: str
    default: ""
  port:
    description: The port on which nodes serve each other.
    type: int
    default: 5005
  certificate:
    description: The certificate of this distribution, in PEM. It is the authority as well.
    type: str
    default: ""
  key:
    description: Its key, in PEM. Who has it is served.
    type: str
    default: ""
  login:
    description: Name and password for the registry, as NAME:PASSWORD; empty if no login is needed.
    type: str
    default: ""
  engine:
    description: The container engine.
    type: str
    choices: [docker, podman]
    default: docker
  directory:
    description: Where layers are kept until the engine has them.
    type: path
    default: /var/lib/baremetal-gpu/images
  direct:
    description:
      - Have the engine fetch the image from the registry by itself, for few nodes that have most of its layers.
    type: bool
    default: false
  linger:
    description: Seconds without a reader after which this node stops serving.
    type: int
    default: 15
requirements:
  - On the host Python 3.9 and the engine.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: There is an image or there is none.
    support: none
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See whether the image is there
  baremetal.gpu.image_prefetch:
    reference: registry1:5000/catalogue/base
    digest: "{{ image_catalogue[0].digest }}"
  check_mode: true
"""

RETURN = r"""
size:
  description: Bytes of the image as it is in the registry.
  returned: when it was fetched from other nodes
  type: int
fetched:
  description: Bytes that were fetched now; the others were there.
  returned: when it was fetched from other nodes
  type: int
served:
  description: Bytes that other nodes have fetched from here.
  returned: when it was fetched from other nodes
  type: int
seconds:
  description: How long fetching took.
  returned: when it was fetched
  type: float
"""

import base64

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.images import prefetch


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "reference": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "manifest": {"type": "str", "default": ""},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "own": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 5005},
            "certificate": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": True},
            "login": {"type": "str", "default": "", "no_log": True},
            "engine": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
            "directory": {"type": "path", "default": "/var/lib/baremetal-gpu/images"},
            "direct": {"type": "bool", "default": False},
            "linger": {"type": "int", "default": 15},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    try:
        given["manifest"] = base64.b64decode(given["manifest"], validate=True)
        before = prefetch.before(given.pop("nodes"), given.pop("own"))
        node = prefetch.Node(before=before, **given)
        if node.has_image():
            module.exit_json(changed=False)
        if module.check_mode:
            module.exit_json(changed=True)
        module.exit_json(changed=True, **node.fetch())
    except (Refused, ValueError, OSError) as error:
        problem = error if isinstance(error, Refused) else Refused(f"the image cannot be fetched: {error}")
        module.fail_json(**failure(given["reference"], [problem.problem]))


if __name__ == "__main__":
    main()
