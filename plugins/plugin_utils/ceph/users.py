# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who gets a home: listed users and members of groups, with the numbers that a host knows them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def members(groups: Sequence[str]) -> list[str]:
    """Names in lines of 'getent group' (name:password:number:members), each once, in order."""
    listed = [name for line in groups for name in line.rstrip().rpartition(":")[2].split(",") if name]
    return list(dict.fromkeys(listed))


def homes(
    users: Sequence[Mapping[str, Any]], passwd: Sequence[str], groups: Sequence[str], size: str
) -> list[dict[str, Any]]:
    """The homes for ceph_homes.

    :param passwd: lines of 'getent passwd'.
    :raises ValueError: naming all who are to have a home and are unknown, or known by another number.
    """
    known = {fields[0]: (int(fields[2]), int(fields[3])) for fields in (line.split(":") for line in passwd)}
    named = {user["name"] for user in users}
    everybody = [*users, *({"name": name} for name in members(groups) if name not in named)]
    found, wrong = [], []
    for user in everybody:
        name, state = user["name"], user.get("state", "present")
        uid, gid = user.get("uid"), user.get("gid")
        if state == "present":
            there = known.get(name)
            if there and (uid if uid is not None else there[0]) != there[0]:
                wrong.append(f"{name} is listed with uid {uid}, and the host knows it by {there[0]}")
            if not there and (uid is None or gid is None):
                wrong.append(f"{name} is unknown to the host and listed without uid and gid")
                continue
            if there:
                uid = there[0] if uid is None else uid
                gid = there[1] if gid is None else gid
        home = {"name": name, "state": state, "size": user.get("size") or size, "confirm": user.get("confirm", "")}
        found.append({**home, **({"uid": uid, "gid": gid} if uid is not None else {})})
    if wrong:
        raise ValueError("; ".join(wrong) + ". To do: see 'getent passwd NAME' there, or give uid and gid")
    return found
