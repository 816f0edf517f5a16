# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificates by which exporters and Prometheus know each other, on their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificate_files
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc

DIRECTORY = "/etc/prometheus/tls"
AUTHORITY, CERTIFICATE, KEY = (
    f"{DIRECTORY}/{name}"
    for name in (certificate_files.AUTHORITY, certificate_files.CERTIFICATE, certificate_files.KEY)
)
# The account that Debian's packages of Prometheus and its exporters run as.
GROUP = "prometheus"


def files(certificates: Mapping[str, Any], host: str) -> list[doc.Entry]:
    """Items of a desired document; see certificate_files."""
    return certificate_files.present(DIRECTORY, certificates, host, GROUP)


def absent() -> list[doc.Absent]:
    """The same where none of them is wanted any more: the key opens every exporter."""
    return certificate_files.absent(DIRECTORY)
