# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedules of snapshots: what is wanted of a path against 'fs snap-schedule status'.

https://docs.ceph.com/en/latest/cephfs/snap-schedule/
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mgr as ceph_mgr
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError, is_late
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, find
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

REPEAT = re.compile(r"^[1-9][0-9]*[mhdwMy]\Z")
# The manager's module that takes the snapshots, and how a command of a module ends that is not loaded: ENOTSUP.
MODULE = "snap_schedule"
NOT_LOADED = 95
UNITS = "mhdwMyn"


def read(ceph: Ceph, filesystem: str, path: str, patience_s: float = 300) -> dict[str, Any]:
    """Schedules of a path, and how many snapshots of each period are kept: {schedules, retention}.

    :param patience_s: for how long a manager is waited for that has yet to load the module.
    :raises CephError: if a command fails, or the manager has not loaded the module by then.
    """
    rows = _rows(ceph, filesystem, path, time.monotonic() + patience_s)
    own = [row for row in rows if row["path"] == path]
    retention: dict[str, int] = {}
    for row in own:
        retention.update({unit: int(count) for unit, count in (row.get("retention") or {}).items()})
    return {"schedules": sorted({row["schedule"] for row in own}), "retention": retention}


def _rows(ceph: Ceph, filesystem: str, path: str, deadline: float) -> list[dict[str, Any]]:
    """What the manager says of a path; nothing where the module is off."""
    while True:
        try:
            return find(ceph, "fs", "snap-schedule", "status", path, "--fs", filesystem) or []
        except CephError as error:
            # Where no manager is active nobody answers.
            if error.rc != NOT_LOADED and not is_late(error.rc, error.message):
                raise
            # The monitors answer this one; where it fails too, they are what is wrong.
            if not ceph_mgr.is_on(ceph.json("mgr", "module", "ls"), MODULE):
                return []
            if time.monotonic() > deadline:
                remedy = (
                    "see that a manager is active ('sudo ceph mgr stat'), and in its log why the module "
                    f"{MODULE}, which is on, is not loaded"
                )
                raise CephError(error.message, error.rc, error.words, remedy) from None
        # A manager starts anew to load what was just switched on, which takes minutes on a busy host. Until it hears
        # of that it answers as it was.
        time.sleep(1)


def check(schedules: Sequence[str], retention: Mapping[str, int]) -> None:
    """Stop where something makes no sense.

    :raises Refused: with what it is.
    """
    wrong = [f"{text!r} is not a period" for text in schedules if not REPEAT.match(text)]
    wrong += [f"{unit!r} is not a unit of time" for unit in retention if unit not in UNITS or len(unit) != 1]
    wrong += [f"{count} snapshots cannot be kept" for count in retention.values() if count < 1]
    if wrong:
        raise Refused("; ".join(wrong), "write periods such as 1h or 1d, and what is kept such as {d: 7}")
    if schedules and not retention:
        raise Refused(
            "snapshots that are all kept fill the cluster", "say how many of each period are kept, such as {d: 7}"
        )


def plan(
    found: Mapping[str, Any], filesystem: str, path: str, schedules: Sequence[str], retention: Mapping[str, int]
) -> list[Step]:
    """What brings schedules and what is kept into their state; without schedules nothing is left."""
    base = ("fs", "snap-schedule")
    of = ("--fs", filesystem)
    steps = [
        Step(f"take a snapshot of {path} every {text}", (*base, "add", path, text, *of))
        for text in schedules
        if text not in found["schedules"]
    ]
    for unit, count in sorted(found["retention"].items()):
        if schedules and retention.get(unit) != count:
            steps.append(
                Step(f"keep no {count}{unit} of {path}", (*base, "retention", "remove", path, unit, str(count), *of))
            )
    for unit, count in sorted(retention.items()):
        if schedules and found["retention"].get(unit) != count:
            steps.append(
                Step(f"keep {count}{unit} of {path}", (*base, "retention", "add", path, unit, str(count), *of))
            )
    steps += [
        Step(f"take no snapshot of {path} every {text}", (*base, "remove", path, text, *of))
        for text in found["schedules"]
        if text not in schedules
    ]
    return steps
