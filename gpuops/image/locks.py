# SPDX-License-Identifier: GPL-3.0-or-later
"""The locks of an image: the very versions of Debian's packages, and versions and digests of Python's wheels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

from .recipe import Definition

HEAD = "# Written by `gpuops image build --relock`.\n"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
_PINNED = re.compile(r"([a-z0-9][a-z0-9-]*)==([A-Za-z0-9.+!_-]+) --hash=sha256:[0-9a-f]{64}", re.ASCII)


def wanted(path: Path) -> list[str]:
    """The packages that a file asks for, one in a line."""
    names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    names = [name for name in names if name and not name.startswith("#")]
    for name in names:
        if not _PACKAGE.fullmatch(name):
            raise Refused(f"{path} has {name!r}", "write the name of a package of Debian in each line")
    return names


def debian_lock(packages: Mapping[str, str]) -> str:
    return HEAD + "".join(f"{name}={version}\n" for name, version in sorted(packages.items()))


def read_debian(path: Path) -> dict[str, str]:
    """Packages with their versions."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name: version for name, _equals, version in (line.partition("=") for line in lines)}


def differences(locked: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What is there and not locked so, in words."""
    return [
        f"{name} is {found.get(name, 'not there')}, locked is {locked.get(name, 'none')}"
        for name in sorted({*locked, *found})
        if locked.get(name) != found.get(name)
    ]


def debian_of_sbom(document: Mapping[str, Any]) -> dict[str, str]:
    return {row["name"]: row["version"] for row in document["components"] if row["purl"].startswith("pkg:deb/")}


def read_python(path: Path) -> dict[str, str]:
    """The packages of a lock with their versions. Raises Refused for a line without a digest."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = _PINNED.fullmatch(line)
            if not match:
                raise Refused(f"{path} has {line!r}", "write it anew with --relock")
            found[match[1]] = match[2]
    return found


def inherited_python(image: Definition) -> dict[str, str]:
    """What the locks of all parents pin: it stays as it is."""
    found: dict[str, str] = {}
    parent = image.parent
    while parent:
        if parent.python_lock:
            found |= read_python(parent.python_lock)
        parent = parent.parent
    return found


def python_lock(report: Mapping[str, Any], inherited: Mapping[str, str]) -> str:
    """The lock of what pip would install, from its report, without what the parents have."""
    lines = []
    for row in report["install"]:
        name = re.sub(r"[-_.]+", "-", row["metadata"]["name"]).lower()
        if name in inherited:
            continue
        digest = row["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
        line = f"{name}=={row['metadata']['version']} --hash=sha256:{digest}"
        if not _PINNED.fullmatch(line):
            raise Refused(f"{name} comes without a SHA-256 from its index", "take an index that has one")
        lines.append(line)
    return HEAD + "".join(f"{line}\n" for line in sorted(lines))
