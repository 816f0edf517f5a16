#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_certificate
short_description: Keep a client's certificate for the API of Kubernetes
version_added: 0.1.0
description:
  - Has kubeadm make a certificate of a year on a control plane. It is made anew before it ends.
  - The file has the certificate and its key, and is for root alone.
options:
  path:
    description: The file.
    type: path
    required: true
  user:
    description: The user of the cluster that the certificate is for.
    type: str
    required: true
  days:
    description: How many days before its end a certificate is made anew.
    type: int
    default: 60
requirements:
  - On the host Python 3.9, C(kubeadm) and the certificates of the cluster.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows the path alone.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Keep the certificate of the reconciler
  baremetal.gpu.kubernetes_certificate:
    path: /etc/baremetal-gpu/reconciler-kubernetes.pem
    user: baremetal-gpu:reconciler
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.renewal import Renewal


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "days": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    path, renewal = module.params["path"], Renewal(run, module.params["days"])
    due = renewal.client_is_due(path, time.time())
    try:
        if due and not module.check_mode:
            renewal.renew_client(path, module.params["user"])
    except Refused as why:
        module.fail_json(**failure(why.problem.subject, [why.problem]))
    except OSError as why:
        module.fail_json(**failure(path, [Problem("not_written", path, str(why))]))
    module.exit_json(
        changed=due, path=path, diff={"before": "", "after": f"a new certificate in {path}\n" if due else ""}
    )


if __name__ == "__main__":
    main()
