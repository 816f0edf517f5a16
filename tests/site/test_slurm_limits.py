# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU that fails, on a cluster without accounting, and on one whose limits no holder could start within; and users
whose accounts come after their associations.

The tests run in order on one lab, by themselves: the cluster is one without accounting at first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.plays import lab, ssh, until
from tests.site.test_slurm import CONTROLLER
from tests.site.test_slurm_fence import (
    HEADS,
    RECONCILER,
    Site,
    fails,
    holders,
    is_held,
    mend,
    positions,
    reserved,
    runs,
    state,
    submit,
    told,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LIMITS = {
    "slurm_common_enforce": ["associations", "limits", "qos"],
    "slurm_accounts_qos": [{"name": "normal", "limits": {"MaxWall": "2-00:00:00", "MaxTRESPerUser": "gres/gpu=2"}}],
    # Those of the account root are limits of everybody.
    "slurm_accounts_accounts": [{"name": "root", "limits": {"MaxWall": "3-00:00:00", "GrpTRES": "gres/gpu=2"}}],
}
NEWCOMER = "newcomer"


@pytest.fixture(scope="module")
def without_accounting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # Nothing of an earlier cluster, which may have had accounting.
    lab("reset", CONTROLLER)
    site = Site(tmp_path_factory.mktemp("plain"), heads=[one for one in HEADS if one != "slurm_databases"])
    site.converge()
    yield site
    ssh(CONTROLLER, f"sudo systemctl disable --now {RECONCILER} zookeeper.service", check=False)


@pytest.fixture(scope="module")
def site(without_accounting: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The same cluster, to which accounting and limits have come."""
    found = Site(tmp_path_factory.mktemp("limits"))
    found.converge(**LIMITS, slurm_accounts_users=[{"name": login()}])
    return found


@pytest.fixture(autouse=True)
def well_again() -> Iterator[None]:
    yield
    ssh(CONTROLLER, "sudo scancel --user=$(id -un)")
    mend()
    until(lambda: not holders() and not reserved(), 60, told)


def login() -> str:
    return ssh(CONTROLLER, "id -un").strip()


def a_free_gpu_is_held() -> None:
    running = submit("healthy")
    runs(running)
    assert positions(running) == "0"
    fails(1)
    is_held(1)
    assert holders() == ["1"]
    # The node is open: what is well there runs and starts.
    assert state(running) == "RUNNING"
    ssh(CONTROLLER, f"scancel {running}")
    runs(submit("next"))


def test_a_cluster_without_accounting_starts_and_counts_the_gpus_of_jobs_that_wait(without_accounting: Site) -> None:
    assert "AccountingStorageType   = (null)" in ssh(CONTROLLER, "scontrol show config")
    first, waiting = (
        submit("first"),
        ssh(CONTROLLER, "sbatch --parsable --gres=gpu:2 --mem=50 --output=/dev/null --wrap 'sleep 3600'").strip(),
    )
    runs(first)
    assert state(waiting) == "PENDING"
    assert "gpu:2" in ssh(CONTROLLER, f"squeue --noheader --jobs={waiting} --Format=tres-per-node:40")


def test_without_accounting_a_gpu_is_held(without_accounting: Site) -> None:
    a_free_gpu_is_held()


def test_a_gpu_is_held_whatever_limits_the_site_has(site: Site) -> None:
    assert "limits" in ssh(CONTROLLER, "scontrol show config | grep AccountingStorageEnforce")
    a_free_gpu_is_held()


def test_a_gpu_in_use_is_held_after_its_job_whatever_limits_the_site_has(site: Site) -> None:
    running = submit("on-the-bad-gpu")
    runs(running)
    fails(0)
    until(lambda: "taken when" in told() and not reserved(), 60, told)
    ssh(CONTROLLER, f"scancel {running}")
    is_held(0)


def test_a_second_run_changes_nothing(site: Site) -> None:
    assert site.converge().changed_tasks == {}


def test_limits_that_come_back_to_the_holders_stop_the_run_or_are_taken_away(site: Site) -> None:
    ssh(CONTROLLER, "sudo sacctmgr --immediate modify qos gpuops set MaxWall=60")
    assert site.converge().changed_tasks
    assert "3650-00:00:00" in ssh(CONTROLLER, "sacctmgr -nP show qos gpuops format=MaxWall")


def test_a_listed_user_without_an_account_is_refused_before_anything_is_changed(site: Site) -> None:
    ssh(CONTROLLER, f"sudo userdel --remove {NEWCOMER}", check=False)
    play = site.run(slurm_accounts_users=[{"name": login()}, {"name": NEWCOMER}])
    assert play.rc != 0
    assert f"no account of {NEWCOMER}" in play.stdout
    assert NEWCOMER not in ssh(CONTROLLER, "sacctmgr -nP show assoc format=user")


def test_an_account_that_comes_after_its_association_is_let_in_by_the_next_run(site: Site) -> None:
    ssh(CONTROLLER, f"sudo sacctmgr --immediate add user {NEWCOMER} account=default")
    ssh(CONTROLLER, f"sudo useradd --create-home {NEWCOMER}")
    assert "(4294967294)" in ssh(CONTROLLER, f"sudo scontrol show assoc_mgr flags=users users={NEWCOMER}")
    refused = ssh(CONTROLLER, f"cd /tmp && sudo runuser -u {NEWCOMER} -- sbatch --wrap true 2>&1", check=False)
    assert "Invalid account" in refused
    site.converge(slurm_accounts_users=[{"name": login()}, {"name": NEWCOMER}])
    ssh(CONTROLLER, f"cd /tmp && sudo runuser -u {NEWCOMER} -- sbatch --output=/dev/null --wrap true")
    ssh(CONTROLLER, f"sudo scancel --user={NEWCOMER}; sudo userdel --remove {NEWCOMER}", check=False)
