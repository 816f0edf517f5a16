# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of Ceph: capabilities compared by what they grant, and the files that hold a key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, find
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def grants(capability: str) -> tuple[str, ...]:
    """The grants of a capability such as 'allow r, allow rw path=/a', in no order and without spare blanks."""
    return tuple(sorted(" ".join(part.split()) for part in capability.split(",") if part.strip()))


def same_caps(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two sets of capabilities (kind of daemon -> capability) grant the same."""
    return {k: grants(v) for k, v in one.items() if v} == {k: grants(v) for k, v in other.items() if v}


def is_key(text: str) -> bool:
    """Whether it is a secret as Ceph writes one: base64 of type, time, length and 16 bytes."""
    try:
        return len(base64.b64decode(text, validate=True)) == 28
    except (binascii.Error, ValueError):
        return False


def keyring(entity: str, key: str, caps: Mapping[str, str] | None = None) -> str:
    """The text of a keyring; with capabilities as 'auth import' takes it."""
    lines = [f"[{entity}]", f"\tkey = {key}"]
    lines += [f'\tcaps {kind} = "{capability}"' for kind, capability in sorted((caps or {}).items())]
    return "\n".join(lines) + "\n"


def check(entity: str, caps: Mapping[str, str]) -> None:
    """:raises Refused: for a name or capability that cannot be."""
    kind, dot, name = entity.partition(".")
    if not dot or not name or kind not in ("client", "mgr", "mds", "osd") or entity != entity.strip():
        raise Refused(f"{entity!r} is not the name of a key", "write it with its kind, such as client.alice")
    if any('"' in text or "\n" in text for text in (entity, *caps.values())):
        raise Refused(f"the capabilities of {entity} hold a quotation mark or a line break", "leave it out")


def read(ceph: Ceph, entity: str) -> dict[str, Any] | None:
    """The key of that name as {entity, key, caps}, or None."""
    found = find(ceph, "auth", "get", entity)
    return dict(found[0]) if found else None


def read_all(ceph: Ceph) -> dict[str, dict[str, Any]]:
    """All keys of the cluster by name, each as {entity, key, caps}."""
    return {row["entity"]: row for row in ceph.json("auth", "ls")["auth_dump"]}


def plan(
    found: Mapping[str, Any] | None, entity: str, caps: Mapping[str, str] | None, key: str = "", absent: bool = False
) -> list[Step]:
    """What brings a key into its state; without ``caps`` those that are there stay.

    :raises Refused: if another key than the wanted one is there, since every client that holds it would lose access.
    """
    if absent:
        return [Step(f"remove the key {entity}", ("auth", "rm", entity))] if found else []
    check(entity, caps or {})
    if key and not is_key(key):
        raise Refused(f"the secret for {entity} is not one that 'ceph-authtool --gen-print-key' makes")
    if found and key and found["key"] != key:
        raise Refused(
            f"{entity} has another secret than the wanted one, and all who hold it would lose access",
            "remove the key first (state: absent), or leave the secret out",
        )
    wanted = {kind: capability for kind, capability in (caps or {}).items() if capability}
    if not found:
        if not wanted:
            raise Refused(f"{entity} is not there and no capabilities are given", "say what it may do in caps")
        if key:
            return [Step(f"make the key {entity}", ("auth", "import"), keyring(entity, key, wanted))]
        return [Step(f"make the key {entity}", ("auth", "get-or-create", entity, *words(wanted)))]
    if caps is not None and not same_caps(found["caps"], wanted):
        if not wanted:
            raise Refused(f"{entity} would be left without any capability", "remove it with state: absent")
        return [Step(f"change what {entity} may do", ("auth", "caps", entity, *words(wanted)))]
    return []


def words(caps: Mapping[str, str]) -> tuple[str, ...]:
    """Capabilities as arguments, in one order."""
    return tuple(word for kind in sorted(caps) for word in (kind, caps[kind]))
