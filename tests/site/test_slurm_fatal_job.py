# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of the job that has a fatal GPU, where the policy does not leave it alone: real daemons of Slurm.

What is left alone is in test_slurm_fence.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.plays import ssh, until
from tests.site.test_slurm_fence import CONTROLLER, NODE, RECONCILER, Site, fails, is_held, mend, positions, told

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SIGNALLED = "/var/tmp/signalled"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("fatal"))
    yield found
    ssh(CONTROLLER, f"sudo systemctl disable --now {RECONCILER} zookeeper.service", check=False)


@pytest.fixture(autouse=True)
def well_again(site: Site) -> Iterator[None]:
    yield
    ssh(CONTROLLER, "sudo scancel --user=$(id -un)")
    mend()
    until(lambda: not ssh(CONTROLLER, "sudo squeue --all --noheader").strip(), 60, told)


def submit(script: str, *options: str) -> str:
    words = " ".join(("--parsable --gres=gpu:1 --mem=50 --output=/dev/null", *options))
    return ssh(CONTROLLER, f"sbatch {words} <<'SCRIPT'\n#!/bin/bash\n{script}\nSCRIPT").strip()


def shown(job: str, name: str) -> str:
    """A field of a job as scontrol shows it."""
    lines = ssh(CONTROLLER, f"scontrol show job {job}").splitlines()
    return next((line.partition(f"{name}=")[2] for line in lines if f"{name}=" in line), "")


def state(job: str) -> str:
    return shown(job, "JobState").partition(" ")[0]


def runs(job: str, seconds: float = 60) -> None:
    until(lambda: state(job) == "RUNNING", seconds, told)


def test_a_job_that_is_to_be_signalled_can_save_and_end_and_is_told_why(site: Site) -> None:
    site.converge({"fatal_job": "signal"})
    ssh(NODE, f"sudo rm -f {SIGNALLED}")
    saves = submit(f"trap 'echo saved >{SIGNALLED}; exit 0' TERM\nwhile :; do sleep 0.2; done")
    runs(saves)
    position = int(positions(saves))
    other = submit(f"trap 'echo wrong >>{SIGNALLED}; exit' TERM\nwhile :; do sleep 0.2; done")
    runs(other)
    fails(position)
    until(lambda: state(saves) == "COMPLETED", 60, told)
    assert ssh(NODE, f"cat {SIGNALLED}").split() == ["saved"]
    assert "xid_fatal" in shown(saves, "AdminComment")
    is_held(position)
    assert state(other) == "RUNNING"


def test_a_job_that_is_to_be_requeued_runs_on_another_gpu(site: Site) -> None:
    site.converge({"fatal_job": "requeue"})
    moves = submit("sleep 3600", "--requeue")
    runs(moves)
    position = int(positions(moves))
    fails(position)
    is_held(position)
    # Slurm starts a requeued job half a minute later at the earliest.
    runs(moves, 300)
    assert shown(moves, "Restarts").partition(" ")[0] == "1"
    assert positions(moves) == str(1 - position)


def test_a_job_that_cannot_be_requeued_goes_on(site: Site) -> None:
    stays = submit("sleep 3600", "--no-requeue")
    runs(stays)
    position = int(positions(stays))
    fails(position)
    until(lambda: "taken when" in told(), 60, told)
    other = submit("sleep 3600")
    runs(other)
    assert (state(stays), positions(other)) == ("RUNNING", str(1 - position))
    assert shown(stays, "Restarts").partition(" ")[0] == "0"
