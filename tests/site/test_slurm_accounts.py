# SPDX-License-Identifier: GPL-3.0-or-later
"""Users and limits of Slurm on the lab's machines: real daemons refuse and hold back jobs by the accounting.

The tests of this file run in order, on a cluster that runs already without anything enforced; by themselves they make
it, after those of test_slurm.py they take theirs.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.site.plays import Play, run_playbook, services, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# alice has a home, bob is listed for Slurm alone, carol was added by hand, and mallory by nobody.
UIDS = {"alice": 2101, "bob": 2102, "carol": 2103, "mallory": 2104}
LISTS: dict[str, Any] = {
    "cephfs_homes_users": [{"name": "alice"}],
    "slurm_accounts_users": [{"name": "bob", "accounts": ["physics"], "limits": {"MaxJobs": 1}}],
    "slurm_accounts_accounts": [
        {"name": "science", "description": "All of science"},
        {"name": "physics", "parent": "science", "limits": {"Fairshare": 30, "GrpTRES": "gres/gpu=2,mem=4G"}},
    ],
    "slurm_accounts_qos": [{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=1", "MaxWall": "1-00:00:00"}}],
}
# What a lab that was kept may still have of these tests.
FORGOTTEN = (
    *(f"scancel -u {name}" for name in UIDS),
    "sacctmgr -i delete user name=alice,bob,carol",
    "sacctmgr -i delete account name=byhand,default,physics,science",
    "sacctmgr -i modify qos where name=normal set MaxTRESPerUser=gres/gpu=-1 MaxWall=-1",
)
ENFORCED = {"slurm_common_enforce": ["associations", "limits", "qos"]}


class Site(Cluster):
    """The cluster with lists of users and limits."""

    def run(self, options: str = "", limit: str = "", **variables: Any) -> Play:
        before = dict(self._variables)
        self._variables |= variables
        try:
            return super().run(options, limit)
        finally:
            self._variables = before

    def converge(self, **variables: Any) -> Play:
        play = self.run(**variables)
        assert play.rc == 0, play.tail()
        return play


def sacctmgr(*words: str) -> str:
    return ssh(CONTROLLER, f"sudo sacctmgr -n -P -i {' '.join(words)}").strip()


def associations() -> list[str]:
    """Every association with its limits, and every QOS."""
    fields = "Account,User,ParentName,Fairshare,GrpTRES,MaxTRES,MaxJobs,MaxWall"
    return [
        *sacctmgr("show", "assoc", "WOPLimits", f"format={fields}").splitlines(),
        *sacctmgr("show", "qos", "format=Name,Priority,MaxTRESPerUser,MaxWall").splitlines(),
    ]


def submit(user: str, *options: str) -> str:
    """The number of a job that does nothing for a while, or what sbatch says."""
    words = " ".join(("--parsable", "--chdir=/tmp", "--output=/dev/null", *options))
    return ssh(CONTROLLER, f"cd /tmp; sudo -u {user} sbatch {words} --wrap 'sleep 600' 2>&1 || true").strip()


def job(number: str) -> tuple[str, str]:
    """State of a job, and why it waits."""
    state, _, reason = ssh(CONTROLLER, f"squeue -h -j {number} -o '%T %r'").strip().partition(" ")
    return state, reason


def comes_to(number: str, *wanted: str) -> bool:
    return bool(until(lambda: job(number) == wanted, 90, lambda: job(number)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A cluster that runs without lists, with an account that somebody made by hand."""
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    site = Site(tmp_path_factory.mktemp("accounts"))
    site.converge()
    for machine in MACHINES:
        ssh(machine, "; ".join(f"id {name} >/dev/null || sudo useradd -u {uid} {name}" for name, uid in UIDS.items()))
    ssh(CONTROLLER, "; ".join(f"sudo {command}" for command in FORGOTTEN), check=False)
    sacctmgr("add", "account", "byhand", "Fairshare=3", "GrpTRES=cpu=5")
    sacctmgr("add", "user", "carol", "account=byhand", "MaxJobs=7")
    return site


@pytest.fixture(scope="module")
def announced(running: Site) -> Play:
    before = associations()
    play = running.run("--check --diff", **LISTS, **ENFORCED)
    assert associations() == before, "check mode changed the accounting"
    return play


@pytest.fixture(scope="module")
def site(running: Site, announced: Play) -> Site:
    running.converge(**LISTS, **ENFORCED)
    return running


def test_mistakes_are_told_all_at_once_before_anything_is_changed(running: Site) -> None:
    before = associations()
    play = running.run(
        slurm_accounts_qos=[{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpus=4", "MaxWall": 86400}}],
        slurm_accounts_users=[{"name": "Alice"}],
        slurm_common_options={"MinJobAge": "299"},
    )
    assert play.rc != 0
    told = "\n".join(message for messages in play.failures.values() for message in messages)
    assert "'Alice' as the name of a user" in told
    play = running.run(
        slurm_accounts_qos=[{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpus=4", "MaxWall": 86400}}],
        slurm_common_options={"MinJobAge": "299"},
    )
    told = "\n".join(message for messages in play.failures.values() for message in messages)
    assert "MaxWall: 86400" in told
    assert "gres/gpus" in told
    assert play.changed_tasks == {}
    assert associations() == before


def test_check_mode_shows_each_association_and_qos_before_and_after(announced: Play) -> None:
    assert announced.rc == 0, announced.tail()
    assert "-QOS normal MaxTRESPerUser=none MaxWall=none" in announced.stdout
    assert "+QOS normal MaxTRESPerUser=gres/gpu=1 MaxWall=1-00:00:00" in announced.stdout
    assert "+user alice in default" in announced.stdout
    assert "+user bob in physics MaxJobs=1" in announced.stdout


def test_a_second_run_changes_nothing_and_restarts_no_daemon(site: Site) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    assert site.converge(**LISTS, **ENFORCED).changed_tasks == {}
    assert {machine: services(machine) for machine in MACHINES} == before


def test_what_somebody_made_by_hand_stays(site: Site) -> None:
    assert "byhand||root|3|cpu=5||||".rstrip("|") in "\n".join(associations())
    assert "byhand|carol||1|||7|" in associations()
    number = submit("carol")
    assert number.isdigit()
    ssh(CONTROLLER, f"sudo scancel {number}")


def test_a_user_over_the_limit_of_gpus_waits_until_it_is_raised(site: Site) -> None:
    first = submit("alice", "--gres=gpu:1")
    comes_to(first, "RUNNING", "None")
    second = submit("alice", "--gres=gpu:1")
    comes_to(second, "PENDING", "QOSMaxGRESPerUser")
    raised = [{"name": "normal", "limits": {"MaxTRESPerUser": "gres/gpu=2", "MaxWall": "none"}}]
    assert list(site.converge(**{**LISTS, "slurm_accounts_qos": raised}, **ENFORCED).changed_tasks) == [CONTROLLER]
    comes_to(second, "RUNNING", "None")
    assert "normal|0|gres/gpu=2|" in associations()
    ssh(CONTROLLER, f"sudo scancel {first} {second}")


def test_a_user_whom_nobody_listed_is_refused(site: Site) -> None:
    assert "Invalid account" in submit("mallory")
    assert submit("bob").isdigit()


def test_root_and_the_user_slurm_can_submit_jobs(site: Site) -> None:
    for user in ("root", "slurm"):
        assert submit(user).isdigit()
    ssh(CONTROLLER, "sudo scancel -u root; sudo scancel -u slurm")


def test_a_user_who_leaves_is_removed_once_no_job_is_left(site: Site) -> None:
    # bob has the job of the test before.
    lists = {**LISTS, "slurm_accounts_users": [{"name": "bob", "state": "absent"}]}
    play = site.run(**lists, **ENFORCED)
    assert play.rc != 0
    assert "bob is to be absent, and has running or waiting jobs" in play.failures[CONTROLLER][0]
    ssh(CONTROLLER, "sudo scancel -u bob")
    until(lambda: not ssh(CONTROLLER, "squeue -h -u bob").strip(), 60, lambda: "bob's job")
    site.converge(**lists, **ENFORCED)
    assert "Invalid account" in submit("bob")
    assert not [row for row in associations() if "|bob|" in row]
    assert site.converge(**lists, **ENFORCED).changed_tasks == {}
