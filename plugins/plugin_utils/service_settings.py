# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles of services with TLS share: their settings, and the files of their units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

_SIZE = re.compile(r"([1-9][0-9]{0,8})([MGT])", re.ASCII)
_UNITS = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Bytes of a size such as 50G; 0 for anything else."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def unit_path(name: str) -> str:
    return f"/etc/systemd/system/{name}"


def wrong(variable: str, cause: str, evidence: object, remedy: str) -> Problem:
    """A setting that cannot be. The text names it, as what is shown begins with the host."""
    return Problem("wrong_setting", variable, f"{variable}: {cause}", str(evidence), remedy)


def wrong_files(variable: str, given: Mapping[str, Any]) -> list[Problem]:
    """What is missing of an operator's own authority, certificate and key, all of which are needed."""
    missing = [name for name in ("authority", "certificate", "key") if not given.get(name)]
    if not given or not missing:
        return []
    return [wrong(variable, f"it has no {' and no '.join(missing)}", ", ".join(given), "give all three, or none")]
