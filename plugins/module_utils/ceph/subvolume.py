# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subvolumes of CephFS: directories with a quota, an owner and objects of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, find, shown
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# Commands of Ceph that run side by side.
AT_ONCE = 4


@dataclass(frozen=True)
class Place:
    """Which subvolume."""

    filesystem: str
    group: str
    name: str

    def words(self, *command: str, last: str = "") -> tuple[str, ...]:
        """A command 'fs subvolume …' on it, with a word that follows its name."""
        group = ("--group_name", self.group) if self.group else ()
        return ("fs", "subvolume", *command, self.filesystem, self.name, *([last] if last else []), *group)

    def __str__(self) -> str:
        return f"{self.group}/{self.name}" if self.group else self.name


@dataclass
class Found:
    """What is there of a subvolume and what is around it."""

    groups: set[str] = field(default_factory=set)
    info: dict[str, Any] | None = None
    snapshots: list[str] = field(default_factory=list)


def is_name(name: str) -> bool:
    """Whether it is a plain directory name."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", name))


def check_name(name: str) -> None:
    """:raises Refused: for a name that is not a plain directory name."""
    if not is_name(name):
        raise Refused(f"{name!r} cannot name a subvolume", "use letters, digits and . _ - @, not first a dot or dash")


def view(info: Mapping[str, Any]) -> dict[str, Any]:
    """'fs subvolume info' in the words of the modules; sizes are bytes, 0 without a quota."""
    quota = info["bytes_quota"]
    return {
        "path": info["path"],
        "size": 0 if quota == "infinite" else int(quota),
        "used": int(info["bytes_used"]),
        "uid": info["uid"],
        "gid": info["gid"],
        "mode": f"{info['mode'] & 0o7777:04o}",
        "data_pool": info["data_pool"],
        "namespace": info["pool_namespace"] or "",
        "state": info["state"],
    }


def read_groups(ceph: Ceph, filesystem: str) -> set[str]:
    """Names of the subvolume groups of a file system; empty if the file system is not there."""
    return {group["name"] for group in find(ceph, "fs", "subvolumegroup", "ls", filesystem) or []}


def read(ceph: Ceph, place: Place, groups: set[str] | None = None) -> Found:
    """One subvolume with its snapshots."""
    found = Found(groups=read_groups(ceph, place.filesystem) if groups is None else groups)
    if place.group and place.group not in found.groups:
        return found
    info = find(ceph, *place.words("info"))
    if info:
        found.info = view(info)
        listed = find(ceph, *place.words("snapshot", "ls"))
        found.snapshots = sorted(snapshot["name"] for snapshot in listed or [])
    return found


def plan(found: Found, place: Place, wanted: Mapping[str, Any]) -> list[Step]:
    """What brings a subvolume into its state; what is None in ``wanted`` stays, or is Ceph's default.

    :param wanted: size (bytes, 0 without quota), uid, gid, mode ('0700'), namespace_isolated, snapshot (a name).
    :raises Refused: if it would cut into data, or cannot be changed.
    """
    check_name(place.name)
    given = {key: value for key, value in wanted.items() if value is not None}
    steps = []
    if place.group and place.group not in found.groups:
        steps.append(make_group(place.filesystem, place.group))
    info = found.info
    if not info:
        steps.append(Step(f"make the subvolume {place}", place.words("create") + _attributes(given)))
    else:
        steps += _differences(info, place, given)
    snapshot = given.get("snapshot")
    if snapshot and snapshot not in found.snapshots:
        check_name(snapshot)
        words = place.words("snapshot", "create", last=snapshot)
        steps.append(Step(f"take the snapshot {snapshot} of {place}", words))
    return steps


def _differences(info: Mapping[str, Any], place: Place, given: Mapping[str, Any]) -> list[Step]:
    steps = []
    isolated = given.get("namespace_isolated")
    if isolated is not None and isolated != bool(info["namespace"]):
        raise Refused(
            f"the subvolume {place} is {'' if info['namespace'] else 'not '}isolated in a namespace of its own, which "
            "is settled when it is made",
            "make another one and copy the data",
        )
    owner = {key: given[key] for key in ("uid", "gid", "mode") if key in given and given[key] != info[key]}
    if owner:
        # Making one that is there sets its owner and mode, and leaves the rest alone if it is given as it is.
        keep = {
            **{key: given.get(key, info[key]) for key in ("uid", "gid", "mode", "size")},
            "namespace_isolated": bool(info["namespace"]),
        }
        keep["size"] = info["size"]
        text = ", ".join(f"{key} {info[key]} to {value}" for key, value in owner.items())
        steps.append(Step(f"change {place}: {text}", place.words("create") + _attributes(keep)))
    size = given.get("size")
    if size is not None and size != info["size"]:
        if size and size < info["used"]:
            raise Refused(
                f"the subvolume {place} holds {shown(info['used'])}, more than the wanted {shown(size)}",
                "give it more, or have files removed first",
            )
        was, now = (shown(value) if value else "no quota" for value in (info["size"], size))
        steps.append(Step(f"resize {place} from {was} to {now}", place.words("resize", last=str(size or "inf"))))
    return steps


def make_group(filesystem: str, group: str) -> Step:
    """What makes a subvolume group."""
    check_name(group)
    return Step(f"make the subvolume group {group}", ("fs", "subvolumegroup", "create", filesystem, group))


def _attributes(given: Mapping[str, Any]) -> tuple[str, ...]:
    words: list[str] = []
    if given.get("size"):
        words += ["--size", str(given["size"])]
    for key in ("uid", "gid"):
        if key in given:
            words += [f"--{key}", str(given[key])]
    if "mode" in given:
        words += ["--mode", given["mode"].lstrip("0") or "0"]
    if given.get("namespace_isolated"):
        words.append("--namespace-isolated")
    return tuple(words)


def plan_removal(found: Found, place: Place, confirmed: str) -> list[Step]:
    """What removes a subvolume, its snapshots and all that is in them.

    :raises Refused: unless its name is written a second time.
    """
    if not found.info:
        return []
    if confirmed != place.name:
        raise Refused(
            f"removing the subvolume {place} deletes {shown(found.info['used'])} and {len(found.snapshots)} snapshots "
            "of it, for good",
            f"write its name in confirm too, confirm: {place.name}",
        )
    steps = [
        Step(f"remove the snapshot {snapshot} of {place}", place.words("snapshot", "rm", last=snapshot))
        for snapshot in found.snapshots
    ]
    steps.append(Step(f"remove the subvolume {place} and all that is in it", place.words("rm")))
    return steps


def caps(place: Place, info: Mapping[str, Any], access: str = "rw") -> dict[str, str]:
    """What a key may do that reaches this subvolume and nothing else: neither other paths nor other objects."""
    space = f" namespace={info['namespace']}" if info["namespace"] else ""
    return {
        "mon": "allow r",
        "mds": f"allow {access} fsname={place.filesystem} path={info['path']}",
        "osd": f"allow {access} pool={info['data_pool']}{space}",
    }


def read_all(ceph: Ceph, filesystem: str, group: str, groups: set[str] | None = None) -> dict[str, dict[str, Any]]:
    """All subvolumes of a group by name, each with its snapshots; empty if the group is not there.

    :param groups: the groups of the file system, where they are known.
    """
    known = read_groups(ceph, filesystem) if groups is None else groups
    if group and group not in known:
        return {}
    listed = find(ceph, "fs", "subvolume", "ls", filesystem, *(("--group_name", group) if group else ())) or []
    names = [str(entry["name"]) for entry in listed]
    # A command takes half a second, nearly all of which is its start.
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        each = pool.map(lambda name: read(ceph, Place(filesystem, group, name), known), names)
        found = dict(zip(names, each))
    return {name: {**one.info, "snapshots": one.snapshots} for name, one in found.items() if one.info}
