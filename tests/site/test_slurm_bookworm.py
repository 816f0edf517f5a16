# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm.yml on Debian 12, whose Slurm is of another release (22.05): from bare machines to jobs with GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.plays import lab, run_playbook, services, ssh, until
from tests.site.test_slurm import OPEN_DEVICES, Cluster
from tests.site.test_slurm import job as output_of_job
from tests.site.test_slurm_ssh import REFUSED, USER, as_user, job, make_users

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODE, CONTROLLER = "node12", "head12"
SCENARIOS = {NODE: "a100-sxm4-40gb-x2", CONTROLLER: "no-gpu"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab("up", *(word for name, scenario in SCENARIOS.items() for word in ("--machine", f"{name}:bookworm:{scenario}")))
    play = run_playbook("site.yml", limit=",".join(SCENARIOS), options="--tags driver")
    assert play.rc == 0, play.tail()
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), NODE, CONTROLLER)
    make_users(*SCENARIOS)
    cluster.converge()
    yield cluster
    lab("down", *(word for name in SCENARIOS for word in ("--machine", name)))


def told_by(command: str) -> str:
    return ssh(CONTROLLER, command).strip()


def test_a_job_has_the_gpu_that_it_asked_for_and_is_refused_the_other(cluster: Cluster) -> None:
    assert output_of_job("nvidia-smi -L", "--gres=gpu:1", on=CONTROLLER).count("GPU ") == 1
    assert output_of_job(OPEN_DEVICES, "--gres=gpu:1", on=CONTROLLER).split("\n")[:2] == ["0 6", "1 1"]
    assert output_of_job(OPEN_DEVICES, on=CONTROLLER).split("\n")[:2] == ["0 1", "1 1"]


def test_a_job_that_takes_more_memory_than_it_has_is_killed(cluster: Cluster) -> None:
    assert "oom" in output_of_job("python3 -c 'bytearray(300 << 20)'", "--mem=100", on=CONTROLLER).lower()


def test_an_array_comes_to_its_end_and_accounting_knows_its_gpus(cluster: Cluster) -> None:
    number = told_by("sbatch --parsable --array=0-3 --gres=gpu:1 --output=/dev/null --chdir=/ --wrap 'sleep 1'")
    query = f"sacct -X -n -P -j {number} -o State,AllocTRES"
    until(lambda: told_by(query).count("COMPLETED") == 4, 120, lambda: told_by(query))
    assert told_by(query).count("gres/gpu=1") == 4


def test_a_job_that_is_requeued_runs_again(cluster: Cluster) -> None:
    number = told_by("sbatch --parsable --requeue --gres=gpu:1 --output=/dev/null --chdir=/ --wrap 'sleep 900'")
    state = f"squeue -h -j {number} -o %T"
    until(lambda: told_by(state) == "RUNNING", 60, lambda: told_by(f"scontrol show job {number}"))
    told_by(f"scontrol requeue {number}")
    # Slurm starts it again half a minute later, unless it is told to have it begin now.
    until(lambda: told_by(state) == "PENDING", 60, lambda: told_by(f"scontrol show job {number}"))
    told_by(f"scontrol update jobid={number} starttime=now")
    until(lambda: told_by(state) == "RUNNING", 180, lambda: told_by(f"scontrol show job {number}"))
    assert "Restarts=1" in told_by(f"scontrol show job {number}")
    told_by(f"scancel {number}")


def test_ssh_needs_a_job_there_and_is_held_to_it(cluster: Cluster) -> None:
    assert REFUSED in as_user(USER, node=NODE).stderr
    with job("--gres=gpu:1", controller=CONTROLLER) as number:
        assert f"/job_{number}/" in as_user(USER, "cat /proc/self/cgroup", node=NODE).stdout
        assert as_user(USER, OPEN_DEVICES, node=NODE).stdout.split("\n")[:2] == ["0 6", "1 1"]
    assert as_user("root", node=NODE).stdout.strip() == "root"


def test_a_second_run_changes_nothing_and_restarts_no_daemon(cluster: Cluster) -> None:
    before = {machine: services(machine) for machine in SCENARIOS}
    assert cluster.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in SCENARIOS} == before
