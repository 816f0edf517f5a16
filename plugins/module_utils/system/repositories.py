# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package sources of a host."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below


def parse_deb822(text: str) -> list[dict[str, str]]:
    """Stanzas of a deb822 file, keys in lower case, continued lines joined by a newline."""
    stanzas: list[dict[str, str]] = []
    current: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        if not line.strip():
            if current:
                stanzas.append(current)
            current, key = {}, ""
        elif line.startswith("#"):
            continue
        elif line[0].isspace() and key:
            current[key] += "\n" + line.rstrip()
        elif ":" in line:
            key, _colon, value = line.partition(":")
            key = key.strip().lower()
            current[key] = value.strip()
    return stanzas


def parse_one_line(text: str) -> list[dict[str, str]]:
    """Entries of a sources.list in the form of deb822 stanzas."""
    stanzas = []
    for line in text.splitlines():
        match = re.match(r"^\s*(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)([^#]*)", line)
        if not match:
            continue
        kind, options, uri, suite, components = match.groups()
        stanza = {"types": kind, "uris": uri, "suites": suite, "components": components.strip()}
        for option in (options or "").split():
            name, _equals, value = option.partition("=")
            name = {"arch": "architectures", "signed-by": "signed-by"}.get(name, name)
            stanza[name] = value.replace(",", " ")
        stanzas.append(stanza)
    return stanzas


def apt_sources(root: str = "/", without: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """Every enabled source of apt: the path of its file and its stanza. `without` leaves one file out."""
    readers = (
        ("etc/apt/sources.list", parse_one_line),
        ("etc/apt/sources.list.d/*.list", parse_one_line),
        ("etc/apt/sources.list.d/*.sources", parse_deb822),
    )
    for pattern, parse in readers:
        for path in sorted(glob.glob(below(root, pattern))):
            if parse is parse_deb822 and os.path.basename(path) == without:
                continue
            for stanza in parse(read_text(path)):
                if stanza.get("enabled", "yes").lower() not in ("no", "false", "0"):
                    yield "/" + os.path.relpath(path, root), stanza


def _rows_of_apt(path: str, stanza: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A stanza with packages that are built, one row per URI and suite."""
    if "deb" not in stanza.get("types", "").split():
        return
    # Keys are separated by commas or by spaces. One in the file itself has lines that do not matter here.
    signed_by = "\n".join(line.strip() for line in stanza.get("signed-by", "").replace(",", " ").splitlines()).strip()
    for uri in stanza.get("uris", "").split():
        for suite in stanza.get("suites", "").split():
            yield {
                "file": path,
                "uri": uri,
                "suite": suite,
                "components": stanza.get("components", "").split(),
                "signed_by": signed_by,
            }


def _yum(path: str, text: str) -> list[dict[str, Any]]:
    # Of use here alone, and slow to load.
    import configparser

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
    rows = [row for path, stanza in apt_sources(root) for row in _rows_of_apt(path, stanza)]
    for path in sorted(glob.glob(below(root, "etc/yum.repos.d/*.repo"))):
        rows += _yum("/" + os.path.relpath(path, root), read_text(path))
    return rows
