# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is told of Kubernetes."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import settings as core_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong


@dataclass(frozen=True)
class Settings(core_settings.Settings):
    """`server` is the URL of the API server. `certificate` has the client's certificate and its key; what it may do is
    in rights.py. All is kept in `namespace`."""

    server: str = ""
    ca_file: str = "/etc/kubernetes/pki/ca.crt"
    certificate: str = "/etc/baremetal-gpu/reconciler-kubernetes.pem"
    namespace: str = "baremetal-gpu"

    def check(self, path: str) -> None:
        where = urllib.parse.urlsplit(self.server)
        if where.scheme != "https" or not where.hostname:
            raise Wrong(f"{path}: server is {self.server!r}", "give https://HOST:6443")
        super().check(path)
