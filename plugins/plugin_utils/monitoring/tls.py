# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificates by which exporters and Prometheus know each other, on their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document

DIRECTORY = "/etc/prometheus/tls"
AUTHORITY, CERTIFICATE, KEY = (f"{DIRECTORY}/{name}" for name in ("ca.pem", "certificate.pem", "key.pem"))
# The account that Debian's packages of Prometheus and its exporters run as.
GROUP = "prometheus"


def files(certificates: Mapping[str, Any], host: str) -> list[Document]:
    """Items of a desired document.

    :param certificates: what the module cluster_certificates has returned.
    :param host: the name of the host in the inventory.
    """
    authority, pair = certificates["authority"], certificates["certificates"][host]
    rights = {"owner": "root", "group": GROUP, "mode": "0640"}
    return [
        {"path": DIRECTORY, "state": "directory", "owner": "root", "group": GROUP, "mode": "0750"},
        {"path": AUTHORITY, "source": authority["path"], "sha256": authority["sha256"], **rights},
        {"path": CERTIFICATE, "source": pair["certificate"], "sha256": pair["certificate_sha256"], **rights},
        {"path": KEY, "source": pair["key"], "sha256": pair["key_sha256"], **rights, "sensitive": True},
    ]


def absent() -> list[Document]:
    """The same where none of them is wanted any more: the key opens every exporter."""
    return [{"path": path, "state": "absent"} for path in (KEY, CERTIFICATE, AUTHORITY)]
