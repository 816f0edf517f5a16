#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_services
short_description: Try what a host serves, as those use it whom it is for
version_added: 0.1.0
description:
  - Asks Prometheus for its targets, and Alertmanager for the alert that always fires; starts a session of the portal
    and ends it; or looks for the programs that people expect of a login.
  - A service that fails does not make the module fail.
options:
  part:
    description: What to try.
    type: str
    choices: [monitoring, portal, login]
    required: true
  prometheus:
    description: Where Prometheus listens.
    type: str
    default: 127.0.0.1:9090
  alertmanager:
    description: Where Alertmanager listens.
    type: str
    default: 127.0.0.1:9093
  expected:
    description: The hosts whose metrics Prometheus is to collect. They are returned with what it collects.
    type: list
    elements: str
    default: []
  portal_port:
    description: The port of the portal.
    type: int
    default: 443
  portal_token:
    description:
      - Token of a user of the portal. The session is that user's, with one core, 1 GiB and no GPU, and is ended. One
        that the user has already is left alone. Without a token no session is started.
    type: str
    default: ""
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode no session is started.
seealso:
  - module: baremetal.gpu.accept_registry
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See what Prometheus collects
  baremetal.gpu.accept_services:
    part: monitoring
    expected: "{{ groups['node_exporters'] }}"
"""

RETURN = r"""
part:
  description: As O(part).
  returned: always
  type: str
service:
  description:
    - With V(monitoring) C(error) of Prometheus, C(targets) with host, job, health and error, C(expected), and whether
      the C(watchdog) has come to Alertmanager, or C(watchdog_error).
    - With V(portal) C(error) of the hub, its C(version), whether a C(session) began and answered, C(session_error) and
      C(seconds).
    - With V(login) what is C(missing).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import services


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "part": {"type": "str", "required": True, "choices": ["monitoring", "portal", "login"]},
            "prometheus": {"type": "str", "default": "127.0.0.1:9090"},
            "alertmanager": {"type": "str", "default": "127.0.0.1:9093"},
            "expected": {"type": "list", "elements": "str", "default": []},
            "portal_port": {"type": "int", "default": 443},
            "portal_token": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["part"] == "monitoring":
        service = services.monitoring(given["prometheus"], given["alertmanager"])
        service["expected"] = given["expected"]
    elif given["part"] == "portal":
        service = services.portal(given["portal_port"], "" if module.check_mode else given["portal_token"])
    else:
        service = services.login()
    module.exit_json(changed=False, part=given["part"], service=service)


if __name__ == "__main__":
    main()
