# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster whose reconciler needs ZooKeeper is moved over while a GPU is fenced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.plays import ssh, until
from tests.site.test_slurm_fence import (
    CONTROLLER,
    HEADS,
    NODE,
    RECONCILER,
    WITH_ZOOKEEPER,
    Site,
    fails,
    holders,
    is_held,
    mend,
    reserved,
    told,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("moved"), heads=WITH_ZOOKEEPER)
    found.converge()
    yield found
    ssh(CONTROLLER, f"sudo systemctl disable --now {RECONCILER} zookeeper.service", check=False)


def test_a_fenced_gpu_stays_fenced_and_comes_back_without_zookeeper(site: Site) -> None:
    fails(1)
    is_held(1)
    (holder,) = ssh(CONTROLLER, "sudo squeue --all --noheader --user=slurm --states=RUNNING --Format=JobID:12").split()
    site.has(HEADS)
    site.converge()
    ssh(CONTROLLER, "sudo systemctl disable --now zookeeper.service")
    # The same job has held it all the while.
    assert ssh(CONTROLLER, f"squeue --all --noheader --jobs={holder} --Format=State:20").strip() == "RUNNING"
    assert holders() == ["1"]
    fails(0)
    until(lambda: holders() == ["0", "1"] and not reserved(), 60, told)
    assert "fatal" in ssh(CONTROLLER, f"sudo gpuops-reconciler status | grep {NODE}")
    mend()
    until(lambda: not holders(), 90, told)
    assert site.converge().changed_tasks == {}
