# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log host and the hosts that send to it agree on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.logs.store import DIRECTORY

# The port that systemd has for it.
PORT = 19532
ROOT_OWNS = {"owner": "root", "group": "root"}
# A name in the inventory that may be part of a file's name, of a unit's and of a certificate.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_SIZE = re.compile(r"([1-9][0-9]{0,8})([MGT])", re.ASCII)
_UNITS = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def files_of(*hosts: str) -> str:
    """The journal files of hosts on the log host, as one pattern: journalctl fails for each that fits none."""
    names = f"{{{','.join(hosts)}}}" if len(hosts) > 1 else hosts[0]
    return f"{DIRECTORY}/{names}{{.journal,@*.journal*}}"


def size(text: str) -> int:
    """Bytes of a size such as 50G; 0 for anything else."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found else 0


def wrong(variable: str, cause: str, evidence: object, remedy: str) -> Problem:
    return Problem("wrong_setting", variable, cause, str(evidence), remedy)


def wrong_files(variable: str, given: Mapping[str, Any]) -> list[Problem]:
    missing = [name for name in ("authority", "certificate", "key") if not given.get(name)]
    if not given or not missing:
        return []
    return [wrong(variable, f"it has no {' and no '.join(missing)}", ", ".join(given), "give all three, or none")]
