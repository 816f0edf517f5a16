# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key with which the API server encrypts Secrets before etcd has them.

The file is that of kubernetes.io/docs/tasks/administer-cluster/encrypt-data. Without its keys the Secrets of a cluster
are lost, so no key is ever taken away here.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.etcd import MANIFESTS, STOPPED
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

PATH = "/etc/kubernetes/baremetal-gpu/encryption.json"
AT_MOST = 1 << 20
_KEY = re.compile(r"\bsecret\b[\"']?: *[\"']?([A-Za-z0-9+/=]{16,})")


def new() -> str:
    """A configuration with a key that nobody has seen. What was written without a key can be read further on."""
    key = {"name": "key1", "secret": base64.b64encode(os.urandom(32)).decode()}
    providers = [{"secretbox": {"keys": [key]}}, {"identity": {}}]
    document = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    }
    return f"{json.dumps(document, indent=2)}\n"


def wanted(given: str, root: str = "", path: str = PATH) -> str | None:
    """What has to be written to the file; None where it is as it should be. Raises Refused and OSError.

    :param given: the text of the first control plane; empty there, where a key is made once.
    """
    has = ""
    if os.path.lexists(f"{root}{path}"):
        has = host_files.read(f"{root}{path}", AT_MOST).decode("utf-8", "replace")
    if not given:
        if not has and _is_used(root, path):
            raise Refused(
                f"the API server reads {path}, which is not there: without it the Secrets of the cluster are lost",
                "bring the file back from a backup or from another control plane",
                code="key_lost",
                subject="kube-apiserver",
            )
        return None if has else new()
    if _lost(has, given) and _is_used(root, path):
        raise Refused(
            f"{path} has a key that the file of the first control plane lacks",
            "add the key there, so that Secrets can be read on both",
            code="other_key",
            subject="kube-apiserver",
        )
    return None if has == given else given


def write(text: str, root: str = "", path: str = PATH) -> None:
    """Write the file. One with keys that the new one lacks, which no API server has read here, is kept beside it."""
    place = f"{root}{path}"
    host_files.make_directories(os.path.dirname(place), 0o700)
    if os.path.lexists(place) and _lost(host_files.read_text(place, AT_MOST), text):
        os.rename(place, f"{place}.before-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    host_files.write(place, text, 0o600)


def _lost(has: str, given: str) -> set[str]:
    return set(_KEY.findall(has)) - set(_KEY.findall(given))


def _is_used(root: str, path: str) -> bool:
    """Whether the static pod of the API server asks for it."""
    return any(
        f"--encryption-provider-config={path}" in host_files.read_text(f"{root}{directory}/kube-apiserver.yaml")
        for directory in (MANIFESTS, STOPPED)
    )
