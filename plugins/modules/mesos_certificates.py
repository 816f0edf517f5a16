#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_certificates
short_description: Keep the certificates of a Mesos cluster in a directory of the operator
version_added: 0.1.0
description:
  - Runs on the controller. Makes an authority once, and a certificate with its key for each that is asked for. The
    authority's key never leaves the directory.
  - A certificate is made again when it is not for the names that are asked for, ends soon, or is not from the
    authority. Its key stays the same then. To have another key, remove the file.
  - The authority is not made where hosts already have certificates, for then it was lost, and nobody would trust
    another one.
  - Certificates that the operator gives are checked, and left as they are.
options:
  path:
    description: The directory, which only its owner can open.
    type: path
    required: true
  certificates:
    description: What is asked for.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: By which it is kept.
        type: str
        required: true
      names:
        description: Names and IP addresses that it is for.
        type: list
        elements: str
        required: true
      certificate:
        description: The file with the certificate, where the operator gives it.
        type: path
      key:
        description: The file with the key of O(certificates[].certificate).
        type: path
  authority:
    description: >-
      The file with the authority's certificate, where the operator gives the certificates. Then all of
      O(certificates) have to be given.
    type: path
  days:
    description: How long a new certificate is valid.
    type: int
    default: 365
  renew:
    description: With how many days left a certificate is made again.
    type: int
    default: 30
  held:
    description: Hosts that have certificates already.
    type: list
    elements: str
    default: []
requirements:
  - On the controller the program openssl, 1.1.1 or later.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows why certificates are made, without a key.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.mesos_secrets
"""

EXAMPLES = r"""
- name: Have a certificate for a host
  baremetal.gpu.mesos_certificates:
    path: "{{ inventory_dir }}/.secrets/mesos-tls"
    certificates:
      - name: master1
        names: [master1.example.com, 10.0.0.1]
  delegate_to: localhost
  become: false
  throttle: 1
  register: certificates
"""

RETURN = r"""
authority:
  description: Path and SHA-256 of the authority's certificate.
  returned: success
  type: dict
  sample: {"path": "/site/.secrets/mesos-tls/ca.pem", "sha256": "5e0c"}
certificates:
  description: >-
    Of each by its name C(certificate), C(certificate_sha256), C(key) and C(key_sha256), the files and their SHA-256.
    In check mode a file that is not there has 64 zeros.
  returned: success
  type: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import certificates
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.certificates import DAY_S, Authority, Pair
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def given(rows: list[dict[str, Any]], authority: str, renew_s: int, warn: Any) -> dict[str, Pair]:
    """The operator's certificates, checked."""
    found = {}
    for row in rows:
        if not row["certificate"] or not row["key"]:
            raise Refused(f"the certificate and key of {row['name']} are not given", "give both, or none at all")
        pair = found[row["name"]] = Pair(row["certificate"], row["key"], host_run.run)
        why = pair.problem(authority, row["names"], 0)
        if why:
            raise Refused(f"{why}", "correct mesos_common_tls_files")
        soon = pair.problem(authority, row["names"], renew_s)
        if soon:
            warn(soon)
    return found


def made(
    authority: Authority, rows: list[dict[str, Any]], params: dict[str, Any], check: bool
) -> tuple[dict[str, Pair], list[str]]:
    """The certificates of our authority, and what had to be made, with the reason."""
    why: list[str] = []
    if not authority.is_there():
        if params["held"]:
            raise Refused(
                f"{authority.directory} has no authority, but {', '.join(params['held'])} have certificates",
                "bring the directory back from where it is kept, or go back to mesos_common_tls: off by way of "
                "downgrade, and begin anew",
            )
        why.append(f"{authority.certificate} is not there")
        if not check:
            authority.make()
    certificates.checked_mode(authority.key)
    found = {}
    for row in rows:
        pair = found[row["name"]] = authority.pair(row["name"])
        certificates.checked_mode(pair.key)
        problem = (
            pair.problem(authority.certificate, row["names"], params["renew"] * DAY_S)
            if authority.is_there()
            else f"{pair.certificate} is not there"
        )
        if problem:
            why.append(problem)
            if not check:
                authority.sign(row["name"], row["names"], params["days"])
    return found, why


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "certificates": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "names": {"type": "list", "elements": "str", "required": True},
                    "certificate": {"type": "path"},
                    "key": {"type": "path", "no_log": False},
                },
            },
            "authority": {"type": "path"},
            "days": {"type": "int", "default": 365},
            "renew": {"type": "int", "default": 30},
            "held": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params, rows = module.params, module.params["certificates"]
    own = Authority(params["path"], host_run.run)
    why: list[str] = []
    try:
        if not 0 <= params["renew"] < params["days"]:
            raise Refused(
                f"certificates of {params['days']} days would be made again with {params['renew']} days left",
                "give fewer of the latter",
            )
        if params["authority"]:
            if not os.path.exists(params["authority"]):
                raise Refused(f"{params['authority']} is not there", "correct mesos_common_tls_files")
            pairs = given(rows, params["authority"], params["renew"] * DAY_S, module.warn)
        else:
            pairs, why = made(own, rows, params, module.check_mode)
            if own.is_there() and own.ends_within(params["days"] * DAY_S):
                module.warn(f"the authority {own.certificate} ends within {params['days']} days")
    except (OSError, ValueError, Refused) as wrong:
        module.fail_json(msg=f"{params['path']} cannot be used: {wrong}")
    path = params["authority"] or own.certificate
    module.exit_json(
        changed=bool(why),
        authority={"path": path, "sha256": certificates.checksum(path)},
        certificates={name: pair.told() for name, pair in pairs.items()},
        diff={"before": "".join(f"{one}\n" for one in why), "after": "".join("made\n" for _one in why)},
    )


if __name__ == "__main__":
    main()
