# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which operating system a host runs."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.system.distributions import IDS, SUPPORTED


def os_release(root: str = "/") -> dict[str, str]:
    text = read_text(below(root, "etc/os-release")) or read_text(below(root, "usr/lib/os-release"))
    values = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.startswith("#"):
            values[key.strip()] = value.strip().strip("\"'")
    return values


def system(root: str = "/", machine: str | None = None) -> dict[str, Any]:
    """The operating system, and its row in the table of those that are supported (None where it has none)."""
    release = os_release(root)
    name, version = release.get("ID", ""), release.get("VERSION_ID", "")
    key = None
    if name in IDS and version:
        prefix, parts = IDS[name]
        candidate = prefix + ".".join(version.split(".")[:parts])
        key = candidate if candidate in SUPPORTED else None
    row = SUPPORTED.get(key or "", {})
    return {
        "key": key,
        "name": release.get("PRETTY_NAME") or f"{name} {version}".strip() or "unknown",
        "id": name,
        "version": version,
        "codename": release.get("VERSION_CODENAME", ""),
        "family": row.get("family"),
        "level": row.get("level"),
        "repository": row.get("repository"),
        "machine": machine or os.uname().machine,
    }
