# SPDX-License-Identifier: GPL-3.0-or-later
"""A training on two nodes of Slurm whose GPUs fail while it runs: it continues by itself, and ends as if nothing had
happened. Everything is real but the GPUs: PyTorch computes on processors, and the shared directory is on GlusterFS.

GPUOPS_TRIALS is for who cannot wait.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import INVENTORY, Play, kernel_says, lab, run_playbook, ssh, until
from tests.site.slurm_faults import ADDRESSES
from tests.site.test_slurm_fence import CONTROLLER, NODE, RECONCILER, Site, reserved, told

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

SECOND = "gpu3"
NODES = (NODE, SECOND)
SHARED = "/shared"
TRIALS = int(os.environ.get("GPUOPS_TRIALS", "20"))
# From the fault until it computes again, whatever Slurm waits before it starts a job that was queued again.
CONTINUES_S = 90.0
EPOCHS, EVERY = 100, 50
STEPS = EPOCHS * 23
# The job may do some steps between the look and the fault, and a line of output is written after its step.
SLACK = 15
PATIENCE_S = 900.0
INSTALL = "sudo DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends"


def share_a_directory() -> None:
    """A GlusterFS volume of the controller, mounted by all."""
    address = ssh(CONTROLLER, "hostname -I").split()[0]
    if ssh(CONTROLLER, f"mountpoint -q {SHARED} && echo there", check=False).strip() != "there":
        ssh(CONTROLLER, f"sudo apt-get -qq update; {INSTALL} glusterfs-server >/dev/null")
        ssh(CONTROLLER, "sudo systemctl start glusterd")
        # A root file system that is an overlay takes no brick; this directory lies on one of the lab's host.
        brick = "/var/lib/docker/training"
        create = f"gluster --mode=script volume create training {address}:{brick} force"
        ssh(CONTROLLER, f"sudo mkdir -p {brick} && sudo {create} && sudo gluster volume start training")
    for machine in (CONTROLLER, *NODES):
        ssh(machine, f"sudo apt-get -qq update; {INSTALL} glusterfs-client >/dev/null && sudo mkdir -p {SHARED}")
        ssh(machine, f"mountpoint -q {SHARED} || sudo mount -t glusterfs {address}:/training {SHARED}")
    ssh(CONTROLLER, f"sudo chmod 1777 {SHARED}")


class Training:
    """Runs of one training: the first by the playbook, the others by the script that it has submitted."""

    directory = f"{SHARED}/jobs/training-digits"

    def __init__(self, base: Path) -> None:
        self.site = Site(base, nodes=NODES, policy={"breaker_share": 1.0, "fatal_job": "signal"})
        self._options = f"-i {INVENTORY} -i {base / 'site.yml'}"
        self.user = ssh(CONTROLLER, "id -un").strip()

    def play(self, kind: str, **variables: Any) -> Play:
        named = {f"slurm_apps_{name}": value for name, value in variables.items()}
        return run_playbook(
            f"apps/{kind}.yml",
            limit=",".join((*NODES, CONTROLLER)),
            extra_vars={"slurm_apps_user": self.user, "slurm_apps_directory": f"{SHARED}/jobs", **named},
            options=self._options,
        )

    def train(self) -> Play:
        return self.play(
            "training",
            training_name="digits",
            training_packages=["python3-torch", "python3-sklearn"],
            training_epochs=EPOCHS,
            training_checkpoint_steps=EVERY,
            training_arguments=["--report=1"],
            training_mem=1500,
            training_timeout=2400,
        )

    def submit(self, *options: str) -> str:
        """The same job anew: its number."""
        ssh(CONTROLLER, f"rm -rf {self.directory} && mkdir -p {self.directory}")
        return ssh(CONTROLLER, f"sbatch --parsable {' '.join(options)} {SHARED}/script").strip()

    def said(self) -> str:
        return ssh(CONTROLLER, f"cat {self.directory}/output.log 2>/dev/null", check=False)

    def steps(self) -> list[int]:
        """Of the start that is the last one."""
        return [int(one) for one in re.findall(r"^step (\d+) of \d+: loss", self._last_start(), re.MULTILINE)]

    def begun_at(self) -> list[int]:
        return [int(one) for one in re.findall(r"^step (\d+) of \d+: begins", self.said(), re.MULTILINE)]

    def _last_start(self) -> str:
        return self.said().rpartition("begins on")[2]

    def reaches(self, step: int) -> None:
        until(lambda: max(self.steps(), default=0) >= step, PATIENCE_S, lambda: self.told("-"))

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ssh(CONTROLLER, f"cat {self.directory}/training.json"))
        return found

    def told(self, job: str) -> str:
        return f"{self.said()[-2000:]}\n{ssh(CONTROLLER, f'scontrol show job {job}', check=False)}\n{told()}"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    lab("up", "--machine", f"{SECOND}:trixie:a100-sxm4-40gb-x2")
    made = Training(tmp_path_factory.mktemp("training"))
    made.site.converge()
    share_a_directory()
    yield made
    ssh(CONTROLLER, "sudo scancel --user=$(id -un)")
    ssh(CONTROLLER, f"sudo systemctl disable --now {RECONCILER} zookeeper.service", check=False)
    for machine in (*NODES, CONTROLLER):
        ssh(machine, f"sudo umount {SHARED}", check=False)
    if not os.environ.get("GPUOPS_KEEP_LAB"):
        lab("down", "--machine", SECOND)


@pytest.fixture(scope="module")
def undisturbed(training: Training) -> dict[str, Any]:
    """What becomes of it when nothing happens."""
    ssh(CONTROLLER, f"rm -rf {SHARED}/jobs")
    play = training.train()
    assert play.rc == 0, play.tail()
    outcome = training.outcome()
    assert (outcome["steps"], outcome["processes"]) == (STEPS, 2)
    assert outcome["accuracy"] > 0.9
    # Slurm knows what the playbook has submitted for some minutes yet.
    jobs = ssh(CONTROLLER, "squeue --noheader --states=all --name=training-digits --format=%A").split()
    job = max(jobs, key=int)
    ssh(CONTROLLER, f"scontrol write batch_script {job} {SHARED}/script")
    assert training.train().changed_tasks == {}
    return outcome


@pytest.fixture(autouse=True)
def well_again(training: Training) -> Iterator[None]:
    yield
    ssh(CONTROLLER, "sudo scancel --user=$(id -un)")
    mend()


def mend() -> None:
    for node in NODES:
        ssh(CONTROLLER, f"for n in $(seq 20); do sudo gpuops-reconciler clear {node} && break; sleep 1; done")
    until(lambda: not ssh(CONTROLLER, "sudo squeue --all --noheader").strip() and not reserved(), 180, told)


def shown(job: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\S+)", ssh(CONTROLLER, f"scontrol show job {job}", check=False))
    return found[1] if found else ""


def gpus(job: str) -> dict[str, int]:
    """Node -> position of the GPU that the job has there."""
    found = {}
    for line in ssh(CONTROLLER, f"scontrol show job --details {job}").splitlines():
        if at := re.search(r"\bNodes=(\S+).*IDX:(\d+)", line):
            for node in ssh(CONTROLLER, f"scontrol show hostnames '{at[1]}'").split():
                found[node] = int(at[2])
    return found


def ends(training: Training, job: str) -> None:
    until(
        lambda: shown(job, "JobState") in ("COMPLETED", "FAILED", "CANCELLED"), PATIENCE_S, lambda: training.told(job)
    )
    assert shown(job, "JobState") == "COMPLETED", training.told(job)


def trial(training: Training, dice: random.Random, number: int) -> dict[str, Any]:
    """A fault of one of its GPUs at a random step, and what became of it."""
    job = training.submit()
    # A fault that comes after the last step is none.
    training.reaches(dice.randrange(1, STEPS * 3 // 4))
    had = gpus(job)
    node = dice.choice(sorted(had))
    is_hard = number % 2 == 1
    begun = time.monotonic()
    if is_hard:
        # As on a GPU that is gone: what computes on it ends with it.
        ssh(node, "sudo pkill -KILL -f '[p]rogram/train.py'", check=False)
    line = f"NVRM: Xid (PCI:{ADDRESSES[had[node]]}): 79, pid=4242, name=python3, GPU has fallen off the bus."
    kernel_says(node, line)
    until(lambda: shown(job, "Restarts") == "1", PATIENCE_S, lambda: training.told(job))
    queued = time.monotonic()
    done = max(training.steps(), default=0)
    until(lambda: len(training.begun_at()) > 1, PATIENCE_S, lambda: training.told(job))
    resumed = time.monotonic()
    now = gpus(job)
    ends(training, job)
    found = {
        "kind": "lost" if is_hard else "told",
        "done": done,
        "from": training.begun_at()[-1],
        "same_gpu": now.get(node) == had[node],
        "queued_s": round(queued - begun, 1),
        "resumed_s": round(resumed - begun, 1),
        "outcome": training.outcome(),
    }
    mend()
    return found


def test_a_training_whose_gpus_fail_at_random_steps_continues_and_ends_the_same(
    training: Training, undisturbed: dict[str, Any]
) -> None:
    dice, found = random.Random(), []
    for number in range(TRIALS):
        try:
            one = trial(training, dice, number)
        except AssertionError as why:
            print(f"trial {number + 1}: {why}", flush=True)
            ssh(CONTROLLER, "sudo scancel --user=$(id -un)")
            mend()
            continue
        found.append(one)
        print(f"trial {number + 1}: {one}", flush=True)
    lost = [one["done"] - one["from"] for one in found]
    waits = sorted(one["resumed_s"] for one in found)
    print(f"{len(found)} of {TRIALS} continued; steps lost {sorted(lost)}; after {waits} s")
    assert sum(one <= CONTINUES_S for one in waits) >= TRIALS * 19 // 20
    assert max(lost) <= EVERY + SLACK
    # Who was told has lost none.
    assert all(one["done"] - one["from"] <= SLACK for one in found if one["kind"] == "told")
    assert not any(one["same_gpu"] for one in found)
    assert [one["outcome"]["loss"] for one in found] == pytest.approx([undisturbed["loss"]] * len(found), abs=1e-6)


def test_it_goes_on_with_one_node_where_the_other_is_gone(training: Training, undisturbed: dict[str, Any]) -> None:
    job = training.submit("--nodes=1-2")
    training.reaches(120)
    ssh(CONTROLLER, f"sudo scontrol update nodename={SECOND} state=drain reason=test")
    try:
        ssh(CONTROLLER, f"scancel --full --signal=TERM {job}")
        until(lambda: shown(job, "Restarts") == "1", PATIENCE_S, lambda: training.told(job))
        until(lambda: shown(job, "JobState") == "PENDING", PATIENCE_S, lambda: training.told(job))
        ssh(CONTROLLER, f"sudo scontrol update jobid={job} starttime=now")
        ends(training, job)
    finally:
        ssh(CONTROLLER, f"sudo scontrol update nodename={SECOND} state=resume")
    outcome = training.outcome()
    assert outcome["processes"] == 1
    assert training.begun_at()[-1] >= 120
    assert outcome["loss"] == pytest.approx(undisturbed["loss"], abs=1e-3)


def test_a_point_of_a_sweep_continues_too(training: Training) -> None:
    rates = {
        "sweep_name": "rates",
        "sweep_command": 'python3 "$TRAINING/train.py" --epochs 40 --every 50 --report 1 --rate "$LR"',
        "sweep_parameters": {"LR": [0.1, 0.05]},
        "sweep_resumable": True,
        "sweep_mem": 1500,
    }
    # The playbook waits no longer than until its points run.
    play = training.play("sweep", sweep_timeout=1, **rates)
    assert play.rc != 0
    log = f"{SHARED}/jobs/sweep-rates/LR=0.1/output.log"
    until(lambda: "step 100 of" in ssh(CONTROLLER, f"cat {log}", check=False), PATIENCE_S, told)
    job = ssh(CONTROLLER, "squeue --noheader --states=R --name=sweep-rates --format='%A %K'").splitlines()
    point = next(line.split()[0] for line in job if line.split()[1] == "0")
    ((node, position),) = gpus(point).items()
    kernel_says(node, f"NVRM: Xid (PCI:{ADDRESSES[position]}): 79, pid=1, name=python3, GPU has fallen off the bus.")
    until(lambda: shown(point, "Restarts") == "1", PATIENCE_S, told)
    ssh(CONTROLLER, f"sudo scontrol update jobid={point} starttime=now", check=False)
    play = training.play("sweep", sweep_timeout=2400, **rates)
    assert play.rc == 0, play.tail()
    starts = re.findall(r"step (\d+) of \d+: begins", ssh(CONTROLLER, f"cat {log}"))
    assert len(starts) == 2
    assert int(starts[1]) >= 100
