#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_session
short_description: Write what a container has changed as a layer of an image
version_added: 0.1.0
description:
  - Pauses a container, writes what it has changed since its image as a layer into a file, and lets it go on.
  - What is mounted into the container is not saved, nor is its environment. Files in which secrets usually are stay
    out, such as C(.ssh), C(/run) and histories of shells.
  - Needs an engine that stores containers by overlay, as Docker and Podman do by default.
options:
  container:
    description: Name or id of the container.
    type: str
    required: true
  path:
    description: The file; it must not be there yet.
    type: path
    required: true
  owner:
    description: Account of the file; that of the caller if it is empty.
    type: str
    default: ""
  at_most_mib:
    description: Largest size of the file.
    type: int
    default: 20480
  engine:
    description: The container engine.
    type: str
    choices: [docker, podman]
    default: docker
requirements:
  - On the host Python 3.9 and the engine.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: The file is for another program.
    support: none
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Keep what a session has installed
  baremetal.gpu.image_session:
    container: notebook-alice
    path: /var/tmp/notebook-alice.tar.gz
"""

RETURN = r"""
digest:
  description: Digest of the file.
  returned: outside of check mode
  type: str
diff_id:
  description: Digest of what it unpacks to.
  returned: outside of check mode
  type: str
size:
  description: Size of the file in bytes.
  returned: outside of check mode
  type: int
sources:
  description: Names with digest of the image that the container was started from.
  returned: success
  type: list
  elements: str
left_out:
  description: Changed paths that are not in the layer, 1000 at most.
  returned: outside of check mode
  type: list
  elements: str
"""

import os
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.images import session

TOLD_AT_MOST = 1000


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "owner": {"type": "str", "default": ""},
            "at_most_mib": {"type": "int", "default": 20480},
            "engine": {"type": "str", "choices": ["docker", "podman"], "default": "docker"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        found = session.inspect(run, given["engine"], given["container"])
        told = {"changed": True, "sources": found["sources"]}
        if module.check_mode:
            module.exit_json(**told)
        with session.paused(run, given["engine"], given["container"], found["running"]):
            layer = session.write_layer(found["upper"], given["path"], given["at_most_mib"] << 20)
        if given["owner"]:
            account = pwd.getpwnam(given["owner"])
            os.chown(given["path"], account.pw_uid, account.pw_gid)
        module.exit_json(**told, **{**layer, "left_out": layer["left_out"][:TOLD_AT_MOST]})
    except (Refused, KeyError, OSError) as error:
        problem = error if isinstance(error, Refused) else Refused(f"the container cannot be saved: {error}")
        module.fail_json(**failure(given["container"], [problem.problem]))


if __name__ == "__main__":
    main()
