# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python package of the portal's hub, and what it imports of module_utils, as files that the role lays down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath

from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import PACKAGE, imported, needed
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import ROLES

NAME = "baremetal_gpu_portal"
MODULES = PACKAGE.replace(".", "/")
SOURCE = ROLES.parent / "portal"
_SUFFIXES = (".py", ".html", ".js", ".css")
# What a version of it may have had.
_OWN = re.compile(rf"(?:{NAME}|{MODULES})/(?:[\w-]+/)*[\w-]+(?:{'|'.join(map(re.escape, _SUFFIXES))})", re.ASCII)


@cache
def files() -> Mapping[str, str]:
    """Path below the directory that Python looks into -> content. Raises LookupError where a part is missing."""
    paths = sorted(path for path in (SOURCE / NAME).rglob("*") if path.suffix in _SUFFIXES)
    own = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    entries = {name for path, text in own.items() if path.endswith(".py") for name in imported(text)}
    modules = {f"{PACKAGE}.{name}": text for name, text in needed(*sorted(entries)).items()}
    return own | {f"{name.replace('.', '/')}.py": text for name, text in modules.items()}


def directories() -> list[str]:
    """Those that the files are in, each after the one above it."""
    return sorted({str(parent) for path in files() for parent in PurePosixPath(path).parents} - {"."})


def former(paths: Iterable[str]) -> list[str]:
    """Of what is below that directory, the files that an earlier version of the package had and this one has not."""
    return sorted(path for path in paths if _OWN.fullmatch(path) and path not in files())
