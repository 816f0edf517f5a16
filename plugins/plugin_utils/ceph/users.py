# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who gets a home: listed users and members of groups, with the numbers that a host knows them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.subvolume import is_name
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem


def members(groups: Sequence[str]) -> list[str]:
    """Names in lines of 'getent group' (name:password:number:members) that can have a home, each once, in order."""
    return [name for name in _listed(groups) if is_name(name)]


def left_out(groups: Sequence[str], variable: str = "cephfs_homes_groups") -> list[str]:
    """What to say of members of groups whose name cannot be that of a home: a directory may have any names."""
    return [
        f"{name!r} of a group of {variable} gets no home: a name has letters, digits and . _ - @. "
        "To do: give the account another name, or leave it out of the group"
        for name in _listed(groups)
        if not is_name(name)
    ]


def _listed(groups: Sequence[str]) -> list[str]:
    names = (name.strip() for line in groups for name in line.rpartition(":")[2].split(","))
    return [name for name in dict.fromkeys(names) if name]


def homes(
    users: Sequence[Mapping[str, Any]], passwd: Sequence[str], groups: Sequence[str], size: str
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The homes for ceph_homes, and who is to have one and is unknown, or known by another number.

    :param passwd: lines of 'getent passwd'.
    """
    known = {fields[0]: (int(fields[2]), int(fields[3])) for fields in (line.split(":") for line in passwd)}
    named = {user["name"] for user in users}
    # A directory may list JDoe as a member of whom the host says jdoe.
    spelled = {name.casefold(): name for name in known}
    listed = dict.fromkeys(name if name in known else spelled.get(name.casefold(), name) for name in members(groups))
    everybody = [*users, *({"name": name} for name in listed if name not in named)]
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for user in everybody:
        name, state = user["name"], user.get("state", "present")
        uid, gid = user.get("uid"), user.get("gid")
        if state == "present":
            current = known.get(name)
            if current and (uid if uid is not None else current[0]) != current[0]:
                cause = f"{name} is listed with uid {uid}, and the host knows it by {current[0]}"
                problems.append(_problem(name, cause, str(current[0])))
            if not current and (uid is None or gid is None):
                problems.append(_problem(name, f"{name} is unknown to the host and listed without uid and gid", ""))
                continue
            if current:
                uid = current[0] if uid is None else uid
                gid = current[1] if gid is None else gid
        own = user.get("size")
        # Of 0 there is no quota.
        home = {"name": name, "state": state, "size": size if own in (None, "") else own}
        home["confirm"] = user.get("confirm", "")
        rows.append({**home, **({"uid": uid, "gid": gid} if uid is not None else {})})
    return rows, problems


def have_left(users: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the site's one list of users, whose homes were archived or removed: they have nothing else either."""
    return sorted({str(row.get("name")) for row in users if row.get("state", "present") != "present"})


def _problem(name: str, cause: str, evidence: str) -> Problem:
    return Problem("unknown_user", name, cause, evidence, f"see 'getent passwd {name}' there, or give uid and gid")
