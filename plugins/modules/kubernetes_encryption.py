#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_encryption
short_description: Keep the key with which Secrets of Kubernetes are encrypted
version_added: 0.1.0
description:
  - Makes a key once on the first control plane, and writes the same on the others. The file is for root alone.
  - A key that an API server reads is never removed. If it reads the file and the file is not there, the module fails.
options:
  path:
    description: The file, an EncryptionConfiguration.
    type: path
    default: /etc/kubernetes/baremetal-gpu/encryption.json
  content:
    description: The text of the file on the first control plane. Left out there.
    type: str
    default: ''
requirements:
  - On the host Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows the path alone.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Make the key once
  baremetal.gpu.kubernetes_encryption:
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import encryption


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": encryption.PATH},
            "content": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    try:
        text = encryption.wanted(module.params["content"], path=path)
        if text is not None and not module.check_mode:
            encryption.write(text, path=path)
    except Refused as why:
        module.fail_json(**failure(why.problem.subject, [why.problem], "Nothing was changed."))
    except OSError as why:
        module.fail_json(**failure(path, [Problem("not_written", path, str(why))]))
    changed = text is not None
    after = f"keys of Secrets in {path}\n" if changed else ""
    module.exit_json(changed=changed, path=path, diff={"before": "", "after": after})


if __name__ == "__main__":
    main()
