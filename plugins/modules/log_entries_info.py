#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: log_entries_info
short_description: Read entries of journals
version_added: 0.1.0
description:
  - Runs C(journalctl) on a host, and returns the entries as JSON. A field of more than 4096 characters is cut.
options:
  arguments:
    description: Arguments of C(journalctl). It prints JSON, the newest entry first.
    type: list
    elements: str
    default: []
requirements:
  - On the host Python 3.9 and C(journalctl).
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: The last errors of the kernel
  baremetal.gpu.log_entries_info:
    arguments: [--lines=20, --priority=err, _TRANSPORT=kernel]
"""

RETURN = r"""
cmd:
  description: The command.
  returned: always
  type: list
  elements: str
rc:
  description: Its exit status, which is 1 where no entry fits.
  returned: always
  type: int
stdout_lines:
  description: The entries, one a line, each as JSON.
  returned: always
  type: list
  elements: str
stderr:
  description: What it says of itself.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.logs import entries

FIELDS = (
    "MESSAGE",
    "PRIORITY",
    "SYSLOG_IDENTIFIER",
    "SYSLOG_PID",
    "_HOSTNAME",
    "_PID",
    "_SYSTEMD_UNIT",
    "_TRANSPORT",
)
COMMAND = (
    "journalctl",
    "--quiet",
    "--no-pager",
    "--all",
    "--reverse",
    "--output=json",
    f"--output-fields={','.join(FIELDS)}",
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={"arguments": {"type": "list", "elements": "str", "default": []}}, supports_check_mode=True
    )
    command = [*COMMAND, *module.params["arguments"]]
    try:
        status, lines, said = entries.read(command)
    except OSError as error:
        status, lines, said = 127, [], f"{command[0]}: {error.strerror}"
    module.exit_json(changed=False, cmd=command, rc=status, stdout_lines=lines, stderr=said)


if __name__ == "__main__":
    main()
