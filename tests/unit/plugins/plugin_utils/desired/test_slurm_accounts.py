# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is a user of Slurm, with which account, and what of the lists is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import limits, wanted
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_accounts

CONF = "ClusterName=slurm\nAccountingStorageTRES=gres/gpu\nAccountingStorageType=accounting_storage/slurmdbd\n"
ALWAYS = {"root": ["root"], "slurm": ["root", "gpuops"]}
ENFORCED = CONF + "AccountingStorageEnforce=associations,limits\n"


def plan(
    conf: str = CONF, group: tuple[str, ...] = (), passwd: tuple[str, ...] | None = None, **params: Any
) -> dict[str, Any]:
    """:param passwd: names that the host knows; by default they were not looked up."""
    given = {
        "users": [],
        "accounts": [],
        "qos": [],
        "default_account": "default",
        "homes_users": [],
        "homes_groups": [],
        "homes_accounts": [],
        "made": [],
        **params,
    }
    known = None if passwd is None else [f"{name}:x:2000:2000::/home/{name}:/bin/bash" for name in passwd]
    facts = {"group": list(group), "passwd": known}
    return slurm_accounts.desired(given, facts, {"slurm_conf": conf}).as_dict()


def accounts(told: dict[str, Any]) -> dict[str, list[str]]:
    return {row["name"]: row["accounts"] for row in told["rows"]["users"] if row.get("state") != "absent"}


def listed_accounts(told: dict[str, Any]) -> list[str]:
    """Without that of the jobs that keep bad GPUs out of service."""
    return [row["name"] for row in told["rows"]["accounts"] if row["name"] != "gpuops"]


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
        "slurm": ["root", "gpuops"],
    }
    assert listed_accounts(told) == ["physics", "default"]


def test_members_of_a_directory_group_whom_slurm_cannot_have_are_left_out_and_named() -> None:
    members = ("JDoe", "CORP\\jane", "john doe", "-x", "a" * 80)
    told = plan(homes_groups=["physics"], group=(f"physics:*:2000:bob,{','.join(members)},carol ",))
    assert told["problems"] == []
    assert accounts(told) == {"bob": ["physics"], "carol": ["physics"], **ALWAYS}
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
    assert accounts(told) == {"alice": ["chemistry"], "bob": ["default"], "root": ["root"], "slurm": ["root", "gpuops"]}
    assert [row["name"] for row in told["rows"]["users"] if row.get("state") == "absent"] == ["carol"]


@pytest.mark.parametrize("state", ["archived", "absent"])
def test_whoever_has_no_home_any_more_is_to_be_absent(state: str) -> None:
    told = plan(homes_users=[{"name": "alice", "state": state}])
    assert {"name": "alice", "state": "absent"} in told["rows"]["users"]
    assert listed_accounts(told) == []


def test_root_and_slurm_keep_their_association_whatever_the_list_gives_them() -> None:
    told = plan(users=[{"name": "slurm", "accounts": ["physics"]}], accounts=[{"name": "physics"}])
    assert accounts(told) == {"slurm": ["root", "physics", "gpuops"], "root": ["root"]}


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
    assert first["accounts"] == [
        {"name": "physics", "parent": "science"},
        {"name": "science"},
        {"name": "gpuops", "parent": "root", "limits": {"QOS": ["gpuops"], "DefaultQOS": "gpuops"}},
    ]
    assert first["qos"] == [{"name": "gpuops"}]
    assert {"name": "alice", "accounts": ["physics"]} in first["users"]
    assert "bob" not in [row["name"] for row in first["users"]]
    assert plan(CONF, **lists)["first"] == {}


@pytest.mark.parametrize(("conf", "unenforced"), [(CONF, True), (ENFORCED, False)])
def test_limits_that_slurm_does_not_hold_to_are_known(conf: str, unenforced: bool) -> None:
    qos = [{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=4"}}]
    assert plan(conf, qos=qos)["unenforced"] is unenforced
    assert plan(conf)["unenforced"] is False


@pytest.mark.parametrize("conf", [CONF, ENFORCED, ENFORCED.replace("limits", "limits,qos")])
def test_no_limit_of_the_site_keeps_the_reconciler_from_a_gpu(conf: str) -> None:
    limit = {"MaxWall": "2-00:00:00", "MaxTRESPerUser": "gres/gpu=4", "GrpTRES": "gres/gpu=1", "MaxJobsPerUser": 1}
    told = plan(conf, qos=[{"name": "normal", "limits": limit}], accounts=[{"name": "root", "limits": {"MaxJobs": 0}}])
    assert told["problems"] == []
    assert "gpuops" in accounts(told)["slurm"]
    (account,) = [row for row in told["rows"]["accounts"] if row["name"] == "gpuops"]
    (level,) = [row for row in told["rows"]["qos"] if row["name"] == "gpuops"]
    assert account["limits"] == {"QOS": ["gpuops"], "DefaultQOS": "gpuops"}
    # A limit of a QOS is in the place of that of every account above, so each is there and out of reach.
    goal, wrong = wanted.read(**told["rows"])
    assert wrong == []
    values = goal.qos[-1].values
    assert {key for key in limits.QOS_FIELDS if key.startswith(("Grp", "Max"))} <= set(values)
    assert values["MaxWall"] == "3650-00:00:00"
    assert "gres/gpu=1073741824" in values["MaxTRESPerUser"].split(",")
    assert values["UsageFactor"] == "0"
    assert (values["MinTRESPerJob"], values["Flags"]) == ("", "")
    assert level["name"] == goal.qos[-1].name


def test_the_account_and_the_qos_of_the_holders_are_nobody_elses() -> None:
    for lists in (
        {"qos": [{"name": "gpuops"}]},
        {"accounts": [{"name": "gpuops"}]},
        {"homes_groups": ["gpuops"], "group": ("gpuops:*:2000:alice",)},
    ):
        assert "reserved_name" in codes(plan(**lists))


def test_a_listed_user_without_an_account_is_refused_with_the_name() -> None:
    lists: dict[str, Any] = {
        "users": [{"name": "alice", "accounts": ["default"]}],
        "homes_users": [{"name": "bob", "uid": 2001, "gid": 2001}, {"name": "carol", "state": "archived"}],
    }
    assert codes(plan(**lists)) == []
    assert plan(**lists)["names"] == ["alice", "bob", "root", "slurm"]
    told = plan(passwd=("alice", "root"), **lists)
    assert codes(told) == ["unknown_user"]
    assert "no account of bob" in told["problems"][0]["cause"]
    assert "useradd --create-home bob" in told["problems"][0]["remedy"]
    assert codes(plan(passwd=("alice", "bob"), **lists)) == []


def test_a_member_of_a_group_without_an_account_keeps_nobody_out() -> None:
    told = plan(homes_groups=["physics"], group=("physics:*:2000:alice,gone",), passwd=("alice",))
    assert told["problems"] == []
    assert [one.split()[0] for one in told["remarks"]] == ["gone"]
    assert set(accounts(told)) == {"alice", "root", "slurm"}


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
