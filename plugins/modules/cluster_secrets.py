#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_secrets
short_description: Keep the secrets of a cluster in a file on the controller
version_added: 0.1.0
description:
  - Runs on the controller. Creates the file once, with a new secret for each name, and then only adds new names. An
    existing secret changes only if O(renew) names it.
  - The file is JSON, and only its owner may read it. Keep it with the inventory's other secrets; without it you cannot
    add hosts to the cluster with these roles.
  - The module does not create it if hosts already have credentials. Then the file was lost, and new secrets would not
    fit.
options:
  path:
    description: The file.
    type: path
    required: true
  names:
    description: Names of the secrets, such as principals of Mesos, or the key of munge.
    type: list
    elements: str
    required: true
  given:
    description:
      - Secrets by name, if they are elsewhere, such as in Ansible Vault. Then the file is not used, and all of O(names)
        must be given. They are checked, and not returned.
    type: dict
    default: {}
  held:
    description: Hosts that already have credentials.
    type: list
    elements: str
    default: []
  renew:
    description:
      - Which of O(names) get a new secret in place of the existing one. With O(given) nothing is renewed; change the
        secret where you keep it.
    type: list
    elements: str
    default: []
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows what was before and is after, without a secret.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_secrets
"""

EXAMPLES = r"""
- name: Read the secrets, or make them
  baremetal.gpu.cluster_secrets:
    path: "{{ inventory_dir }}/.secrets/mesos.json"
    names: [mesos-agent, marathon, operator]
  delegate_to: localhost
  become: false
  run_once: true
  no_log: true
  register: secrets
"""

RETURN = r"""
secrets:
  description: The secrets in the file by name; empty where O(given) is not.
  returned: success
  type: dict
"""

import json
import os
import secrets
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure

# At most what Mesos' own authentication, CRAM-MD5, makes use of.
BYTES = 24


def load(path: str) -> dict[str, str]:
    """Name -> secret; empty without the file.

    :raises Refused: if others may read it.
    :raises ValueError: if it is not what this module writes.
    """
    if not os.path.exists(path):
        return {}
    if os.stat(path).st_mode & 0o077:
        raise Refused("others than its owner may read it", f"chmod 600 {path}")
    with open(path, encoding="utf-8-sig") as file:
        content: Any = json.load(file)
    return checked(content)


def checked(content: Any) -> dict[str, str]:
    """:raises ValueError: if it is not secrets by name."""
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object of secrets by name")
    for name, secret in content.items():
        if not isinstance(secret, str) or len(secret) < 8 or not secret.isprintable() or " " in secret:
            raise ValueError(f"the secret of {name} is not a text of 8 or more printable characters without a blank")
    return content


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "given": {"type": "dict", "default": {}, "no_log": True},
            "held": {"type": "list", "elements": "str", "default": []},
            "renew": {"type": "list", "elements": "str", "default": [], "no_log": False},
        },
        supports_check_mode=True,
    )
    path, wanted, held = module.params["path"], module.params["names"], module.params["held"]
    source = "what the variables give" if module.params["given"] else path
    try:
        kept = checked(module.params["given"]) if module.params["given"] else load(path)
        missing = sorted(set(wanted) - set(kept))
        renewed = sorted(set(module.params["renew"]) & set(kept)) if not module.params["given"] else []
        if missing and module.params["given"]:
            raise Refused(f"it has no secret of {', '.join(missing)}", "add it")
        if missing and not kept and held:
            raise Refused(
                f"it is not there, but {', '.join(held)} have credentials",
                "bring the file back from where it is kept, or remove the credentials on the hosts and run again",
            )
        # Hex digits, which need no quoting in any of the files that they go to.
        content = {**kept, **{name: secrets.token_hex(BYTES) for name in [*missing, *renewed]}}
        if (missing or renewed) and not module.check_mode:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            # On the controller an operator's own links lead where he wants.
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            secret_file.write(
                real, json.dumps(content, indent=2, sort_keys=True) + "\n", os.getuid(), os.getgid(), 0o600
            )
    except Refused as wrong:
        module.fail_json(**failure(f"{source} cannot be used", [wrong.problem]))
    except (OSError, ValueError) as wrong:
        module.fail_json(**failure(f"{source} cannot be used", [Problem("unusable", source, str(wrong))]))
    diff = {
        "before_header": path,
        "after_header": path,
        "before": "".join(f"a secret of {name}\n" for name in sorted(kept)),
        "after": "".join(f"a {'new ' if name in renewed else ''}secret of {name}\n" for name in sorted(content)),
    }
    module.exit_json(changed=bool(missing or renewed), secrets={} if module.params["given"] else content, diff=diff)


if __name__ == "__main__":
    main()
