# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a home, and what a client mounts."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import users as ceph_users
from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("cephfs_homes"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("cephfs_homes", case)


PASSWD = ["alice:x:2001:2100:Alice:/:/bin/sh", "bob:x:2002:2002::/:/bin/sh", "root:x:0:0::/root:/bin/sh"]


def test_users_are_listed_or_members_of_groups():
    found, problems = ceph_users.homes(
        [{"name": "alice", "size": "1T"}], PASSWD, ["staff:x:9:alice,bob", "empty:x:8:"], "50G"
    )
    assert problems == []
    assert [(home["name"], home["uid"], home["gid"], home["size"]) for home in found] == [
        ("alice", 2001, 2100, "1T"),
        ("bob", 2002, 2002, "50G"),
    ]


def test_a_size_of_nothing_is_no_quota_and_not_the_size_of_others():
    for size in (0, "0"):
        (home,), _problems = ceph_users.homes([{"name": "alice", "size": size}], PASSWD, [], "50G")
        assert home["size"] == size


def test_numbers_may_be_listed_for_who_is_unknown_and_must_agree_otherwise():
    assert ceph_users.homes([{"name": "new", "uid": 7, "gid": 8}], PASSWD, [], "1G")[0][0]["uid"] == 7
    _homes, problems = ceph_users.homes([{"name": "alice", "uid": 9}, {"name": "ghost"}], PASSWD, [], "1G")
    assert "listed with uid 9, and the host knows it by 2001" in problems[0].cause
    assert "ghost is unknown" in problems[1].cause
    assert "getent passwd ghost" in problems[1].remedy


def test_members_of_a_directory_group_who_cannot_have_a_home_keep_nobody_from_one():
    groups = ["physics:*:2000:alice,john doe,CORP\\jane,JDoe"]
    passwd = ["alice:x:3001:2000::/home/alice:/bin/sh", "jdoe:x:3002:2000::/home/jdoe:/bin/sh"]
    assert ceph_users.members(groups) == ["alice", "JDoe"]
    rows, problems = ceph_users.homes([], passwd, groups, "50G")
    assert problems == []
    assert [(row["name"], row["uid"]) for row in rows] == [("alice", 3001), ("jdoe", 3002)]
    assert [remark.partition(" of a group")[0] for remark in ceph_users.left_out(groups)] == [
        "'john doe'",
        r"'CORP\\jane'",
    ]


def test_who_has_left_need_not_be_known():
    (home,), problems = ceph_users.homes([{"name": "gone", "state": "archived"}], PASSWD, [], "1G")
    assert problems == []
    assert (home["state"], "uid" in home) == ("archived", False)
