# SPDX-License-Identifier: GPL-3.0-or-later
"""A thousand faults of GPUs on two nodes of Slurm under a load of jobs, with daemons killed in between: no job on a
well GPU is lost, and none is given a GPU that is fenced.

A short form without the second node is in test_slurm_fence.py.
"""

from __future__ import annotations

import os

import pytest

from tests.site.plays import services, ssh
from tests.site.slurm_faults import Faults
from tests.site.test_slurm_fence import CONTROLLER, Site

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODES = ("gpu1", "gpu2")
FAULTS = int(os.environ.get("GPUOPS_FAULTS", "1000"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(tmp_path_factory.mktemp("faults"), nodes=NODES)
    found.converge()
    return found


def test_no_job_is_lost_and_none_gets_a_fenced_gpu(site: Site) -> None:
    faults = Faults(CONTROLLER, NODES)
    faults.begin()
    try:
        for number in range(FAULTS):
            faults.one(kill=number % 3 == 2)
    finally:
        outcome = faults.end()
    print(f"{len(faults.fences)} faults, {outcome}; killed { ({unit: len(at) for unit, at in faults.killed.items()}) }")
    assert (outcome.on_fenced, outcome.lost) == ([], [])
    assert outcome.jobs > FAULTS / 2


def test_afterwards_every_node_has_all_its_gpus_and_nothing_of_ours_is_left(site: Site) -> None:
    for node in NODES:
        assert (
            ssh(CONTROLLER, f"srun --quiet --nodelist={node} --gres=gpu:2 nvidia-smi -L </dev/null").count("GPU ") == 2
        )
    assert ssh(CONTROLLER, "sudo squeue --all --noheader --user=slurm; scontrol show reservation").strip() == (
        "No reservations in the system"
    )
    assert ssh(CONTROLLER, "sinfo --noheader --Format=StateLong:20").split() == ["idle"]


def test_a_run_afterwards_changes_nothing(site: Site) -> None:
    before = {machine: services(machine) for machine in (*NODES, CONTROLLER)}
    assert site.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in (*NODES, CONTROLLER)} == before
