# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate, the key and the authority of a host in a directory of it, as items of a desired document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"


def present(directory: str, certificates: Mapping[str, Any], host: str, group: str = "") -> list[Document]:
    """The directory and its three files.

    :param certificates: what the module cluster_certificates has returned.
    :param host: the name of the host in the inventory.
    :param group: who may read them beside root; without it the key is root's alone, and the rest everybody's.
    """
    authority, pair = certificates["authority"], certificates["certificates"][host]
    rights = {"owner": "root", "group": group or "root"}
    open_to = {**rights, "mode": "0640" if group else "0644"}
    return [
        {"path": directory, "state": "directory", **rights, "mode": "0750" if group else "0755"},
        {"path": f"{directory}/{AUTHORITY}", "source": authority["path"], "sha256": authority["sha256"], **open_to},
        {
            "path": f"{directory}/{CERTIFICATE}",
            "source": pair["certificate"],
            "sha256": pair["certificate_sha256"],
            **open_to,
        },
        {
            "path": f"{directory}/{KEY}",
            "source": pair["key"],
            "sha256": pair["key_sha256"],
            **rights,
            "mode": "0640" if group else "0600",
            "sensitive": True,
        },
    ]


def absent(directory: str) -> list[Document]:
    """The same where none of the files is wanted any more."""
    return [{"path": f"{directory}/{name}", "state": "absent"} for name in (KEY, CERTIFICATE, AUTHORITY)]
