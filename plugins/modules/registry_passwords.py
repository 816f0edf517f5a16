#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: registry_passwords
short_description: Keep the passwords of a registry's users in files on the controller
version_added: 0.1.0
description:
  - Runs on the controller. Creates a file with a new password for each user that has none. An existing one never
    changes; for another password, remove the file.
  - Only the owner may read the files. They are named after the users. The file of a user who left stays.
options:
  path:
    description: The directory.
    type: path
    required: true
  users:
    description: The users.
    type: list
    elements: str
    required: true
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows whose passwords are made, without any.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.cluster_secrets
"""

EXAMPLES = r"""
- name: Read the passwords, or make them
  baremetal.gpu.registry_passwords:
    path: "{{ inventory_dir }}/.secrets/registry"
    users: [operator, alice]
  delegate_to: localhost
  become: false
  throttle: 1
  no_log: true
  register: passwords
"""

RETURN = r"""
hashes:
  description: >-
    By user what a file of htpasswd has instead of the password. In check mode that of a password that is not made yet
    is of no use.
  returned: success
  type: dict
"""

import base64
import hashlib
import os
import re
import secrets

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure

BYTES = 24
# No blank, no colon, and nothing that a shell or a file of credentials would take for something else.
PASSWORD = re.compile(r"[A-Za-z0-9_.+/=-]{16,128}", re.ASCII)


def read(path: str) -> str:
    """The password in a file; empty without the file.

    :raises Refused: if others may read it, or if it is no password.
    """
    try:
        if os.stat(path).st_mode & 0o077:
            raise Refused(f"others than its owner may read {path}", f"chmod 600 {path}")
        with open(path, encoding="ascii") as file:
            found = file.read(1024).strip()
    except FileNotFoundError:
        return ""
    if not PASSWORD.fullmatch(found):
        raise Refused(
            f"{path} has no password of 16 to 128 letters, digits and -_.+/=", "remove the file, and run again"
        )
    return found


def hashed(user: str, password: str) -> str:
    """What nginx compares with; the same for the same password.

    One round of SHA-1 is enough for 24 random bytes, which nobody guesses; nginx checks it at every request, where it
    would wait for a slow hash.
    """
    salt = hashlib.sha256(f"{user}:{password}".encode()).digest()[:8]
    digest = hashlib.sha1(password.encode() + salt, usedforsecurity=False).digest()
    return "{SSHA}" + base64.b64encode(digest + salt).decode()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "users": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    try:
        found = {user: read(os.path.join(path, user)) for user in module.params["users"]}
        missing = sorted(user for user, password in found.items() if not password)
        if missing and not module.check_mode:
            os.makedirs(path, mode=0o700, exist_ok=True)
            # On the controller an operator's own links lead where he wants.
            real = os.path.realpath(path)
            for user in missing:
                found[user] = secrets.token_hex(BYTES)
                secret_file.write(os.path.join(real, user), found[user] + "\n", os.getuid(), os.getgid(), 0o600)
    except Refused as wrong:
        module.fail_json(**failure(f"{path} cannot be used", [wrong.problem]))
    except (OSError, ValueError) as wrong:
        module.fail_json(**failure(f"{path} cannot be used", [Problem("unusable", path, str(wrong))]))
    diff = {
        "before_header": path,
        "after_header": path,
        "before": "",
        "after": "".join(f"a password of {user}\n" for user in missing),
    }
    hashes = {user: hashed(user, password) for user, password in found.items()}
    module.exit_json(changed=bool(missing), hashes=hashes, diff=diff)


if __name__ == "__main__":
    main()
