# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package sources of a host."""

from __future__ import annotations

import configparser
import glob
import os
import re
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below


def _deb822(path: str, text: str) -> list[dict[str, Any]]:
    entries = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[key] = f"{fields.get(key, '')}\n{line.strip()}"
            elif ":" in line:
                key, value = line.split(":", 1)
                key = key.strip().lower()
                fields[key] = value.strip()
        if "uris" not in fields or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        entries += [
            {
                "file": path,
                "uri": uri,
                "suite": suite,
                "components": fields.get("components", "").split(),
                # A key in the file itself starts with an empty line; its lines do not matter here.
                "signed_by": fields.get("signed-by", "").strip(),
            }
            for uri in fields["uris"].split()
            for suite in fields.get("suites", "").split()
        ]
    return entries


def _one_line(path: str, text: str) -> list[dict[str, Any]]:
    entries = []
    for line in text.splitlines():
        match = re.match(
            r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>.*)$", line.strip()
        )
        if match:
            options = dict(part.split("=", 1) for part in (match["options"] or "").split() if "=" in part)
            entries.append(
                {
                    "file": path,
                    "uri": match["uri"],
                    "suite": match["suite"],
                    "components": match["rest"].split("#")[0].split(),
                    "signed_by": options.get("signed-by", ""),
                }
            )
    return entries


def _yum(path: str, text: str) -> list[dict[str, Any]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    entries = []
    for name in parser.sections():
        if parser.get(name, "enabled", fallback="1") in ("0", "no", "false"):
            continue
        uri = parser.get(name, "baseurl", fallback="") or parser.get(name, "mirrorlist", fallback="")
        uri = uri or parser.get(name, "metalink", fallback="")
        entries.append({"file": path, "uri": uri.split("\n")[0], "suite": name, "components": [], "signed_by": ""})
    return entries


def repositories(root: str = "/") -> list[dict[str, Any]]:
    """Every enabled package source, one row per URI and suite."""
    readers: tuple[tuple[str, Callable[[str, str], list[dict[str, Any]]]], ...] = (
        ("etc/apt/sources.list", _one_line),
        ("etc/apt/sources.list.d/*.list", _one_line),
        ("etc/apt/sources.list.d/*.sources", _deb822),
        ("etc/yum.repos.d/*.repo", _yum),
    )
    rows = []
    for pattern, reader in readers:
        for path in sorted(glob.glob(below(root, pattern))):
            rows += reader("/" + os.path.relpath(path, root), read_text(path))
    return rows
