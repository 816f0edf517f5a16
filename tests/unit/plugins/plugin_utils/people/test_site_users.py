# SPDX-License-Identifier: GPL-3.0-or-later
"""The one list of a site's users: numbers that are never given twice, what is refused, and what each role gets."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.site_users import site_users
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import ledger

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJHh6bJXyGZTBoXfLhbW0fY1rNnPpkFvEoNgTrKZ1oRY alice@laptop"
ALICE = {"name": "alice", "groups": ["physics"], "ssh_keys": [KEY], "home_size": "200G", "limits": {"MaxJobs": 4}}
PHYSICS = {"name": "physics", "limits": {"GrpTRES": "gres/gpu=2"}}


def lists(
    directory: Path, users: list[Any], groups: list[Any] | None = None, today: str = "2027-01-10"
) -> dict[str, Any]:
    return site_users(users, groups or [], str(directory), today)


def keep(directory: Path, found: dict[str, Any]) -> None:
    """What the role does with the numbers."""
    users = {row["name"]: row["uid"] for row in found["accounts"]}
    ledger.add(directory, users, {row["name"]: row["gid"] for row in found["groups"]})


def causes(directory: Path, users: list[Any], groups: list[Any] | None = None) -> list[str]:
    found = lists(directory, users, groups)
    assert not (found["problems"] and (found["accounts"] or found["homes"])), "half of a wrong list is used"
    return [f"{row['cause']}. {row['remedy']}" for row in found["problems"]]


def test_one_list_says_what_each_role_gets(tmp_path: Path) -> None:
    bob = {"name": "bob", "state": "closed"}
    carol = {"name": "carol", "state": "removed", "confirm": "carol"}
    found = lists(tmp_path, [ALICE, bob, carol], [PHYSICS])
    assert found["problems"] == []
    assert found["groups"] == [{"name": "physics", "gid": 10001}]
    assert [(row["name"], row["uid"], row["state"]) for row in found["accounts"]] == [
        ("alice", 10002, "present"),
        ("bob", 10003, "closed"),
        ("carol", 10004, "removed"),
    ]
    assert found["homes"] == [
        {"name": "alice", "uid": 10002, "gid": 10002, "state": "present", "size": "200G"},
        {"name": "bob", "uid": 10003, "gid": 10003, "state": "archived"},
        {"name": "carol", "uid": 10004, "gid": 10004, "state": "absent", "confirm": "carol"},
    ]
    alice = {"name": "alice", "state": "present", "accounts": ["physics"], "limits": {"MaxJobs": 4}}
    assert found["slurm_users"][0] == alice
    assert [row["state"] for row in found["slurm_users"]] == ["present", "archived", "absent"]
    assert found["slurm_accounts"] == [PHYSICS]
    assert found["registry_users"] == [{"name": "alice"}]


def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    keep(tmp_path, lists(tmp_path, [{"name": "alice"}, {"name": "bob"}]))
    # alice is gone from the list, and somebody came before bob.
    found = lists(tmp_path, [{"name": "carol"}, {"name": "bob"}])
    assert {row["name"]: row["uid"] for row in found["accounts"]} == {"carol": 10003, "bob": 10002}
    keep(tmp_path, found)
    assert lists(tmp_path, [{"name": "alice"}])["accounts"][0]["uid"] == 10001
    assert json.loads((tmp_path / ledger.FILE).read_text())["users"] == {"alice": 10001, "bob": 10002, "carol": 10003}


def test_numbers_of_the_list_are_kept_and_left_out(tmp_path: Path) -> None:
    found = lists(
        tmp_path, [{"name": "alice"}, {"name": "bob", "uid": 10001, "gid": 2001}], [{"name": "g", "gid": 10002}]
    )
    assert [(row["uid"], row["gid"], row["group"]) for row in found["accounts"]] == [
        (10003, 10003, "alice"),
        (10001, 2001, "bob"),
    ]


def test_a_gid_of_a_group_makes_it_the_first_group(tmp_path: Path) -> None:
    row = lists(tmp_path, [{"name": "bob", "gid": 3000, "groups": ["staff2"]}], [{"name": "staff2", "gid": 3000}])
    assert (row["accounts"][0]["group"], row["accounts"][0]["groups"]) == ("staff2", [])


@pytest.mark.parametrize("until", ["2027-01-10", date(2027, 1, 10)])
def test_a_user_is_closed_from_the_day_on(tmp_path: Path, until: Any) -> None:
    users = [{"name": "alice", "until": until}]
    before, after = lists(tmp_path, users, today="2027-01-09"), lists(tmp_path, users, today="2027-01-10")
    assert (before["accounts"][0]["state"], before["ended"], before["accounts"][0]["until"]) == (
        "present",
        [],
        "2027-01-10",
    )
    assert (after["accounts"][0]["state"], after["ended"]) == ("closed", ["alice"])
    assert after["homes"][0]["state"] == "archived"
    assert after["registry_users"] == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"name": "Alice"}, "'Alice' as the name of a user"),
        ({"name": "a:b"}, "'a:b' as the name of a user"),
        ({"name": "slurm"}, "the name of an account of the system"),
        ({"name": "alice", "home": "/x"}, "unknown keys: home"),
        ({"name": "alice", "uid": 12}, "has the uid 12"),
        ({"name": "alice", "uid": True}, "has the uid True"),
        ({"name": "alice", "uid": "10001"}, "has the uid '10001'"),
        ({"name": "alice", "uid": 65534}, "has the uid 65534"),
        ({"name": "alice", "full_name": "Alice:0:0"}, "give a name without ':'"),
        ({"name": "alice", "full_name": "a\nroot::0:0"}, "give a name without ':'"),
        ({"name": "alice", "shell": "bash"}, "give a path such as /bin/bash"),
        ({"name": "alice", "mail": "alice"}, "give an address"),
        ({"name": "alice", "home_size": "much"}, "give a size such as 200G"),
        ({"name": "alice", "groups": "physics"}, "groups of alice is not a list"),
        ({"name": "alice", "groups": ["nurses"]}, "the group nurses, which cluster_groups does not have"),
        ({"name": "alice", "ssh_keys": [f'command="sh" {KEY}']}, "key 1 of alice is not a public key"),
        ({"name": "alice", "ssh_keys": [f"{KEY}\n{KEY}"]}, "key 1 of alice is not a public key"),
        ({"name": "alice", "state": "gone"}, "has the state 'gone'"),
        ({"name": "alice", "state": "removed"}, "add `confirm: alice`"),
        ({"name": "alice", "state": "removed", "confirm": "bob"}, "add `confirm: alice`"),
        ({"name": "alice", "until": "June"}, "give a day such as 2027-03-31"),
        ({"name": "alice", "limits": 4}, "the limits of the user alice are not a mapping"),
        ({"name": "physics"}, "physics is a user and a group"),
        ("alice", "'alice' as the name of a user"),
    ],
)
def test_a_wrong_row_is_refused_with_the_remedy(tmp_path: Path, row: Any, said: str) -> None:
    found = causes(tmp_path, [row], [PHYSICS])
    assert any(said in text for text in found), found


def test_names_and_numbers_that_two_have_are_refused(tmp_path: Path) -> None:
    assert "has the user alice twice" in causes(tmp_path, [{"name": "alice"}, {"name": "alice"}])[0]
    twice = [{"name": "alice", "uid": 2001}, {"name": "bob", "uid": 2001}]
    assert "the user bob has the uid 2001, which is that of the user alice" in causes(tmp_path, twice)[0]
    assert "is that of bob" in causes(tmp_path, [{"name": "alice", "gid": 7000}, {"name": "bob", "gid": 7000}])[0]
    groups = [{"name": "a", "gid": 3000}, {"name": "b", "gid": 3000}]
    assert "the groups a and b have the gid 3000" in causes(tmp_path, [], groups)[0]


def test_what_the_ledger_knows_cannot_be_given_otherwise(tmp_path: Path) -> None:
    ledger.add(tmp_path, {"alice": 10001}, {"physics": 10002})
    assert "has the uid 10009, and was given 10001 before" in causes(tmp_path, [{"name": "alice", "uid": 10009}])[0]
    for number, owner in ((10001, "the user alice"), (10002, "the group physics")):
        assert f"which is that of {owner}" in causes(tmp_path, [{"name": "bob", "uid": number}])[0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"users": {"alice": "10001"}}', '{"users": {"a": 10001, "b": 10001}}', '{"first": 9, "last": 1}'],
)
def test_a_torn_ledger_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / ledger.FILE).write_text(text)
    assert "git checkout" in causes(tmp_path, [{"name": "alice"}])[0]
    with pytest.raises(Refused):
        ledger.add(tmp_path, {"alice": 10001}, {})
    assert (tmp_path / ledger.FILE).read_text() == text


def test_the_ledger_gives_no_number_of_another_run(tmp_path: Path) -> None:
    ledger.add(tmp_path, {"alice": 10001}, {})
    with pytest.raises(Refused, match="run it again"):
        ledger.add(tmp_path, {"bob": 10001}, {})
    assert ledger.add(tmp_path, {"alice": 10001}, {})[0] == ledger.add(tmp_path, {"alice": 10001}, {})[1]


def test_a_range_that_is_used_up_is_told(tmp_path: Path) -> None:
    (tmp_path / ledger.FILE).write_text('{"first": 10001, "last": 10001, "users": {"alice": 10001}}')
    assert "raise `last`" in causes(tmp_path, [{"name": "bob"}])[0]


def test_check_mode_writes_no_ledger(tmp_path: Path) -> None:
    before, after = ledger.add(tmp_path, {"alice": 10001}, {}, check=True)
    assert (before, '"alice": 10001' in after, (tmp_path / ledger.FILE).exists()) == ("", True, False)
