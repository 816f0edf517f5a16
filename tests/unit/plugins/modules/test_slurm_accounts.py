# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm_accounts changes what its lists name, announces it in check mode, and refuses mistakes at once."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import accounts
from ansible_collections.baremetal.gpu.plugins.modules import slurm_accounts

Result = dict[str, Any]
Ask = Callable[..., Result]


class Slurm:
    """Stands in for sacctmgr and squeue: it has the cluster with users alice and root, and adds users."""

    def __init__(self) -> None:
        self.users = ["root|root", "physics|alice"]
        self.jobs = ""
        self.told: list[str] = []
        self.takes = True
        self.uids = "No users currently cached in Slurm.\n"

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if argv[0] == accounts.SQUEUE:
            return 0, self.jobs, ""
        if argv[1:] == ["show", "assoc_mgr", "flags=users"]:
            return 0, self.uids, ""
        if "show" in argv:
            return 0, self.show(argv[argv.index("show") + 1], argv[-1].count(",")), ""
        self.told.append(" ".join(argv[3:]))
        words = dict(word.split("=", 1) for word in argv if "=" in word)
        if argv[3:5] == ["add", "user"] and self.takes:
            self.users.append(f"{words['account']}|{words['name']}")
        if argv[3:5] == ["delete", "user"]:
            self.users.remove(f"physics|{words['name']}")
        return 0, "", ""

    def show(self, what: str, bars: int) -> str:
        rows = {
            "cluster": ["slurm"],
            "tres": ["cpu|", "gres|gpu"],
            "association": ["root|", "physics|", *self.users],
            "user": [f"{user.partition('|')[2]}|{user.partition('|')[0]}|None" for user in self.users],
            "qos": ["normal"],
        }.get(what, [])
        return "".join(row + "|" * (bars - row.count("|")) + "\n" for row in rows)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(slurm_accounts, "run", made.run)
    monkeypatch.setattr(accounts, "installed", lambda: True)
    return made


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(failed: bool = False, **options: Any) -> Result:
        with patch_module_args({"cluster": "slurm", "wait": 0, **options}), pytest.raises(SystemExit) as ended:
            slurm_accounts.main()
        assert ended.value.code == int(failed)
        told: Result = json.loads(capsys.readouterr().out)
        return told

    return asked


BOB = [{"name": "bob", "accounts": ["physics"]}]


def test_a_user_is_added_once(slurm: Slurm, ask: Ask) -> None:
    told = ask(users=BOB)
    assert (told["changed"], told["plan"]) == (True, ["add the user bob in physics"])
    assert slurm.told == ["add user name=bob account=physics cluster=slurm"]
    told = ask(users=BOB)
    assert (told["changed"], told["plan"], told["diff"]) == (False, [], {"before": "", "after": ""})


def test_check_mode_tells_the_same_and_changes_nothing(slurm: Slurm, ask: Ask) -> None:
    announced = ask(users=BOB, _ansible_check_mode=True)
    assert slurm.told == []
    done = ask(users=BOB)
    assert (announced["plan"], announced["diff"]) == (done["plan"], done["diff"])


def test_check_mode_announces_everything_before_slurm_is_installed(
    slurm: Slurm, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "installed", lambda: False)
    physics = [{"name": "physics", "limits": {"GrpTRES": "gres/gpu=4"}}]
    told = ask(users=BOB, accounts=physics, _ansible_check_mode=True)
    assert told["diff"]["after"] == "account physics parent=root GrpTRES=gres/gpu=4\nuser bob in physics\n"
    assert ask(True, users=BOB, accounts=physics)["problems"][0]["code"] == "no_sacctmgr"


def test_mistakes_are_refused_all_at_once_and_nothing_is_changed(slurm: Slurm, ask: Ask) -> None:
    told = ask(True, users=[*BOB, {"name": "Eve"}], qos=[{"name": "high"}])
    assert [problem["code"] for problem in told["problems"]] == ["bad_name"]
    told = ask(True, users=[*BOB, {"name": "eve", "accounts": ["x"]}], qos=[{"name": "q", "limits": {"MaxWall": 5}}])
    assert [problem["code"] for problem in told["problems"]] == ["bad_limit"]
    told = ask(True, users=[*BOB, {"name": "eve", "accounts": ["x"]}])
    assert [problem["code"] for problem in told["problems"]] == ["no_account"]
    assert told["msg"].endswith("Nothing was changed.")
    assert slurm.told == []


def test_a_user_with_jobs_is_not_removed(slurm: Slurm, ask: Ask) -> None:
    slurm.jobs = "alice\nalice\n"
    absent = [{"name": "alice", "state": "absent"}]
    assert ask(True, users=absent)["problems"][0]["code"] == "user_has_jobs"
    assert slurm.told == []
    slurm.jobs = "carol\n"
    assert ask(users=absent)["changed"] is True
    assert ask(users=absent)["changed"] is False


def test_users_whose_uid_slurmctld_does_not_know_are_named(slurm: Slurm, ask: Ask) -> None:
    """Their accounts came, or were made anew, after slurmctld had read their associations."""
    me, uid = getpass.getuser(), os.getuid()
    others = "UserName=nobody(4294967294) DefAccount=physics\n\nUserName=not-there(4294967294) DefAccount=physics\n"
    head = "Current Association Manager state\n\nUser Records\n\n"
    users = [{"name": name, "accounts": ["physics"]} for name in (me, "nobody", "not-there")]
    for known, expected in ((4294967294, [me, "nobody"]), (uid + 1, [me, "nobody"]), (uid, ["nobody"])):
        slurm.uids = f"{head}UserName={me}({known}) DefAccount=physics DefWckey= AdminLevel=None\n{others}"
        assert ask(users=users)["shut_out"] == sorted(expected)
    # Of others nobody asked.
    assert ask(users=BOB)["shut_out"] == []


def test_a_change_that_slurm_does_not_take_over_is_told(slurm: Slurm, ask: Ask) -> None:
    slurm.takes = False
    assert ask(True, users=BOB)["problems"][0]["code"] == "not_taken"


def test_a_cluster_that_slurmdbd_does_not_know_is_told(slurm: Slurm, ask: Ask) -> None:
    assert ask(True, cluster="other", users=BOB)["problems"][0]["code"] == "no_cluster"


def test_limits_that_have_no_effect_are_warned_of(slurm: Slurm, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))
    qos = [{"name": "normal", "limits": {"Priority": "none"}}]
    ask(qos=qos)
    assert warned == []
    ask(qos=qos, enforced=False)
    assert warned == ["Slurm does not hold to limits: AccountingStorageEnforce has none of limits and safe"]
