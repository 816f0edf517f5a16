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
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document

# The port that systemd has for it.
PORT = 19532
ROOT_OWNS = {"owner": "root", "group": "root"}
# A name in the inventory that may be part of a file's name, of a unit's and of a certificate.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
PATH = re.compile(r"(?:/[A-Za-z0-9._-]+)+", re.ASCII)
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


def wrong_metrics(variable: str, directory: str) -> list[Problem]:
    if not directory or PATH.fullmatch(directory):
        return []
    cause = "it is no absolute path of letters, digits, dots, hyphens and underscores"
    remedy = "give the directory of the textfile collector, such as /var/lib/prometheus/node-exporter"
    return [wrong(variable, cause, directory, remedy)]


def wrong_files(variable: str, given: Mapping[str, Any]) -> list[Problem]:
    missing = [name for name in ("authority", "certificate", "key") if not given.get(name)]
    if not given or not missing:
        return []
    return [wrong(variable, f"it has no {' and no '.join(missing)}", ", ".join(given), "give all three, or none")]


def certificate_files(directory: str, certificates: Mapping[str, Any], host: str) -> list[Document]:
    """Certificate, key and authority of a host, as items of a desired document.

    :param certificates: what the module cluster_certificates has returned.
    """
    authority, pair = certificates["authority"], certificates["certificates"][host]
    return [
        {"path": directory, "state": "directory", "mode": "0755", **ROOT_OWNS},
        {
            "path": f"{directory}/ca.pem",
            "source": authority["path"],
            "sha256": authority["sha256"],
            "mode": "0644",
            **ROOT_OWNS,
        },
        {
            "path": f"{directory}/certificate.pem",
            "source": pair["certificate"],
            "sha256": pair["certificate_sha256"],
            "mode": "0644",
            **ROOT_OWNS,
        },
        {
            "path": f"{directory}/key.pem",
            "source": pair["key"],
            "sha256": pair["key_sha256"],
            "mode": "0600",
            **ROOT_OWNS,
            "sensitive": True,
        },
    ]


def no_certificate_files(directory: str) -> list[Document]:
    names = ("key.pem", "certificate.pem", "ca.pem")
    return [{"path": f"{directory}/{name}", "state": "absent"} for name in names]
