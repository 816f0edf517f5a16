# SPDX-License-Identifier: GPL-3.0-or-later
"""From a line in the kernel's log to a GPU that no job can have: the agent, munge, the reconciler and Slurm, all real
but the GPUs.

The tests run in order on one lab, after those of test_slurm.py or by themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import INVENTORY, Play, kernel_says, run_playbook, ssh, until
from tests.site.slurm_faults import ADDRESSES, Faults
from tests.site.test_slurm import CONTROLLER, HEAD_GROUPS, NODE, secrets_path

pytestmark = pytest.mark.lab

HEADS = HEAD_GROUPS
# With these the reconciler needs ZooKeeper.
WITH_ZOOKEEPER = (*HEADS, "zookeeper", "gpu_reconcilers")
RECONCILER = "baremetal-gpu-reconciler.service"


class Site:
    """The nodes and their controller with all that fences a GPU."""

    def __init__(
        self,
        base: Path,
        nodes: Sequence[str] = (NODE,),
        policy: Mapping[str, object] | None = None,
        heads: Sequence[str] = HEADS,
    ) -> None:
        self._machines = (*nodes, CONTROLLER)
        self._base, self._nodes = base, nodes
        self.has(heads)
        self._options = f"-i {INVENTORY} -i {base / 'site.yml'} --tags driver,agent,scheduler,slurm"
        self._variables: dict[str, Any] = {
            "slurm_common_secrets_path": secrets_path(base, NODE),
            "gpu_reconciler_secrets_path": str(base / ".secrets" / "reconciler.json"),
            # In ZooKeeper, what an earlier site has written belongs to that site's secrets.
            "gpu_reconciler_zookeeper_path": f"/{base.name}-{os.getpid()}",
            "gpu_reconciler_mode": "act",
            "gpu_reconciler_policy": {"settle_s": 2, **(policy or {})},
        }

        # Those of tests before these go with a file that is gone.
        for machine in self._machines:
            ssh(machine, "sudo rm -f /etc/baremetal-gpu/agent-zookeeper.json /etc/baremetal-gpu/reconciler-*.json")

    def has(self, heads: Sequence[str]) -> None:
        """The groups of the controller from now on."""
        groups = {"slurm_nodes": {"hosts": {node: {} for node in self._nodes}}}
        groups |= {name: {"hosts": {CONTROLLER: {}}} for name in heads}
        (self._base / "site.yml").write_text(json.dumps(groups))

    def converge(self, policy: Mapping[str, object] | None = None, **variables: Any) -> Play:
        """Run site.yml; settings of a policy and variables hold from then on."""
        self._variables["gpu_reconciler_policy"].update(policy or {})
        self._variables.update(variables)
        play = self.run()
        assert play.rc == 0, play.tail()
        return play

    def run(self, options: str = "", **variables: Any) -> Play:
        """Run site.yml, with variables for this run alone."""
        return run_playbook(
            "site.yml",
            limit=",".join(self._machines),
            extra_vars={**self._variables, **variables},
            options=f"{self._options} {options}",
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("fence"))
    found.converge()
    yield found
    # What comes after has faults of its own.
    ssh(CONTROLLER, f"sudo systemctl disable --now {RECONCILER} zookeeper.service", check=False)


@pytest.fixture(autouse=True)
def well_again(site: Site) -> Iterator[None]:
    yield
    ssh(CONTROLLER, "sudo scancel --user=$(id -un)")
    mend()
    until(lambda: not holders() and not reserved(), 60, told)


def fails(position: int) -> None:
    kernel_says(NODE, f"NVRM: Xid (PCI:{ADDRESSES[position]}): 79, pid=4242, name=python3, GPU has fallen off the bus.")


def mend() -> None:
    ssh(CONTROLLER, f"sudo gpuops-reconciler clear {NODE}")


def submit(name: str) -> str:
    """A job with one GPU that ends when it is cancelled: its number."""
    return ssh(
        CONTROLLER, f"sbatch --parsable --gres=gpu:1 --mem=50 --job-name={name} --output=/dev/null --wrap 'sleep 3600'"
    ).strip()


def state(job: str) -> str:
    return ssh(CONTROLLER, f"squeue --noheader --jobs={job} --Format=State:20 2>/dev/null").strip()


def runs(job: str) -> None:
    until(lambda: state(job) == "RUNNING", 60, told)


def positions(job: str) -> str:
    """Of the GPUs that a job has, as Slurm writes them."""
    shown = ssh(CONTROLLER, f"scontrol show job --details {job}")
    return shown.partition("(IDX:")[2].partition(")")[0]


def holders() -> list[str]:
    """Positions of the GPUs that the operator's jobs have."""
    jobs = ssh(CONTROLLER, "sudo squeue --all --noheader --user=slurm --states=RUNNING --Format=JobID:12").split()
    return sorted(positions(job) for job in jobs)


def reserved() -> bool:
    return "gpuops-" in ssh(CONTROLLER, "scontrol show reservation")


def told() -> str:
    return ssh(
        CONTROLLER,
        f"sudo squeue --all; sinfo -R; scontrol show reservation; sudo journalctl -u {RECONCILER} -n 20 -o cat",
        check=False,
    )


def is_held(position: int) -> None:
    until(lambda: str(position) in holders() and not reserved(), 60, told)


def test_a_free_gpu_that_fails_is_held_and_the_job_on_the_other_goes_on(site: Site) -> None:
    running = submit("healthy")
    runs(running)
    assert positions(running) == "0"
    fails(1)
    is_held(1)
    assert holders() == ["1"]
    assert state(running) == "RUNNING"
    assert ssh(CONTROLLER, f"sinfo --noheader --nodes={NODE} --Format=StateLong:20").split()[0] in (
        "mixed",
        "allocated",
    )
    waiting = submit("waiting")
    ssh(CONTROLLER, "sleep 5")
    assert state(waiting) == "PENDING"
    mend()
    runs(waiting)
    assert positions(waiting) == "1"
    assert state(running) == "RUNNING"


def test_a_gpu_in_use_goes_on_with_its_job_and_is_nobody_elses_afterwards(site: Site) -> None:
    running = submit("on-the-bad-gpu")
    runs(running)
    fails(0)
    until(lambda: "taken when" in told() and not reserved(), 60, told)
    # The node is open all the while.
    other = submit("other")
    runs(other)
    assert (state(running), positions(other)) == ("RUNNING", "1")
    waiting = submit("waiting")
    ssh(CONTROLLER, f"scancel {running}")
    is_held(0)
    assert (state(waiting), state(other)) == ("PENDING", "RUNNING")


def test_a_reconciler_that_is_killed_leaves_no_node_closed_and_no_bad_gpu_open(site: Site) -> None:
    running = submit("healthy")
    runs(running)
    fails(1)
    ssh(CONTROLLER, f"for i in $(seq 12); do sudo systemctl kill -s KILL {RECONCILER}; sleep 0.4; done")
    is_held(1)
    assert state(running) == "RUNNING"


def test_a_second_run_leaves_holders_alone_and_changes_nothing(site: Site) -> None:
    fails(1)
    is_held(1)
    assert site.converge().changed_tasks == {}
    assert holders() == ["1"]


def test_faults_under_a_load_of_jobs_cost_none_and_no_job_gets_a_fenced_gpu(site: Site) -> None:
    """The short form of test_slurm_faults.py."""
    faults = Faults(CONTROLLER, [NODE])
    faults.begin()
    try:
        faults.many(6, kill_every=2)
    finally:
        outcome = faults.end()
    assert (outcome.on_fenced, outcome.lost) == ([], [])
    assert outcome.jobs >= 3
