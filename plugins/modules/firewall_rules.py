#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_rules
short_description: Put rules of nftables into force, on trial
version_added: 0.1.0
description:
  - Replaces the table C(inet baremetal_gpu) in one step, and no other one. Before that C(nft --check) reads the rules.
  - New rules are on trial for O(seconds). Then the former ones are back, unless a second call with O(confirm=true) says
    that a new connection works. Only confirmed rules are written to O(path), where they are loaded from at boot.
options:
  path:
    description: The file of confirmed rules.
    type: path
    required: true
  rules:
    description: What the table has, as nft reads it.
    type: str
    default: ''
  seconds:
    description: For how long rules are on trial.
    type: int
    default: 60
  confirm:
    description: Whether this is the call that ends the trial.
    type: bool
    default: false
  state:
    description: Whether there are rules. V(absent) removes the table and O(path).
    type: str
    choices: [present, absent]
    default: present
requirements:
  - On the host Python 3.9, C(nft) and C(systemd-run).
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Put the rules on trial
  baremetal.gpu.firewall_rules: &rules
    path: /etc/baremetal-gpu/firewall.nft
    rules: "{{ rules }}"
  register: trial

- name: Leave the connection
  ansible.builtin.meta: reset_connection

- name: Confirm them, by a new connection
  baremetal.gpu.firewall_rules:
    <<: *rules
    confirm: true
  when: trial.changed
"""

RETURN = r"""
problems:
  description: Why the rules were not loaded or not confirmed.
  returned: failed
  type: list
  elements: dict
"""

from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.system import firewall


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "rules": {"type": "str", "default": ""},
            "seconds": {"type": "int", "default": 60},
            "confirm": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    given = module.params
    path, rules, is_wanted = given["path"], given["rules"], given["state"] == "present"
    before = ""
    with suppress(OSError):
        before = files.read(path).decode("utf-8", "replace")
    after = firewall.stamped(rules) if is_wanted else ""
    here = firewall.Firewall(path, run)
    try:
        if is_wanted:
            changed = not here.holds(rules)
            if changed and not module.check_mode:
                if given["confirm"]:
                    here.confirm(rules)
                else:
                    here.apply(rules, given["seconds"])
        else:
            changed = bool(before) if module.check_mode else here.remove()
    except Refused as wrong:
        module.fail_json(**failure("firewall", [wrong.problem]))
    except OSError as wrong:
        module.fail_json(**failure("firewall", [Problem("not_written", path, str(wrong))]))
    diff = {"before_header": path, "after_header": path, "before": before, "after": after}
    module.exit_json(changed=changed, diff=diff)


if __name__ == "__main__":
    main()
