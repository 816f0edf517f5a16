# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A home that is removed is kept aside, comes back, and is deleted after its days."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import homes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

SETTINGS = homes.Settings("cephfs", "homes", "0700", "home.", 1.0, 30)
INFO = {"size": 5, "used": 3, "uid": 10001, "gid": 10001, "mode": "0700", "namespace": "x", "path": "/volumes/alice"}


def days_ago(days: float) -> str:
    return f"removed-{int(time.time() - days * homes.DAY_S)}"


def planned(state: str, *snapshots: str, confirm: str = "alice", **more: Any) -> list[str]:
    """What is done to the home of alice."""
    info = {**INFO, "snapshots": list(snapshots)}
    there = homes.There({"homes"}, {"alice": info}, {"alice": None})
    home = homes.Home("alice", state, 5, more.get("uid", 10001), more.get("uid", 10001), confirm)
    return [" ".join(step.words) for step in homes.plan_place(there, home, SETTINGS)]


def test_a_removed_home_is_kept_aside_and_deleted_when_its_days_are_over() -> None:
    (step,) = planned(homes.ABSENT, "daily")
    assert step.startswith("fs subvolume snapshot create cephfs alice removed-")
    assert planned(homes.ABSENT, days_ago(0)) == []
    assert planned(homes.ABSENT, days_ago(29.9)) == []
    assert planned(homes.ABSENT, "daily", days_ago(30.1)) == [
        "fs subvolume snapshot rm cephfs alice daily --group_name homes",
        f"fs subvolume snapshot rm cephfs alice {days_ago(30.1)} --group_name homes",
        "fs subvolume rm cephfs alice --group_name homes",
    ]


def test_only_a_name_that_is_written_twice_is_removed() -> None:
    with pytest.raises(Refused, match="confirm: alice"):
        planned(homes.ABSENT, confirm="")


def test_a_user_who_comes_back_finds_the_home_and_starts_the_days_anew() -> None:
    since = days_ago(29)
    (step,) = planned(homes.PRESENT, since, "daily")
    assert step == f"fs subvolume snapshot rm cephfs alice {since} --group_name homes"


def test_another_user_of_the_name_does_not_get_the_files() -> None:
    with pytest.raises(Refused, match="an earlier alice, who had the number 10001"):
        planned(homes.PRESENT, days_ago(3), uid=10002)


def test_what_is_kept_counts() -> None:
    there = homes.There({"homes"}, {"alice": {**INFO, "snapshots": []}}, {"alice": None})
    assert homes.promised(there, [homes.Home("alice", homes.ABSENT, 0, 0, 0, "alice")]) == {"alice": 5}
