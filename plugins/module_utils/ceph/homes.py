# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes of users: each a subvolume with a quota, and a key that reaches it and nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import capacity as ceph_capacity
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import fs as ceph_fs
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import key as ceph_key
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import subvolume as ceph_subvolume
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, act, size_in_bytes
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.subvolume import Found, Place
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

PRESENT, ARCHIVED, ABSENT = STATES = ("present", "archived", "absent")
ARCHIVE_SNAPSHOT = "archived"
# The snapshot of a home that is kept aside says since when: its name ends with the seconds since 1970.
_ASIDE = re.compile(r"removed-([0-9]{1,12})", re.ASCII)
DAY_S = 86400


@dataclass(frozen=True)
class Home:
    """What is wanted for one user; size in bytes, 0 without quota."""

    name: str
    state: str
    size: int
    uid: int
    gid: int
    confirm: str = ""


@dataclass(frozen=True)
class Settings:
    """Where homes are and what holds for all of them.

    :ivar removed_days: for how long a removed home is kept aside.
    """

    filesystem: str
    group: str
    mode: str
    key_prefix: str
    overcommit: float
    removed_days: int

    def place(self, name: str) -> Place:
        """The subvolume of a user."""
        return Place(self.filesystem, self.group, name)

    def entity(self, name: str) -> str:
        """The name of a user's key."""
        return f"client.{self.key_prefix}{name}"


def wanted_homes(given: Sequence[Mapping[str, Any]]) -> list[Home]:
    """What an operator wrote, checked as a whole.

    :raises Refused: with everything that is wrong.
    """
    homes, problems = [], []
    names: set[str] = set()
    uids: dict[int, str] = {}
    for entry in given:
        name, state = entry["name"], entry["state"]
        try:
            ceph_subvolume.check_name(name)
            size = size_in_bytes(entry["size"] or 0)
        except Refused as error:
            problems.append(str(error))
            continue
        if name in names:
            problems.append(f"{name} is listed twice")
        names.add(name)
        uid, gid = entry["uid"], entry["gid"]
        if state == PRESENT:
            if uid is None or gid is None:
                problems.append(f"{name} has no uid or gid")
                continue
            if uid in uids:
                problems.append(f"{name} and {uids[uid]} have the same uid {uid}, and could read each other's files")
            if uid == 0:
                problems.append(f"{name} would be root")
            uids[uid] = name
        homes.append(Home(name, state, size, uid or 0, gid or 0, entry["confirm"] or ""))
    if problems:
        raise Refused("; ".join(problems), "correct the list of homes")
    return homes


@dataclass
class There:
    """What is there: all homes of the group, and the keys of the listed ones."""

    groups: set[str]
    homes: dict[str, dict[str, Any]]
    keys: dict[str, dict[str, Any] | None]
    filesystem: bool = True

    def found(self, name: str) -> Found:
        """One home as ceph_subvolume reads it."""
        info = self.homes.get(name)
        return Found(self.groups, info, list(info["snapshots"]) if info else [])

    def aside(self, name: str) -> list[str]:
        """The snapshots that say since when a home is kept aside; none for one that is not."""
        return [snapshot for snapshot in self.found(name).snapshots if _ASIDE.fullmatch(snapshot)]

    def goes(self, name: str, days: int) -> bool:
        """Whether a removed home was kept aside for so many days."""
        since = [int(found[1]) for found in map(_ASIDE.fullmatch, self.aside(name)) if found]
        return bool(since) and time.time() - max(since) >= days * DAY_S


def read(ceph: Ceph, settings: Settings, homes: Sequence[Home]) -> There:
    """What is there of homes and keys."""
    groups = ceph_subvolume.read_groups(ceph, settings.filesystem)
    keys = ceph_key.read_all(ceph)
    return There(
        groups,
        ceph_subvolume.read_all(ceph, settings.filesystem, settings.group, groups),
        {home.name: keys.get(settings.entity(home.name)) for home in homes},
        settings.filesystem in ceph_fs.read(ceph)["filesystems"],
    )


def promised(there: There, homes: Sequence[Home]) -> dict[str, int]:
    """Quotas by name as they will be, those of homes that nobody listed included."""
    after = {name: info["size"] for name, info in there.homes.items()}
    for home in homes:
        if home.state == PRESENT:
            after[home.name] = home.size
    return after


def check_capacity(there: There, homes: Sequence[Home], settings: Settings, found: ceph_capacity.Capacity) -> None:
    """:raises Refused: if a run would promise more than there is; one that only takes back is let through."""
    before = {name: info["size"] for name, info in there.homes.items()}
    after = promised(there, homes)
    endless = float("inf")
    if any((size or endless) > (before.get(name, -1) or endless) for name, size in after.items()):
        ceph_capacity.check(found, after, settings.overcommit)


def plan_group(there: There, homes: Sequence[Home], settings: Settings) -> list[Step]:
    """What makes the group, once there is a home to put into it."""
    if settings.group in there.groups or not any(home.state == PRESENT for home in homes):
        return []
    return [ceph_subvolume.make_group(settings.filesystem, settings.group)]


def plan_place(there: There, home: Home, settings: Settings) -> list[Step]:
    """What brings the subvolume of a home into its state."""
    found, place = there.found(home.name), settings.place(home.name)
    aside = there.aside(home.name)
    if home.state == ABSENT:
        # It refuses where the name is not written twice.
        removal = ceph_subvolume.plan_removal(found, place, home.confirm)
        if not found.info or there.goes(home.name, settings.removed_days):
            return removal
        if aside:
            return []
        words = place.words("snapshot", "create", last=f"removed-{int(time.time())}")
        return [Step(f"keep {place} aside for {settings.removed_days} days", words)]
    if home.state == ARCHIVED:
        if not found.info:
            return []
        return ceph_subvolume.plan(found, place, {"snapshot": ARCHIVE_SNAPSHOT})
    if aside and found.info and found.info["uid"] != home.uid:
        raise Refused(
            f"the home of an earlier {home.name}, who had the number {found.info['uid']}, is kept aside at {place}",
            f"choose another name, or delete it: ceph {' '.join(place.words('snapshot', 'rm', last=aside[0]))}, then "
            f"ceph {' '.join(place.words('rm'))}",
        )
    back = [Step(f"take {place} back from aside", place.words("snapshot", "rm", last=snapshot)) for snapshot in aside]
    wanted = {
        "size": home.size,
        "uid": home.uid,
        "gid": home.gid,
        "mode": settings.mode,
        "namespace_isolated": True,
    }
    return [*back, *ceph_subvolume.plan(found, place, wanted)]


def plan_key(there: There, home: Home, settings: Settings) -> list[Step]:
    """What brings the key of a home into its state; the subvolume is there already, unless it is only announced."""
    entity, key = settings.entity(home.name), there.keys[home.name]
    if home.state != PRESENT:
        steps = ceph_key.plan(key, entity, None, absent=True)
        if steps:
            # What is mounted would go on with the ticket that it has.
            filters = f"auth_name={entity.partition('.')[2]}"
            words = ("tell", f"mds.{settings.filesystem}:0", "client", "evict", filters)
            steps.append(Step(f"cut off what {home.name} has mounted", words))
        return steps
    info = there.homes.get(home.name)
    if not info:
        return [] if key else [Step(f"make the key {entity}", ())]
    return ceph_key.plan(key, entity, ceph_subvolume.caps(settings.place(home.name), info))


def settle(
    ceph: Ceph, settings: Settings, homes: Sequence[Home], pretend: bool
) -> tuple[list[str], There, ceph_capacity.Capacity | None]:
    """Bring all homes into their state.

    :returns: what was done, or if only pretended would be, what was there before, and the capacity.
    :raises Refused: before anything was changed.
    """
    there = read(ceph, settings, homes)
    if not there.filesystem:
        if not pretend:
            raise Refused(f"there is no file system {settings.filesystem}", "make it first (role ceph_mds)")
        return [f"make the home of {home.name}" for home in homes if home.state == PRESENT], there, None
    capacity = ceph_capacity.read(ceph, data_pool(ceph, settings.filesystem))
    check_capacity(there, homes, settings, capacity)
    group = plan_group(there, homes, settings)
    there.groups.add(settings.group)
    # Refusals of any home come before the first change to one.
    places = {home.name: plan_place(there, home, settings) for home in homes}
    keys = {home.name: plan_key(there, home, settings) for home in homes}
    done = [step.does for step in group]
    for step in () if pretend else group:
        act(ceph, step)
    for home in homes:
        steps, more = places[home.name], keys[home.name]
        if pretend:
            done += [step.does for step in (*steps, *more)]
            continue
        if home.state != PRESENT:
            steps, more = [*more, *steps], []
        for step in steps:
            act(ceph, step)
        if home.state == PRESENT and (steps or more):
            # Where it lies is known only now.
            place = settings.place(home.name)
            now = ceph_subvolume.read(ceph, place, {settings.group})
            there_now = There(there.groups, {home.name: {**(now.info or {}), "snapshots": now.snapshots}}, there.keys)
            more = plan_key(there_now, home, settings)
            for step in more:
                act(ceph, step)
        done += [step.does for step in (*steps, *more)]
    return done, there, capacity


def data_pool(ceph: Ceph, filesystem: str) -> str:
    """The pool that new files of a file system lie in."""
    return str(ceph_fs.read(ceph)["filesystems"][filesystem]["data_pools"][0])


def describe(there: There, settings: Settings, homes: Sequence[Home]) -> dict[str, dict[str, Any]]:
    """Homes for people and for mounting them: path, size, used, client; without secrets."""
    states = {home.name: home.state for home in homes}
    return {
        name: {
            **{key: info[key] for key in ("path", "size", "used", "uid", "gid")},
            "client": settings.entity(name).partition(".")[2],
            "listed": name in states,
        }
        for name, info in sorted(there.homes.items())
        if states.get(name) != ABSENT
    }
