#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_certificates
short_description: Keep the certificates of a cluster in a directory on the controller
version_added: 0.1.0
description:
  - Runs on the controller; nothing is sent to the host.
  - Creates an authority once, and a certificate with its key for each of O(certificates). The authority's key never
    leaves the directory.
  - Renews a certificate that is not for its names, ends soon, or is not from the authority. Its key stays. For another
    key, remove the file.
  - Does not create the authority if hosts already have certificates. Then it was lost, and the hosts would not trust
    another one.
  - Certificates of your own are checked, and left as they are.
options:
  path:
    description: The directory, which only its owner can open.
    type: path
    required: true
  certificates:
    description: The certificates, each with its key.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name under which it is kept.
        type: str
        required: true
      names:
        description: Names and IP addresses that it is for.
        type: list
        elements: str
        required: true
      certificate:
        description: File with your own certificate.
        type: path
      key:
        description: The file with the key of O(certificates[].certificate).
        type: path
  authority:
    description: File with the certificate of your own authority. Then all of O(certificates) need their files.
    type: path
  days:
    description: How long a new certificate is valid.
    type: int
    default: 365
  renew:
    description: Days before its end at which a certificate is renewed.
    type: int
    default: 30
  held:
    description: Hosts that already have certificates.
    type: list
    elements: str
    default: []
requirements:
  - On the controller the Python library cryptography, 42 or later, which ansible-core brings.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows why certificates are made, without a key.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.cluster_secrets
"""

EXAMPLES = r"""
- name: Have a certificate for a host
  baremetal.gpu.cluster_certificates:
    path: "{{ inventory_dir }}/.secrets/mesos-tls"
    certificates:
      - name: master1
        names: [master1.example.com, 10.0.0.1]
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
