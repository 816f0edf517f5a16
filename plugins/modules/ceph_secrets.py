#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_secrets
short_description: Keep the identity and the first keys of a Ceph cluster in a file on the controller
version_added: 0.1.0
description:
  - Runs on the controller. Creates the file once, with a new fsid and new keys, and then only reads it.
  - The file is JSON, and only its owner may read it. Encrypt a copy or keep it with the inventory's other secrets;
    without it you cannot add hosts to the cluster with these roles.
  - The module does not create it if a host already belongs to a cluster. Then the file was lost, and new keys would not
    fit.
options:
  path:
    description: The file.
    type: path
    required: true
  fsid:
    description: The fsid, if it is elsewhere, such as in Ansible Vault. Then the file is not used.
    type: str
    default: ""
  keys:
    description: The keys by name, to go with O(fsid).
    type: dict
    default: {}
  held:
    description: The fsids that hosts already have.
    type: list
    elements: str
    default: []
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_node_info
"""

EXAMPLES = r"""
- name: Read the cluster's secrets, or make them
  baremetal.gpu.ceph_secrets:
    path: "{{ inventory_dir }}/.secrets/ceph.json"
  delegate_to: localhost
  become: false
  run_once: true
  no_log: true
  register: secrets
"""

RETURN = r"""
fsid:
  description: UUID of the cluster.
  returned: success
  type: str
keys:
  description: Secrets by the name that they are of; none where they were given, which Ansible would hide.
  returned: success
  type: dict
"""

import json
import os
import uuid
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure


def load(path: str) -> Any:
    """The content of the file.

    :raises Refused: if others may read it.
    :raises ValueError: if it is no JSON.
    """
    if os.stat(path).st_mode & 0o077:
        raise Refused("others than its owner may read it", f"'chmod 600 {path}'")
    with open(path, encoding="utf-8-sig") as file:
        return json.load(file)


def checked(content: Any) -> dict[str, Any]:
    """The same content, if a cluster can be made of it.

    :raises Refused: with what it lacks.
    """
    if not isinstance(content, dict) or not ceph_conf.is_fsid(str(content.get("fsid"))):
        raise Refused("it has no fsid, a UUID in lower case", "add that of the cluster, as 'sudo ceph fsid' prints it")
    keys = content.get("keys")
    lacking = [
        name for name in ceph_conf.CAPS if not isinstance(keys, dict) or not ceph_conf.is_key(keys.get(name, ""))
    ]
    if lacking:
        commands = "; ".join(f"'sudo ceph auth get-or-create-key {name} {_caps(name)}'" for name in lacking)
        raise Refused(
            f"it has no keys of {', '.join(lacking)}",
            "add what 'ceph-authtool --gen-print-key' prints for each; "
            f"where the cluster runs already, what a monitor's host prints for {commands}",
        )
    return content


def _caps(name: str) -> str:
    return " ".join(f'{kind} "{caps}"' for kind, caps in ceph_conf.CAPS[name].items())


def save(path: str, content: dict[str, Any]) -> None:
    """Write it whole; of two that do so at once, the first one wins."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    draft = f"{path}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    finally:
        os.unlink(draft)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "fsid": {"type": "str", "default": ""},
            "keys": {"type": "dict", "default": {}, "no_log": True},
            "held": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    path, given = module.params["path"], {key: module.params[key] for key in ("fsid", "keys")}
    changed = not given["fsid"] and not os.path.exists(path)
    if changed and module.params["held"]:
        fsids = ", ".join(sorted(set(module.params["held"])))
        remedy = "bring the file back from where it is kept, or take the cluster off the hosts first"
        problem = Problem("secrets_missing", path, f"{path} is not there, but hosts belong to {fsids}", fsids, remedy)
        module.fail_json(**failure("secrets of the cluster", [problem]))
    try:
        if changed:
            given = {"fsid": str(uuid.uuid4()), "keys": {name: ceph_conf.new_key() for name in ceph_conf.CAPS}}
            if not module.check_mode:
                save(path, given)
        content = checked(given if given["fsid"] else load(path))
    except (OSError, ValueError, Refused) as error:
        source = "ceph_common_fsid and ceph_common_keys" if module.params["fsid"] else path
        problem = ceph_module.problem_of(error, source)
        # Tasks take the problem alone.
        cause = f"{source} cannot be used: {problem.cause}"
        problem = Problem("secrets_unusable", source, cause, problem.evidence, problem.remedy)
        module.fail_json(**failure("secrets of the cluster", [problem]))
    before, after = ("nothing\n", "a new fsid and new keys\n") if changed else ("", "")
    diff = {"before_header": path, "after_header": path, "before": before, "after": after}
    keys = {} if module.params["fsid"] else content["keys"]
    module.exit_json(changed=changed, fsid=content["fsid"], keys=keys, diff=diff)


if __name__ == "__main__":
    main()
