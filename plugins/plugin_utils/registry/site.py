# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the registry and the hosts that use it agree on, and checks of what they are given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

PORT = 5000
# The namespace of the site's own images, which users can only read.
CATALOGUE = "catalogue"
ROOT_OWNS = {"owner": "root", "group": "root"}
# A part of a repository's name. A user's name is one, because it is that of the user's namespace.
PART = "[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_SPACE = re.compile(PART, re.ASCII)
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_SIZE = re.compile(r"([1-9][0-9]{0,8})([MGT])", re.ASCII)
_UNITS = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def wrong(variable: str, cause: str, evidence: object, remedy: str) -> Problem:
    return Problem("wrong_setting", variable, cause, str(evidence), remedy)


def size(text: str) -> int:
    """Bytes of a size such as 50G; 0 for anything else."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def is_space(name: str) -> bool:
    """Whether it can be a user's name and the first part of the names of images."""
    return len(name) <= 64 and bool(_SPACE.fullmatch(name))


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    return is_address(text) or bool(_HOST_NAME.fullmatch(text))


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def names(host: str, name: str, others: Iterable[str]) -> list[str]:
    """By what names a registry is reached, the first of which is part of the names of its images.

    :param host: its name in the inventory.
    """
    return list(dict.fromkeys(filter(None, (name or host, host, *others))))


def wrong_names(variable: str, given: Iterable[str]) -> list[Problem]:
    cause, remedy = "it is neither a host name nor an address", "give names such as registry.example.com or 10.0.0.5"
    return [wrong(variable, cause, name, remedy) for name in given if not is_host(name)]


def wrong_files(variable: str, given: Mapping[str, Any]) -> list[Problem]:
    missing = [name for name in ("authority", "certificate", "key") if not given.get(name)]
    if not given or not missing:
        return []
    return [wrong(variable, f"it has no {' and no '.join(missing)}", ", ".join(given), "give all three, or none")]
