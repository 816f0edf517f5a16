# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes as directories of one file system, each with the quota of its user."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.homes import ABSENT, ARCHIVED, PRESENT, Home
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import shown
from ansible_collections.baremetal.gpu.plugins.module_utils.homes.quota import Quotas, rounded
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

# Below the root of the homes: those that were removed, until the timer deletes them.
REMOVED = ".removed"
CLOSED = 0o700


@dataclass(frozen=True)
class Found:
    """A directory as it is."""

    is_directory: bool
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True)
class Step:
    """One change: what it does in words, and what does it."""

    does: str
    act: Callable[[], None]


@dataclass(frozen=True)
class Settings:
    """Where homes are and what holds for all of them; quotas is None for homes without."""

    root: str
    mode: int
    overcommit: float
    quotas: Quotas | None

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)


def look(path: str) -> Found | None:
    """What is at a path; None for nothing. A link is not followed."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return None
    return Found(stat.S_ISDIR(there.st_mode), there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode))


def problems(homes: Sequence[Home], settings: Settings) -> list[Problem]:
    """Why homes cannot be brought into their states. Nothing is changed then."""
    found = [problem for home in homes for problem in _problems_of(home, settings)]
    quotas = settings.quotas
    if quotas and os.path.isdir(settings.root):
        there = os.statvfs(settings.root)
        room, promised = there.f_blocks * there.f_frsize, sum(home.size for home in homes if home.state == PRESENT)
        grows = any(rounded(home.size) > quotas.read(home.uid)[0] for home in homes if home.state == PRESENT)
        if grows and promised > room * settings.overcommit:
            cause = (
                f"the quotas add up to {shown(promised)}, and the file system of {settings.root} has {shown(room)} "
                f"(times {settings.overcommit:g})"
            )
            remedy = "give smaller quotas or a larger file system, or permit it by the overcommit"
            found.append(Problem("too_much_promised", settings.root, cause, str(promised), remedy))
    return found


def _problems_of(home: Home, settings: Settings) -> list[Problem]:
    path, name = settings.path(home.name), home.name
    there = look(path)
    found = []
    if there and not there.is_directory:
        cause = f"{path} is not a directory, so it cannot be a home"
        return [Problem("bad_home", path, cause, oct(there.mode), f"see `ls -ld {path}`, and move it away")]
    if home.state == ABSENT and there and home.confirm != name:
        cause = f"the home of {name} would be removed with all that it holds"
        found.append(Problem("not_confirmed", name, cause, home.confirm, f"write `confirm: {name}` beside it"))
    if home.state != PRESENT:
        return found
    # Root's is one that was archived.
    if there and there.uid not in (0, home.uid):
        cause = f"{path} belongs to the uid {there.uid}, and {name} has {home.uid}"
        remedy = f"see whose it is: `sudo ls -ln {path}`; to give it to {name}: `sudo chown -R {home.uid} {path}`"
        found.append(Problem("home_of_another", path, cause, str(there.uid), remedy))
    if settings.quotas and home.size:
        limit, used = settings.quotas.read(home.uid)
        if used > home.size and not 0 < limit <= rounded(home.size):
            cause = f"the quota of {name} would be {shown(home.size)}, and {shown(used)} are used"
            remedy = f"have files removed first, or give {name} a size of more than {shown(used)}"
            found.append(Problem("quota_too_small", name, cause, str(used), remedy))
    return found


def plan(homes: Sequence[Home], settings: Settings) -> list[Step]:
    """What brings homes into their states, in the order of the list."""
    return [step for home in homes for step in _steps(home, settings)]


def _steps(home: Home, settings: Settings) -> list[Step]:
    path, name, quotas = settings.path(home.name), home.name, settings.quotas
    there = look(path)
    steps = []
    if home.state == ABSENT:
        return [Step(f"move the home of {name} aside", lambda: put_aside(path, settings.root))] if there else []
    if home.state == ARCHIVED:
        is_open = there and (there.uid, there.mode) != (0, CLOSED)
        return [Step(f"close the home of {name}", lambda: _own(path, 0, 0, CLOSED))] if is_open else []
    if quotas and quotas.read(home.uid)[0] != rounded(home.size):
        text = f"a quota of {shown(home.size)}" if home.size else "no quota"
        steps.append(Step(f"give {name} {text}", lambda: quotas.set(home.uid, home.size)))
    if there is None:
        steps.append(Step(f"make the home of {name}", lambda: _make(path, home, settings.mode)))
    elif there != Found(True, home.uid, home.gid, settings.mode):
        steps.append(Step(f"open the home of {name}", lambda: _own(path, home.uid, home.gid, settings.mode)))
    return steps


def _make(path: str, home: Home, mode: int) -> None:
    os.mkdir(path, CLOSED)
    _own(path, home.uid, home.gid, mode)


def _own(path: str, uid: int, gid: int, mode: int) -> None:
    """The directory alone: what is in it stays as it is."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # Nobody else gets in between the two.
        os.fchmod(number, CLOSED)
        os.fchown(number, uid, gid)
        os.fchmod(number, mode)
    finally:
        os.close(number)


def put_aside(path: str, root: str, now: Callable[[], float] = time.time) -> None:
    """Move a home to where the timer deletes it. Its time of change is the time of the removal."""
    place = os.path.join(root, REMOVED)
    os.makedirs(place, CLOSED, exist_ok=True)
    when = int(now())
    target = os.path.join(place, f"{os.path.basename(path)}.{when}")
    _own(path, 0, 0, CLOSED)
    os.utime(path, (when, when))
    os.rename(path, target)


def describe(homes: Sequence[Home], settings: Settings) -> dict[str, dict[str, Any]]:
    """The homes that are there, for people and programs; sizes are bytes."""
    found = {}
    for home in homes:
        there = look(settings.path(home.name))
        if there is None:
            continue
        row: dict[str, Any] = {"uid": there.uid, "gid": there.gid, "mode": f"{there.mode:04o}"}
        if settings.quotas and home.state == PRESENT:
            row["size"], row["used"] = settings.quotas.read(home.uid)
        found[home.name] = row
    return found
