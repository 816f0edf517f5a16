# SPDX-License-Identifier: GPL-3.0-or-later
"""The ready-made jobs and `gpuops jobs` on a real cluster of Slurm in the lab.

The machines share no home, so jobs are submitted from the node on which they run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.site.plays import Play, run_playbook, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE, Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

RATES = {
    "sweep_name": "rates",
    "sweep_command": 'nvidia-smi -L | wc -l >gpus; echo "rate $LR"; test "$LR" != 0.3 || test -e ../mended',
    "sweep_parameters": {"LR": [0.1, 0.3]},
    "sweep_mem": 500,
}


class Apps:
    """The playbooks of ready-made jobs, as an operator runs them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.user = ssh(NODE, "id -un").strip()
        self.directory = f"/home/{self.user}/gpuops-jobs"

    def run(self, kind: str, options: str = "", **variables: Any) -> Play:
        named = {f"slurm_apps_{name}": value for name, value in variables.items()}
        return run_playbook(
            f"apps/{kind}.yml",
            limit=NODE,
            extra_vars={"target_hosts": NODE, "slurm_apps_timeout": 240, **named},
            options=f"-i {self._cluster.inventory / 'slurm.yml'} {options}",
        )

    def jobs(self, *words: str) -> str:
        return self._cluster.gpuops("jobs", *words)


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apps]:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    cluster.converge()
    made = Apps(cluster)
    ssh(NODE, f"rm -rf {made.directory}")
    yield made
    ssh(CONTROLLER, "scancel --user=$(id -un)")
    ssh(NODE, f"rm -rf {made.directory}")


def read(path: str) -> str:
    return ssh(NODE, f"cat {path}")


def queue() -> str:
    return ssh(CONTROLLER, "squeue -h -o '%j %T'").strip()


def test_the_smoke_job_queries_a_gpu_in_a_job(apps: Apps) -> None:
    play = apps.run("smoke", "--check --diff")
    assert play.rc == 0, play.tail()
    assert "+#SBATCH --gres=gpu:a100:1" in play.stdout
    assert ssh(NODE, f"ls {apps.directory}", check=False) == ""
    play = apps.run("smoke")
    assert play.rc == 0, play.tail()
    assert f"smoke-a100: 1 queried on {NODE}" in play.stdout
    told = json.loads(read(f"{apps.directory}/smoke-a100/output.log"))
    assert (told["ok"], len(told["devices"])) == (True, 1)


def test_a_smoke_job_for_more_gpus_than_a_node_has_is_refused(apps: Apps) -> None:
    play = apps.run("smoke", smoke_gpus=3)
    assert play.rc != 0
    assert "slurm_apps_smoke_gpus is 3, and no node has more than 2 GPUs of the type a100" in play.stdout


def test_a_sweep_repeats_what_failed_and_nothing_else(apps: Apps) -> None:
    play = apps.run("sweep", **RATES)
    assert play.rc != 0
    assert "LR=0.3: it ended with exit status 1, and said last: rate 0.3" in " ".join(play.stdout.split())
    assert "LR=0.1: it ended" not in play.stdout
    base = f"{apps.directory}/sweep-rates"
    assert read(f"{base}/LR=0.1/output.log") == "rate 0.1\n"
    assert read(f"{base}/LR=0.1/gpus").strip() == "1"
    first = ssh(NODE, f"stat -c %Y {base}/LR=0.1/output.log")
    ssh(NODE, f"touch {base}/mended")
    play = apps.run("sweep", **RATES)
    assert play.rc == 0, play.tail()
    assert read(f"{base}/LR=0.3/result").split()[1] == "0"
    assert ssh(NODE, f"stat -c %Y {base}/LR=0.1/output.log") == first
    assert apps.run("sweep", **RATES).changed_tasks == {}


def test_a_notebook_runs_until_it_is_taken_away(apps: Apps) -> None:
    # There is no JupyterLab on the machines.
    asked = {"notebook_program": 'touch "$NOTEBOOK_SOCKET" && exec sleep 600', "notebook_mem": 500}
    play = apps.run("notebook", **asked)
    assert play.rc == 0, play.tail()
    socket = f"{apps.directory}/notebook/notebook.sock"
    assert f"ssh -L 8888:{socket} {apps.user}@{NODE}, then" in " ".join(play.stdout.split())
    until(lambda: ssh(NODE, f"stat -c %a {socket}", check=False).strip() == "600", 60, queue)
    assert apps.run("notebook", **asked).changed_tasks == {}
    said = apps.jobs()
    assert "notebook" in said
    told = json.loads(apps.jobs("--json", "--user", apps.user))
    assert [(row["name"], row["gpus"][0]["host"]) for row in told["running"]] == [("notebook", NODE)]
    assert [(row["total"], row["free"], row["used"]) for row in told["gpus"]] == [(2, 1, 1)]
    play = apps.run("notebook", state="absent", **asked)
    assert play.rc == 0, play.tail()
    # Its Epilog may still run.
    until(lambda: queue() == "", 60, queue)


def test_a_waiting_job_is_shown_with_its_place_and_why(apps: Apps) -> None:
    for _number in range(3):
        ssh(CONTROLLER, "sbatch --parsable --gres=gpu:2 --output=/dev/null --job-name=both --wrap 'sleep 600'")
    until(lambda: "both RUNNING" in queue(), 60, queue)
    until(lambda: "Resources" in ssh(CONTROLLER, "squeue -h -t PD -o %r"), 60, queue)
    told = json.loads(apps.jobs("--json"))
    assert [row["place"] for row in told["waiting"]] == [1, 2]
    assert "no node has enough free resources" in apps.jobs()
    ssh(CONTROLLER, "scancel --user=$(id -un)")
