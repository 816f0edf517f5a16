# SPDX-License-Identifier: GPL-3.0-or-later
"""The job that keeps the free GPUs of a node from others while they are under load."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import holding
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import control, maintenance
from tests.unit.plugins.module_utils.accept.test_jobs import NODE

GRES = "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia3\nNodeName=n1 Name=gpu Type=a100 File=/dev/nvidia5\n"


def job(number, positions, partition="main"):
    """In the shape of squeue --json; the figures are made up."""
    return {
        "job_id": number,
        "partition": partition,
        "job_state": ["RUNNING"],
        "user_name": "root",
        "nodes": "n1",
        "gres_detail": [f"gpu:a100:1(IDX:{positions})"],
        "job_resources": {"nodes": "n1", "allocated_nodes": [{"nodename": "n1"}]},
    }


class Cluster:
    left = ""

    def __init__(self, line, *looks, submitted=(0, "7\n", "")):
        self.line, self.looks, self.submitted, self.calls = line, list(looks), submitted, []

    def __call__(self, argv, stdin, timeout):
        self.calls.append(argv)
        if argv[0] == holding.SBATCH:
            return self.submitted
        if "--noheader" in argv:
            return 0, self.left, ""
        if argv[0].endswith("squeue"):
            rows = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            return 0, json.dumps({"jobs": rows}), ""
        return 0, self.line, ""


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(maintenance, "is_set_up", lambda: True)
    monkeypatch.setattr(control, "GRES_CONF", str(tmp_path / "gres.conf"))
    monkeypatch.setattr(holding, "Slurm", lambda run: control.Slurm(run, gres_conf=str(tmp_path / "gres.conf")))
    (tmp_path / "gres.conf").write_text(GRES)


def line(state="IDLE", used="gpu:a100:0(IDX:N/A)", reason=""):
    return NODE.format(state=state, reason=reason).replace("gpu:a100:0(IDX:N/A)", used)


def held(cluster):
    ticks = iter(range(0, 10**6, 10))
    return holding.hold(cluster, "n1", "gpuops-accept-x", 10.0, lambda: float(next(ticks)), lambda seconds: None)


def test_a_job_gets_the_free_gpus_and_they_are_told_by_their_minors():
    cluster = Cluster(line(), [], [job(7, "0-1")])
    assert held(cluster) == {"job": 7, "minors": [3, 5], "why": ""}
    (argv,) = [argv for argv in cluster.calls if argv[0] == holding.SBATCH]
    assert {"--gres=gpu:2", "--partition=main", "--time=40", "--nodelist=n1"} <= set(argv)
    assert any(word.startswith("--nice=") for word in argv)


def test_what_others_have_is_left_to_them():
    cluster = Cluster(line("MIXED", "gpu:a100:1(IDX:0)"), [job(5, "0"), job(7, "1")])
    assert held(cluster)["minors"] == [5]
    assert any("--gres=gpu:1" in argv for argv in cluster.calls)
    cluster = Cluster(line("MIXED", "gpu:a100:2(IDX:0-1)"), [])
    assert held(cluster) == {"job": None, "minors": [], "why": "other jobs have all GPUs of the node"}


def test_a_drained_node_gets_no_job():
    reason = " Reason=gpuops drain: a fan [root@2026-01-01T00:00:00]"
    cluster = Cluster(line("MIXED+DRAIN", "gpu:a100:1(IDX:0)", reason), [])
    assert held(cluster) == {"job": None, "minors": [5], "why": ""}
    assert not [argv for argv in cluster.calls if argv[0] == holding.SBATCH]


def test_a_job_that_is_refused_or_does_not_start_holds_nothing():
    refused = Cluster(line(), [], submitted=(1, "", "sbatch: error: invalid partition"))
    assert "invalid partition" in held(refused)["why"]
    late = Cluster(line(), [])
    assert "did not start" in held(late)["why"]
    assert late.calls[-1][:2] == [holding.SCANCEL, "--name=gpuops-accept-x"]


def test_the_job_of_a_run_that_was_killed_goes_first():
    cluster = Cluster(line(), [job(8, "0-1")], submitted=(0, "8\n", ""))
    cluster.left = "7\n"
    assert held(cluster)["job"] == 8
    programs = [argv[0] for argv in cluster.calls]
    assert programs.index(holding.SCANCEL) < programs.index(holding.SBATCH)
