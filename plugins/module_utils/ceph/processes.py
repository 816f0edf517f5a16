# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemons of Ceph that run on this host, since when, and whether what they run or have read has changed since."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection
from typing import Any

KINDS = ("mon", "mgr", "osd", "mds")
UNIT = re.compile(r"^(?:\d+:)?.*/ceph-(mon|mgr|osd|mds)@([^/]+)\.service$")
# What the package manager exchanges; a daemon maps other files that come and go as well.
PROGRAMS = ("/usr/", "/lib", "/opt/")
# The role ceph_common writes for each kind what its daemons read at their start alone. The time of a file is that of
# the last change; the one of ceph.conf is not, since running daemons hear of monitors by themselves.
SETTINGS = "/var/lib/baremetal-gpu/ceph-settings"
# What a daemon is due for: a program or library that was exchanged, settings that were changed.
PROGRAM_CHANGED, SETTINGS_CHANGED = "program", "settings"
REASONS = (PROGRAM_CHANGED, SETTINGS_CHANGED)
# The time of boot is in whole seconds, so a daemon seems to have started up to one second too early.
ROUNDED = 1.0


def daemons(proc: str = "/proc", settings: str = SETTINGS) -> list[dict[str, Any]]:
    """Every daemon: kind, id, unit, started (seconds since 1970), outdated (whether it runs files that are gone), and
    old_settings (whether it started before its settings were changed)."""
    begun = _boot_time(proc)
    changed = {kind: _changed(f"{settings}/{kind}.conf") for kind in KINDS}
    found = []
    for directory in glob.glob(f"{proc}/[0-9]*"):
        unit = _unit(directory)
        if not unit:
            continue
        kind, name = unit
        try:
            with open(f"{directory}/stat", encoding="utf-8", errors="replace") as file:
                ticks = int(file.read().rpartition(")")[2].split()[19])
            outdated = _is_outdated(directory)
        except OSError:
            # It has ended in between.
            continue
        started = begun + ticks / os.sysconf("SC_CLK_TCK")
        found.append(
            {
                "kind": kind,
                "id": name,
                "unit": f"ceph-{kind}@{name}",
                "started": started,
                "outdated": outdated,
                "old_settings": started + ROUNDED < changed[kind],
            }
        )
    return sorted(found, key=lambda row: (KINDS.index(row["kind"]), row["id"]))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _boot_time(proc: str) -> int:
    with open(f"{proc}/stat", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("btime "))


def _unit(directory: str) -> tuple[str, str] | None:
    try:
        with open(f"{directory}/cgroup", encoding="utf-8", errors="replace") as file:
            matches = (UNIT.match(line.strip()) for line in file)
            match = next((match for match in matches if match), None)
        with open(f"{directory}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
    except OSError:
        return None
    return (match[1], match[2]) if match and name == f"ceph-{match[1]}" else None


def _is_outdated(directory: str) -> bool:
    if os.readlink(f"{directory}/exe").endswith(" (deleted)"):
        return True
    with open(f"{directory}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.partition("/")
            if line.rstrip().endswith(" (deleted)") and f"/{path[2]}".startswith(PROGRAMS):
                return True
    return False


def due(
    found: list[dict[str, Any]],
    kind: str | None,
    before: float | None,
    because: Collection[str] = REASONS,
    changing: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The daemons of a kind, or of all, that are to be restarted.

    :param before: those that were started before this time, in seconds since 1970; None for those with a reason.
    :param because: which of REASONS count.
    :param changing: kinds whose settings are about to change.
    """
    return [
        row
        for row in found
        if kind in (None, row["kind"])
        and (_has_reason(row, because, changing) if before is None else row["started"] < before)
    ]


def _has_reason(row: dict[str, Any], because: Collection[str], changing: Collection[str]) -> bool:
    has_old_settings = row.get("old_settings", False) or row["kind"] in changing
    return (PROGRAM_CHANGED in because and row["outdated"]) or (SETTINGS_CHANGED in because and has_old_settings)
