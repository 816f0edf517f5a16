# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is a user of Slurm, with which account, and what of the lists is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_accounts

CONF = "ClusterName=slurm\nAccountingStorageTRES=gres/gpu\nAccountingStorageType=accounting_storage/slurmdbd\n"
ENFORCED = CONF + "AccountingStorageEnforce=associations,limits\n"


def plan(conf: str = CONF, group: tuple[str, ...] = (), **params: Any) -> dict[str, Any]:
    given = {
        "users": [],
        "accounts": [],
        "qos": [],
        "default_account": "default",
        "homes_users": [],
        "homes_groups": [],
        **params,
    }
    return slurm_accounts.desired(given, {"group": list(group)}, {"slurm_conf": conf}).as_dict()


def accounts(told: dict[str, Any]) -> dict[str, list[str]]:
    return {row["name"]: row["accounts"] for row in told["rows"]["users"] if row.get("state") != "absent"}


def codes(told: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in told["problems"]]


def test_whoever_has_a_home_has_the_account_of_the_group_or_the_default_one() -> None:
    told = plan(
        homes_users=[{"name": "alice", "size": "50G"}, {"name": "bob"}],
        homes_groups=["Physics"],
        group=("Physics:*:2000:bob,carol",),
    )
    assert told["problems"] == []
    assert accounts(told) == {
        "alice": ["default"],
        "bob": ["physics"],
        "carol": ["physics"],
        "root": ["root"],
        "slurm": ["root"],
    }
    assert [row["name"] for row in told["rows"]["accounts"]] == ["physics", "default"]


def test_members_of_a_directory_group_whom_slurm_cannot_have_are_left_out_and_named() -> None:
    members = ("JDoe", "CORP\\jane", "john doe", "-x", "a" * 80)
    told = plan(homes_groups=["physics"], group=(f"physics:*:2000:bob,{','.join(members)},carol ",))
    assert told["problems"] == []
    assert accounts(told) == {"bob": ["physics"], "carol": ["physics"], "root": ["root"], "slurm": ["root"]}
    assert [remark.partition(" of a group")[0] for remark in told["remarks"]] == [repr(name) for name in members]
    # Whom the operator lists is another matter.
    assert codes(plan(users=[{"name": "JDoe"}])) == ["bad_name"]


def test_an_entry_of_the_list_wins_over_the_home() -> None:
    told = plan(
        homes_users=[{"name": "alice"}, {"name": "bob", "state": "archived"}, {"name": "carol", "state": "absent"}],
        users=[
            {"name": "alice", "accounts": ["chemistry"]},
            {"name": "bob", "state": "present", "accounts": []},
            {"name": "carol", "limits": {"MaxJobs": 1}},
        ],
        accounts=[{"name": "chemistry"}],
    )
    assert told["problems"] == []
    assert accounts(told) == {"alice": ["chemistry"], "bob": ["default"], "root": ["root"], "slurm": ["root"]}
    assert [row["name"] for row in told["rows"]["users"] if row.get("state") == "absent"] == ["carol"]


@pytest.mark.parametrize("state", ["archived", "absent"])
def test_whoever_has_no_home_any_more_is_to_be_absent(state: str) -> None:
    told = plan(homes_users=[{"name": "alice", "state": state}])
    assert {"name": "alice", "state": "absent"} in told["rows"]["users"]
    assert told["rows"]["accounts"] == []


def test_root_and_slurm_keep_their_association_whatever_the_list_gives_them() -> None:
    told = plan(users=[{"name": "slurm", "accounts": ["physics"]}], accounts=[{"name": "physics"}])
    assert accounts(told) == {"slurm": ["root", "physics"], "root": ["root"]}


def test_before_associations_are_enforced_users_get_them_without_limits() -> None:
    lists: dict[str, Any] = {
        "users": [
            {"name": "alice", "accounts": ["physics"], "limits": {"MaxJobs": 1, "QOS": ["long"]}},
            {"name": "bob", "state": "absent"},
        ],
        "accounts": [{"name": "physics", "parent": "science", "limits": {"Fairshare": 3}}, {"name": "science"}],
        "qos": [{"name": "long"}],
    }
    first = plan(ENFORCED, **lists)["first"]
    assert first["accounts"] == [{"name": "physics", "parent": "science"}, {"name": "science"}]
    assert {"name": "alice", "accounts": ["physics"]} in first["users"]
    assert "bob" not in [row["name"] for row in first["users"]]
    assert plan(CONF, **lists)["first"] == {}


@pytest.mark.parametrize(("conf", "unenforced"), [(CONF, True), (ENFORCED, False)])
def test_limits_that_slurm_does_not_hold_to_are_known(conf: str, unenforced: bool) -> None:
    qos = [{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=4"}}]
    assert plan(conf, qos=qos)["unenforced"] is unenforced
    assert plan(conf)["unenforced"] is False


def test_a_cluster_without_accounting_has_no_users_and_refuses_only_lists_of_its_own() -> None:
    conf = "ClusterName=slurm\n"
    told = plan(conf, homes_users=[{"name": "Alice"}])
    assert (told["problems"], told["accounting"]) == ([], False)
    assert codes(plan(conf, qos=[{"name": "normal"}])) == ["no_accounting"]


def test_all_that_is_wrong_with_the_lists_is_told_at_once() -> None:
    told = plan(
        users=[{"name": "alice", "accounts": ["a b"]}],
        accounts=[{"name": "x", "parent": "y"}, {"name": "y", "parent": "x"}, {"name": "z", "description": "it's"}],
        qos=[
            {"name": "high", "limits": {"Preempt": ["high"], "MaxWall": 60, "MaxFun": 1}},
            {"name": "low", "limits": {"MaxTRESPerUser": "gres/gpu:a100=1"}},
        ],
        homes_groups=["nobodies"],
    )
    assert codes(told) == [
        "unknown_group",
        "bad_limit",
        "no_limit",
        "preempts_itself",
        "bad_text",
        "bad_name",
        "circle",
        "no_preemption",
        "no_resource",
    ]


@pytest.mark.parametrize(
    ("users", "code"),
    [
        ([{"name": "Alice"}], "bad_name"),
        ([{"name": "-i"}], "bad_name"),
        ([{"name": "alice"}, {"name": "alice"}], "listed_twice"),
        ([{"name": "alice", "accounts": ["default"], "default_account": "physics"}], "no_account"),
        ([{"name": "alice", "admin_level": "King"}], "bad_level"),
        ([{"name": "root", "state": "absent"}], "needed"),
    ],
)
def test_a_wrong_user_is_refused(users: list[dict[str, Any]], code: str) -> None:
    assert code in codes(plan(users=users))


def test_a_qos_may_preempt_where_slurm_is_told_to() -> None:
    qos = [{"name": "high", "limits": {"Preempt": ["low"]}}, {"name": "low"}]
    assert codes(plan(CONF + "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n", qos=qos)) == []
