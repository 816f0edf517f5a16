# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate, the key and the authority of a host in a directory of it, as items of a desired document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"


def present(directory: str, certificates: Mapping[str, Any], host: str, group: str = "root") -> list[doc.Entry]:
    """The directory and its three files.

    :param certificates: what the module cluster_certificates has returned.
    :param host: the name of the host in the inventory.
    :param group: who may read them beside root; of root's own the key is root's alone, and the rest everybody's.
    """
    authority, pair = certificates["authority"], certificates["certificates"][host]
    mode, key_mode = ("0644", "0600") if group == "root" else ("0640", "0640")

    def file(name: str, mode: str, source: str, sha256: str, sensitive: bool | None = None) -> doc.File:
        path = f"{directory}/{name}"
        return doc.File(path, None, mode, group=group, source=source, sha256=sha256, sensitive=sensitive)

    return [
        doc.Directory(directory, "0755" if group == "root" else "0750", group=group),
        file(AUTHORITY, mode, authority["path"], authority["sha256"]),
        file(CERTIFICATE, mode, pair["certificate"], pair["certificate_sha256"]),
        file(KEY, key_mode, pair["key"], pair["key_sha256"], sensitive=True),
    ]


def absent(directory: str) -> list[doc.Absent]:
    """The same where none of the files is wanted any more."""
    return [doc.Absent(f"{directory}/{name}") for name in (KEY, CERTIFICATE, AUTHORITY)]
