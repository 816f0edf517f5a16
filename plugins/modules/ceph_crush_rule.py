#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_crush_rule
short_description: Keep a replicated CRUSH rule
version_added: 0.1.0
description:
  - Creates a rule that spreads copies over hosts or racks, on devices of one class if O(device_class) is set. A
    different rule of the same name is refused, because a change moves data; give the new one another name.
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  name:
    description: Name of the rule.
    type: str
    required: true
  root:
    description: Root of the rule in the CRUSH map.
    type: str
    default: default
  failure_domain:
    description: Failure domain that no two copies may share.
    type: str
    default: host
  device_class:
    description: Class of the devices; by default any.
    type: str
    default: ""
requirements:
  - The key of client.admin on the host.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Keep copies in different racks
  baremetal.gpu.ceph_crush_rule:
    name: cephfs
    failure_domain: rack
"""

RETURN = r"""
rule:
  description: The rule, with C(name), C(root), C(failure_domain) and C(device_class).
  returned: success
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import library as ceph_library
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused, failure


def described(rule: dict[str, Any]) -> dict[str, str]:
    """What a rule of 'osd crush rule dump' does; a class is part of the name of what it takes, as in default~ssd."""
    taken = next((step["item_name"] for step in rule["steps"] if step["op"] == "take"), "")
    chosen = next((step["type"] for step in rule["steps"] if step["op"].startswith("choose")), "")
    root, device_class = [*taken.split("~"), ""][:2]
    return {"name": rule["rule_name"], "root": root, "failure_domain": chosen, "device_class": device_class}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "name": {"type": "str", "required": True},
            "root": {"type": "str", "default": "default"},
            "failure_domain": {"type": "str", "default": "host"},
            "device_class": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = {key: given[key] for key in ("name", "root", "failure_domain", "device_class")}
    ceph = Ceph(host_run.run, cluster=given["cluster"], library=ceph_library.connect)
    try:
        rules = {rule["rule_name"]: described(rule) for rule in ceph.json("osd", "crush", "rule", "dump")}
        there = rules.get(given["name"])
        if there and there != wanted:
            raise Refused(
                f"it is {there} and should be {wanted}. Changing it would move data",
                "choose another name, and give the rule to the pools when it suits",
            )
        if not there and not module.check_mode:
            words = [given["name"], given["root"], given["failure_domain"]]
            words += [given["device_class"]] if given["device_class"] else []
            ceph.json("osd", "crush", "rule", "create-replicated", *words)
    except (CephError, Refused) as error:
        module.fail_json(**failure(f"the CRUSH rule {given['name']}", [error.problem]))
    before, after = ("", "") if there else ("no rule\n", f"{wanted}\n")
    diff = {"before_header": given["name"], "after_header": given["name"], "before": before, "after": after}
    module.exit_json(changed=not there, rule=wanted, diff=diff)


if __name__ == "__main__":
    main()
