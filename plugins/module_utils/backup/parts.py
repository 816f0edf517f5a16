# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host alone knows, part by part."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    list_of,
    object_of,
    one_of,
    text,
    whole,
)

PATH = text(r"(?:/[^/\0\n]+)+", 4096, "an absolute path")
NAME = text(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}", 128, "a name")
# Where a snapshot of etcd is put back to, from which a control plane is then made.
SNAPSHOT = "/var/lib/baremetal-gpu/etcd-snapshot/snapshot.db"
# An account of a person, as the role users makes it.
_PERSON = object_of({"name": NAME, "group": NAME, "uid": whole(1000, 1 << 31), "gid": whole(1000, 1 << 31)})
_SHAPE = object_of(
    {"name": NAME, "paths": list_of(PATH)},
    {
        "leave_out": list_of(PATH),
        "sqlite": list_of(PATH),
        "mariadb": NAME,
        "frozen": NAME,
        "account": NAME,
        "not_needed": text(),
        "units": list_of(NAME),
        "packages": list_of(NAME),
        "people": list_of(_PERSON),
        "saved_by": one_of("etcd", "slurmctld"),
    },
)


@dataclass(frozen=True)
class Part:
    """:ivar paths: files, and directories with all in them.
    :ivar leave_out: files and directories of these that are made anew.
    :ivar sqlite: databases among these, which a program writes meanwhile.
    :ivar mariadb: a database of the MariaDB on the host.
    :ivar frozen: a unit whose processes stand still while its files are read.
    :ivar account: whose files they are beside root's. Where it is put back, it is made if it is not there.
    :ivar units: what does not run while it is put back.
    :ivar packages: whose versions it depends on: an older one does not read it.
    :ivar people: name, group, uid and gid of accounts whose passwords are kept, as hashes.
    :ivar saved_by: the program that is asked to write down what it knows: slurmctld, before its files are read; etcd,
        whose snapshot is at SNAPSHOT; or none.
    :ivar not_needed: why nothing of it is in an archive.
    """

    name: str
    paths: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    sqlite: tuple[str, ...] = ()
    mariadb: str = ""
    frozen: str = ""
    account: str = ""
    units: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    people: tuple[Mapping[str, Any], ...] = ()
    saved_by: str = ""
    not_needed: str = ""

    def has(self, path: str) -> bool:
        """Whether a path belongs to the part."""
        plain = path == os.path.normpath(path)
        return plain and is_below(path, self.paths) and not is_below(path, self.leave_out)


def is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def read(rows: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Raises Malformed."""
    found = []
    for row in rows:
        checked = _SHAPE(dict(row), "a part")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in checked.items()
        }
        found.append(Part(**given))
    return found
