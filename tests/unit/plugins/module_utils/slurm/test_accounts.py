# SPDX-License-Identifier: GPL-3.0-or-later
"""What sacctmgr tells of QOS, accounts and users, and what it is asked to change."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import accounts, wanted

# Captured from Debian 13's Slurm 24.11.5. Debian 12's 22.05.8 prints the same, without gres/gpumem and gres/gpuutil.
CAPTURED = {
    "cluster": "slurm\n",
    "tres": "cpu|\nmem|\nenergy|\nnode|\nbilling|\nfs|disk\nvmem|\npages|\ngres|gpu\ngres|gpumem\ngres|gpuutil\n",
    "qos": """\
normal|0||cluster|00:00:00||1.000000|||||||||||||||||Normal QOS default
q1|5|normal,q2|requeue|00:02:00|DenyOnLimit,OverPartQOS|0.500000||cpu=2048||||||cpu=8,gres/gpu=1,mem=4G|||||||\
1-00:00:00|gres/gpu=1|some text, two
q2|0||cluster|00:00:00||1.000000|||||||||||||||||q2
""",
    "account": "phy|sci|phy\nroot|root|default root account\nsci|sci|all of it`s\n",
    "association": """\
root||||1|normal||||||||||||
root|root|||1|||||||||||||
sci|||root|1|||||||||||||
sci|vv|||1|||||||||||||
phy|||sci|30|normal,q1|q1|gres/gpu=2,mem=4G|gres/gpu=100|4|5|2-00:00:00|cpu=4|cpu=3|cpu=999|3|6|04:00:00
phy|uu|||1|||||||||||||
phy|vv|||parent|||||||||||1||
""",
    "user": "root|root|Administrator\nuu|phy|None\nvv|sci|Operator\n",
}


def answers(status: int = 0, **texts: str) -> Any:
    """A sacctmgr that says these things; what it is asked stands behind `show`."""

    def run(argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        return status, texts.get(argv[argv.index("show") + 1], ""), "cannot connect" if status else ""

    return run


def steps(current: accounts.Accounting, busy: tuple[str, ...] = (), **rows: Any) -> list[str]:
    goal, problems = wanted.read(rows.get("qos", ()), rows.get("accounts", ()), rows.get("users", ()))
    assert problems == []
    made, problems = accounts.plan(current, goal, "slurm", busy)
    assert problems == []
    return [" ".join(step.argv[3:]) for step in made]


def codes(current: accounts.Accounting, busy: tuple[str, ...] = (), **rows: Any) -> list[str]:
    goal, _problems = wanted.read(rows.get("qos", ()), rows.get("accounts", ()), rows.get("users", ()))
    return [problem.code for problem in accounts.plan(current, goal, "slurm", busy)[1]]


def something() -> accounts.Accounting:
    return accounts.Accounting(
        known=True,
        resources={"cpu", "mem", "gres/gpu"},
        qos={"normal": {"Priority": "0", "MaxTRESPerUser": "cpu=8,gres/gpu=4", "MaxJobsPerUser": "3"}},
        accounts={"root": {"parent": ""}, "physics": {"parent": "root", "Fairshare": "1", "GrpJobs": "9"}},
        texts={"physics": {"Description": "all of physics", "Organization": "physics"}},
        users={"alice": {"physics": {"Fairshare": "1", "MaxJobs": "2"}}},
        held={"alice": {"physics"}},
        default_accounts={"alice": "physics"},
        admin_levels={"alice": "None"},
    )


def test_nothing_is_done_to_what_is_as_it_is_listed_or_not_listed() -> None:
    assert (
        steps(
            something(),
            qos=[{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=4,cpu=8"}}],
            accounts=[{"name": "physics", "parent": "root", "description": "All of Physics"}],
            users=[{"name": "alice", "accounts": ["physics"], "default_account": "physics", "admin_level": "None"}],
        )
        == []
    )


def test_what_is_new_is_added_in_an_order_in_which_it_can_be() -> None:
    assert steps(
        something(),
        qos=[
            {"name": "high", "limits": {"Preempt": ["low"], "Priority": 5, "MaxWall": "none"}},
            {"name": "low", "description": "Whenever nobody else wants it"},
        ],
        accounts=[{"name": "optics", "parent": "science", "limits": {"Fairshare": 3}}, {"name": "science"}],
        users=[{"name": "bob", "accounts": ["optics", "physics"], "default_account": "physics"}],
    ) == [
        "add qos name=high Priority=5",
        "add qos name=low Description=Whenever nobody else wants it",
        "modify qos where name=high set Preempt=low",
        "add account name=science cluster=slurm parent=root",
        "add account name=optics cluster=slurm parent=science Fairshare=3",
        "add user name=bob account=optics cluster=slurm",
        "add user name=bob account=physics cluster=slurm",
        "modify user where name=bob cluster=slurm set DefaultAccount=physics",
    ]


def test_only_what_an_entry_names_is_changed() -> None:
    assert steps(
        something(),
        qos=[{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=2"}}],
        accounts=[{"name": "physics", "organization": "F1", "limits": {"GrpJobs": "none", "Fairshare": "parent"}}],
        users=[{"name": "alice", "accounts": ["physics"], "admin_level": "Operator", "limits": {"MaxJobs": 5}}],
    ) == [
        "modify qos where name=normal set MaxTRESPerUser=cpu=-1,gres/gpu=2",
        "modify account where name=physics cluster=slurm set GrpJobs=-1 Fairshare=parent",
        "modify account where name=physics set Organization=F1",
        "modify user where name=alice account=physics cluster=slurm set MaxJobs=5",
        "modify user where name=alice set AdminLevel=Operator",
    ]


def test_an_account_goes_below_another_only_if_the_list_says_so() -> None:
    assert steps(something(), accounts=[{"name": "science"}, {"name": "physics"}]) == [
        "add account name=science cluster=slurm parent=root"
    ]
    assert steps(something(), accounts=[{"name": "science"}, {"name": "physics", "parent": "science"}])[1:] == [
        "modify account where name=physics cluster=slurm set parent=science"
    ]


def test_the_account_root_is_changed_and_never_added() -> None:
    assert steps(accounts.Accounting(), accounts=[{"name": "root", "limits": {"MaxJobs": 5}}]) == [
        "modify account where name=root cluster=slurm set MaxJobs=5"
    ]


def test_a_user_is_removed_only_if_absent_is_asked_for_and_no_job_is_there() -> None:
    absent = [{"name": "alice", "state": "absent"}, {"name": "nobody", "state": "absent"}]
    assert steps(something(), users=absent) == ["delete user where name=alice cluster=slurm account=physics"]
    assert codes(something(), busy=("alice", "nobody"), users=absent) == ["user_has_jobs"]
    assert steps(something(), users=[]) == []


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ({"users": [{"name": "bob", "accounts": ["phyiscs"]}]}, "no_account"),
        ({"accounts": [{"name": "optics", "parent": "phyiscs"}]}, "no_account"),
        ({"accounts": [{"name": "physics", "limits": {"QOS": ["normal", "hihg"]}}]}, "no_qos"),
        ({"users": [{"name": "alice", "accounts": ["physics"], "limits": {"DefaultQOS": "hihg"}}]}, "no_qos"),
        ({"qos": [{"name": "high", "limits": {"Preempt": ["lwo"]}}]}, "no_qos"),
        ({"qos": [{"name": "high", "limits": {"MaxTRESPerUser": "gres/gpus=1"}}]}, "no_resource"),
    ],
)
def test_names_that_nobody_knows_are_refused(rows: dict[str, Any], code: str) -> None:
    assert codes(something(), **rows) == [code]


def test_the_diff_has_what_changes_before_and_after() -> None:
    goal, _problems = wanted.read(
        [{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=2", "MaxWall": "1-0"}}],
        [],
        [{"name": "bob", "accounts": ["physics"]}, {"name": "alice", "state": "absent"}],
    )
    made = accounts.plan(something(), goal, "slurm", ())[0]
    assert accounts.diff(made) == {
        "before": "QOS normal MaxTRESPerUser=cpu=8,gres/gpu=4 MaxWall=none\n"
        "user alice in physics Fairshare=1 MaxJobs=2\n",
        "after": "QOS normal MaxTRESPerUser=gres/gpu=2 MaxWall=1-00:00:00\nuser bob in physics\n",
    }
    assert [step.does for step in made] == [
        "change the QOS normal: MaxTRESPerUser=gres/gpu=2 MaxWall=1-00:00:00",
        "add the user bob in physics",
        "remove the user alice in physics",
    ]


def test_a_command_that_fails_is_told_with_what_it_said_and_those_after_it_are_not_run() -> None:
    goal, _problems = wanted.read([{"name": "high"}, {"name": "low"}], [], [])
    ran = []

    def run(argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        ran.append(argv)
        return 1, " Nothing new added.\n", ""

    with pytest.raises(Refused) as refused:
        accounts.apply(run, accounts.plan(something(), goal, "slurm", ())[0])
    assert refused.value.problem.evidence == "Nothing new added."
    assert "did not add the QOS high" in refused.value.problem.cause
    assert len(ran) == 1


def test_what_sacctmgr_prints_is_what_a_list_of_the_same_would_say() -> None:
    current = accounts.read(answers(**CAPTURED), "slurm")
    assert current.known
    assert {"cpu", "fs/disk", "gres/gpu"} <= current.resources
    same: dict[str, Any] = {
        "qos": [
            {
                "name": "q1",
                "description": "Some text, two",
                "limits": {
                    "Priority": 5,
                    "Preempt": ["q2", "normal"],
                    "PreemptMode": "REQUEUE",
                    "GraceTime": "00:02:00",
                    "Flags": ["OverPartQOS", "DenyOnLimit"],
                    "UsageFactor": 0.5,
                    "GrpTRESMins": "cpu=2K",
                    "MaxTRESPerUser": "gres/gpu=1,cpu=8,mem=4096",
                    "MaxWall": "24:00:00",
                    "MinTRESPerJob": "gres/gpu=1",
                    "GrpJobs": "none",
                },
            },
            {
                "name": "normal",
                "limits": {"Priority": 0, "PreemptMode": "none", "GraceTime": "none", "UsageFactor": 1, "Preempt": []},
            },
        ],
        "accounts": [
            {
                "name": "phy",
                "parent": "sci",
                "organization": "sci",
                "limits": {
                    "Fairshare": 30,
                    "QOS": ["q1", "normal"],
                    "DefaultQOS": "q1",
                    "GrpTRES": "mem=4G,gres/gpu=2",
                    "GrpTRESMins": "gres/gpu=100",
                    "GrpJobs": 4,
                    "GrpSubmitJobs": 5,
                    "GrpWall": "2-0",
                    "MaxTRES": "cpu=4",
                    "MaxTRESPerNode": "cpu=3",
                    "MaxTRESMins": "cpu=999",
                    "MaxJobs": 3,
                    "MaxSubmitJobs": 6,
                    "MaxWall": "04:00:00",
                },
            }
        ],
        "users": [
            {"name": "uu", "accounts": ["phy"], "default_account": "phy", "limits": {"MaxJobs": "none"}},
            {"name": "vv", "accounts": ["phy"], "admin_level": "Operator", "limits": {"Fairshare": "parent"}},
            {"name": "root", "accounts": ["root"], "admin_level": "Administrator"},
        ],
    }
    assert steps(current, **same) == []


def test_the_default_account_of_a_user_goes_last() -> None:
    # Slurm 22.05 refuses it before the others.
    current = accounts.read(answers(**CAPTURED), "slurm")
    assert steps(current, users=[{"name": "vv", "state": "absent"}]) == [
        "delete user where name=vv cluster=slurm account=phy",
        "delete user where name=vv cluster=slurm account=sci",
    ]


def test_an_association_for_one_partition_and_a_bar_in_a_description_lead_nobody_astray() -> None:
    odd = {
        **CAPTURED,
        "association": CAPTURED["association"] + "phy|ww|all|||||||||||||||\n",
        "account": "phy|sci|one|two|three\nnonsense\n",
    }
    current = accounts.read(answers(**odd), "slurm")
    assert current.texts == {"phy": {"Organization": "sci", "Description": "one|two|three"}}
    assert steps(current, users=[{"name": "ww", "accounts": ["phy"]}]) == ["add user name=ww account=phy cluster=slurm"]
    assert steps(current, users=[{"name": "ww", "state": "absent"}]) == [
        "delete user where name=ww cluster=slurm account=phy"
    ]


def test_slurmdbd_that_does_not_answer_is_a_problem() -> None:
    with pytest.raises(Refused) as refused:
        accounts.read(answers(1), "slurm")
    assert (refused.value.problem.code, refused.value.problem.evidence) == ("no_answer", "cannot connect")
