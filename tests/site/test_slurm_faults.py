# SPDX-License-Identifier: GPL-3.0-or-later
"""A thousand faults of GPUs on three nodes of Slurm under a load of jobs, with daemons killed in between: no job on a
well GPU is lost, and none is given a GPU that is fenced.

A short form with one node is in test_slurm_fence.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.site.plays import lab, services, ssh
from tests.site.slurm_faults import Faults
from tests.site.test_slurm_fence import CONTROLLER, Site

# At nine faults a minute.
pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]

# The lab's second node has Debian 12, whose Slurm does not talk to that of 13.
MORE = ("gpu3", "gpu4")
NODES = ("gpu1", *MORE)
# GPUOPS_FAULTS is for who cannot wait.
FAULTS = int(os.environ.get("GPUOPS_FAULTS", "1000"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab("up", *(word for node in MORE for word in ("--machine", f"{node}:trixie:a100-sxm4-40gb-x2")))
    # Faults on all nodes at once are what the breaker is there to doubt.
    found = Site(tmp_path_factory.mktemp("faults"), nodes=NODES, policy={"breaker_share": 1.0})
    found.converge()
    yield found
    if not os.environ.get("GPUOPS_KEEP_LAB"):
        lab("down", *(word for node in MORE for word in ("--machine", node)))


def test_no_job_is_lost_and_none_gets_a_fenced_gpu(site: Site) -> None:
    faults = Faults(CONTROLLER, NODES)
    faults.begin()
    try:
        faults.many(FAULTS, kill_every=3)
    finally:
        outcome = faults.end()
        killed = {unit: len(at) for unit, at in faults.killed.items()}
        print(f"{len(faults.fences)} faults, {outcome}; killed {killed}; drained by Slurm {len(faults.resumed)} times")
    assert (outcome.on_fenced, outcome.lost) == ([], [])
    assert len(faults.fences) == FAULTS
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
