#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wheel_environment
short_description: Keep a virtual environment of Python with exactly the packages of a list
version_added: 0.1.0
description:
  - Makes an environment of the host's Python from wheels that lie on the host, and asks no network. C(pip) checks the
    hash of every wheel.
  - O(path) is a link to a directory that is named after the list. With a new list the environment is made anew in
    another directory, and then the link leads there. So what runs goes on with what it had.
  - The packages that are in the environment are compared with the list, so one that was changed by hand is made anew.
options:
  path:
    description: The link. The directories are in the same place with C(.d) after its name.
    type: path
    required: true
  packages:
    description: Version of each package by its name. With O(state=present) it is needed.
    type: dict
    default: {}
  lock:
    description: The list with hashes as C(pip) reads it, a file of the host. With O(state=present) it is needed.
    type: path
  wheels:
    description: The directory with the wheels. With O(state=present) it is needed.
    type: path
  paths:
    description: Directories into which its Python looks beside its packages, in a C(.pth). They need not be there yet.
    type: list
    elements: str
    default: []
  state:
    description: Whether the environment should be there.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows what differs, and the list of packages that is wanted.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Converge the environment of the hub
  baremetal.gpu.wheel_environment:
    path: /opt/baremetal-gpu/portal
    packages:
      jupyterhub: 6.1.1
    lock: /opt/baremetal-gpu/portal-wheels/requirements.txt
    wheels: /opt/baremetal-gpu/portal-wheels
"""

RETURN = r"""
differences:
  description: How the environment differed from the list, a line for each reason.
  returned: success
  type: list
  elements: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.system import wheel_environment


def settle(module: AnsibleModule) -> dict[str, Any]:
    """Bring the environment into its state. Raises Refused."""
    path = module.params["path"]
    found = wheel_environment.current(path)
    if module.params["state"] == "absent":
        lines = ["it is there"] if os.path.lexists(path) or os.path.isdir(f"{path}.d") else []
        if lines and not module.check_mode:
            wheel_environment.remove(path)
        return _result(path, lines, [])
    paths = module.params["paths"]
    wanted = {wheel_environment.normal(name): str(version) for name, version in module.params["packages"].items()}
    if not found.directory and module.check_mode:
        # A bare host may have no Python of its own yet.
        return _result(path, ["it is not there"], [f"{name} {version}" for name, version in sorted(wanted.items())])
    python = wheel_environment.system_python()
    lines = wheel_environment.differences(found, wanted, python, paths)
    if lines and not module.check_mode:
        wheel_environment.make(path, module.params["lock"], module.params["wheels"], python, paths=paths)
        left = wheel_environment.differences(wheel_environment.current(path), wanted, python, paths)
        if left:
            raise Refused(
                f"{path} still differs: {'; '.join(left[:5])}",
                "see whether the list of packages and the hashes are of the same wheels",
                code="still_differs",
            )
    return _result(path, lines, [f"{name} {version}" for name, version in sorted(wanted.items())] if lines else [])


def _result(path: str, lines: list[str], after: list[str]) -> dict[str, Any]:
    diff = {
        "before_header": path,
        "after_header": path,
        "before": "".join(f"{line}\n" for line in lines),
        "after": "".join(f"{line}\n" for line in after),
    }
    return {"changed": bool(lines), "differences": lines, "diff": diff}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "packages": {"type": "dict", "default": {}},
            "lock": {"type": "path"},
            "wheels": {"type": "path"},
            "paths": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ("lock", "wheels"))],
        supports_check_mode=True,
    )
    try:
        result = settle(module)
    except Refused as reason:
        module.fail_json(**failure(module.params["path"], [reason.problem]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
