# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpuops usage` on the lab's machines: hours of real jobs from a real slurmdbd.

By itself the test makes the cluster; after those of test_slurm.py it takes theirs.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.site.plays import run_playbook, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    found = Cluster(tmp_path_factory.mktemp("usage"))
    found.converge()
    return found


def usage(cluster: Cluster, *by: str) -> dict[str, Any]:
    today = ssh(CONTROLLER, "date +%F").strip()
    words = [word for key in by for word in ("--by", key)]
    found: dict[str, Any] = json.loads(cluster.gpuops("usage", "--since", today, "--format", "json", *words))
    return found


def test_hours_are_those_of_the_jobs(cluster: Cluster) -> None:
    before, begun = usage(cluster)["total"], time.time()
    number = ssh(
        CONTROLLER, "sbatch --parsable --gres=gpu:2 --mem=50 --requeue --output=/dev/null --wrap 'sleep 3600'"
    ).strip()

    def state() -> str:
        return ssh(CONTROLLER, f"squeue -h -j {number} -o %T").strip()

    try:
        until(lambda: state() == "RUNNING", 60, state)
        started = int(ssh(CONTROLLER, f"date +%s --date=$(squeue -h -j {number} -o %S)"))
        time.sleep(20)
        # A job that runs counts until now, and has no end that anybody misses.
        found = usage(cluster, "user", "model")
        me = ssh(CONTROLLER, "id -un").strip()
        (mine,) = [row for row in found["rows"] if (row["user"], row["model"]) == (me, "a100")]
        assert found["problems"] == []
        assert mine["unused_hours"] is None
        grown = found["total"]["gpu_hours"] - before["gpu_hours"]
        assert grown == pytest.approx(2 * (found["end"] - started) / 3600, abs=0.0002)
        assert grown <= 2 * (time.time() - begun) / 3600
        # Each run of one that is queued again counts, and no second in between does.
        ssh(CONTROLLER, f"sudo scontrol requeue {number}")
        until(lambda: state() == "PENDING", 60, state)
    finally:
        ssh(CONTROLLER, f"scancel {number}", check=False)
    rows = ssh(
        CONTROLLER, f"sleep 2; sacct -X -n -P -D -j {number} -o ElapsedRaw,AllocTRES | grep gres/gpu | cut -d'|' -f1"
    )
    lengths = [int(word) for word in rows.split()]
    after = usage(cluster)["total"]
    assert after["jobs"] == before["jobs"] + 1
    assert after["gpu_hours"] - before["gpu_hours"] == pytest.approx(2 * sum(lengths) / 3600, abs=0.0002)
