# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The passwords that people have set on a host, as hashes: of the accounts in the site's list, and of no other."""

from __future__ import annotations

import grp
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import NAME
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object, mapping_of, text
from ansible_collections.baremetal.gpu.plugins.module_utils.system import accounts

SHADOW = "/etc/shadow"
AT_MOST = 16 << 20
# As crypt(5) has them. An account without a password, or a locked one, has a hash of another form.
HASH = text(r"\$[A-Za-z0-9./$=,_-]{10,500}", 501, "the hash of a password")
_SHAPE = mapping_of(NAME, HASH, 100_000)


def read(people: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Name -> hash, of those who have a password."""
    wanted, found = {one["name"] for one in people}, {}
    for line in files.read_text(SHADOW, AT_MOST).splitlines():
        name, _colon, rest = line.partition(":")
        hashed = rest.partition(":")[0]
        if name in wanted and _is_hash(hashed):
            found[name] = hashed
    return found


def _is_hash(value: str) -> bool:
    try:
        return bool(HASH(value, "it"))
    except Malformed:
        return False


def parsed(content: bytes) -> dict[str, str]:
    """What is in an archive. Raises Malformed."""
    found: dict[str, str] = _SHAPE(json_object(content, AT_MOST), "passwords")
    return found


def put_back(hashes: Mapping[str, str], people: Iterable[Mapping[str, Any]], run: Run) -> None:
    """Set the passwords of those in the list; who has no account yet gets one, which the role users completes.

    Raises Refused.
    """
    rows = [one for one in people if one["name"] in hashes]
    for row in rows:
        there = accounts.account_known(row["name"])
        if there and there[1] != row["uid"]:
            cause = f"{row['name']} is to have the uid {row['uid']}, and has {there[1]} here"
            raise Refused(cause, "restore onto a bare machine", code="other_uid", subject=row["name"])
        if not there:
            _make(row, run)
    if rows:
        # Not on a command line, which others read.
        lines = "".join(f"{row['name']}:{hashes[row['name']]}\n" for row in rows)
        _call(run, ["chpasswd", "--encrypted"], lines)


def _make(row: Mapping[str, Any], run: Run) -> None:
    try:
        grp.getgrgid(row["gid"])
    except KeyError:
        _call(run, ["groupadd", f"--gid={row['gid']}", row["group"]])
    numbers = [f"--uid={row['uid']}", f"--gid={row['gid']}"]
    _call(run, ["useradd", "--no-create-home", "--no-user-group", f"--shell={accounts.NOLOGIN}", *numbers, row["name"]])


def _call(run: Run, argv: list[str], stdin: str | None = None) -> None:
    status, _said, error = run(argv, stdin, accounts.COMMAND_S)
    if status:
        said = " ".join(error.split())[:300]
        raise Refused(f"{argv[0]} failed: {said}", "see what it says, then run this again", code="no_password")
