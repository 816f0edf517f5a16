# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of GPUs on nodes of Slurm while users' jobs come and go and daemons are killed, and what became of the jobs.

Every job writes on its nodes which GPUs it can open when it begins, and that it came to its end. So what a job had is
what its cgroup let it have, and not what Slurm says. When it was given them is what slurmctld wrote into its log: a job
begins a second or two later, after the Prolog.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.site.plays import ROOT, ssh, until, xid

# By their positions: where the two simulated GPUs of a node are on the PCI bus.
ADDRESSES = ("0000:3b:00", "0000:af:00")
JOURNAL = "/var/lib/baremetal-gpu/reconciler/journal.jsonl"
LOG = "/var/tmp/fault-jobs.log"
# A slurmctld that was killed may take a job that has ended for a running one until its time limit, a minute here, is
# over.
PATIENCE_S = 300.0
LOOK_S = 20.0
_ALLOCATED = re.compile(r"(?:sched: Allocate|_start_job: Started) JobId=(\w+)(?:\((\d+)\))?")
# slurmctld writes its state some seconds after a change. One that is killed before that has lost the job, and so has
# its user; no fence is at fault.
SAVED_S = 15.0
TASK = f"""
for n in 0 1; do (: </dev/nvidia$n) 2>&1 | grep -q permitted || gpus=$gpus,$n; done
token=$(cat /proc/sys/kernel/random/uuid)
echo "$(date +%s.%N) begin $token $SLURM_JOB_ID $gpus" >>{LOG}
sleep $0
echo "$(date +%s.%N) end $token $SLURM_JOB_ID $gpus" >>{LOG}
"""
JOB = f"""#!/bin/sh
task='{TASK}'
if [ "$SLURM_JOB_NUM_NODES" = 1 ]; then exec sh -c "$task" "$1"; fi
srun --ntasks-per-node=1 --gres=gpu:1 sh -c "$task" "$1"
"""
# Keeps jobs in the queue until the file is gone: single ones with one GPU or two, arrays, and jobs of two nodes where
# there are two.
LOAD = """#!/bin/bash
touch /tmp/fault-load
while [ -e /tmp/fault-load ]; do
    if [ "$(squeue --noheader --array --user=$(id -un) | wc -l)" -lt WAITING ]; then
        case $((RANDOM % 10)) in
            0|1) what=--gres=gpu:2 ;;
            2) what="--gres=gpu:1 --array=1-3" ;;
            3) what="--gres=gpu:1 --nodes=TOGETHER" ;;
            *) what=--gres=gpu:1 ;;
        esac
        sbatch --quiet $what --mem=20 --time=1 --output=/dev/null /tmp/fault-job.sh $((1 + RANDOM % 4)) >/dev/null 2>&1
    fi
    sleep 0.5
done
"""


@dataclass(frozen=True)
class Fence:
    """A fault of a GPU: when its line was in the kernel's log, when its node was closed, when it was cleared."""

    node: str
    position: int
    fault: float
    closed: float
    cleared: float


@dataclass
class Outcome:
    """What became of the jobs."""

    jobs: int
    on_fenced: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    lost_by_slurmctld: list[str] = field(default_factory=list)


class Faults:
    """Faults on the nodes of one controller, which is the reconciler's host and the login too."""

    def __init__(self, controller: str, nodes: Sequence[str], seed: int = 0) -> None:
        self.controller, self.nodes = controller, tuple(nodes)
        self.fences: list[Fence] = []
        self.killed: dict[str, list[float]] = {}
        self.resumed: list[str] = []
        self._dices = {node: random.Random(f"{seed} {node}") for node in nodes}
        self._begun = 0.0
        self._journal: subprocess.Popen[str] | None = None
        self._rows: deque[dict[str, Any]] = deque(maxlen=1000)

    def begin(self) -> None:
        """Start the load."""
        self._begun = time.time()
        for node in self.nodes:
            ssh(node, f"sudo rm -f {LOG}; install -m 0666 /dev/null {LOG}")
        load = LOAD.replace("TOGETHER", str(min(2, len(self.nodes)))).replace("WAITING", str(4 + 2 * len(self.nodes)))
        ssh(
            self.controller,
            f"cat >/tmp/fault-job.sh <<'SCRIPT'\n{JOB}SCRIPT\ncat >/tmp/fault-load.sh <<'SCRIPT'\n{load}SCRIPT",
        )
        ssh(self.controller, "nohup bash /tmp/fault-load.sh >/dev/null 2>&1 </dev/null &")
        follow = ["ssh", self.controller, "--", f"sudo tail -n 100 -F {JOURNAL}"]
        words = [sys.executable, "-m", "tests.lab.machines", *follow]
        self._journal = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=[self._journal.stdout], daemon=True).start()

    def end(self) -> Outcome:
        """End the load, wait until no job is left, and count."""
        if self._journal is not None:
            self._journal.kill()
        ssh(self.controller, "rm -f /tmp/fault-load")
        ssh(
            self.controller,
            "for n in $(seq 180); do squeue --noheader --user=$(id -un) | grep -q . || break; sleep 1; done",
        )
        return self._outcome()

    def many(self, number: int, kill_every: int = 0) -> None:
        """So many faults, on all nodes at the same time; at each `kill_every`th a daemon is killed.

        :raises AssertionError: when a fence was not seen. The other nodes end with the fault that they have.
        """
        numbers, stopped = itertools.count(1), []

        def on(node: str) -> None:
            try:
                while not stopped and (turn := next(numbers)) <= number:
                    fence = self.one(node, kill=bool(kill_every) and turn % kill_every == 0)
                    print(f"{turn} on {node}: closed {fence.closed - fence.fault:.3f} s after the fault", flush=True)
            except BaseException:
                stopped.append(node)
                raise

        with ThreadPoolExecutor(len(self.nodes)) as pool:
            try:
                for done in [pool.submit(on, node) for node in self.nodes]:
                    done.result()
            except KeyboardInterrupt:
                # Who has waited long enough has the outcome so far.
                stopped.append("by hand")

    def one(self, node: str, kill: bool = False) -> Fence:
        """A fault, the fence, and an operator who clears it; with `kill` a daemon is killed meanwhile."""
        dice = self._dices[node]
        time.sleep(dice.uniform(0.05, 1.0))
        position = dice.randrange(len(ADDRESSES))
        if kill:
            self._kill(node)
        fault = xid(node, ADDRESSES[position])
        closed = self._wait(node, fault, "guard")
        was_held = closed == fault or self._wait(node, closed, "unguard") == closed
        if dice.random() < 0.25:
            self._until_held(node)
        time.sleep(dice.uniform(0.2, 1.5))
        cleared = time.time()
        ssh(self.controller, f"for n in $(seq 20); do sudo gpuops-reconciler clear {node} && break; sleep 1; done")
        # A node that has nothing but a holder of an earlier fence is not fenced, so there may be nothing to close.
        self._wait(node, cleared, *(["close", "cancel"] if was_held else ["close"]))
        fence = Fence(node, position, fault, closed, cleared)
        self.fences.append(fence)
        return fence

    def _is_held(self, node: str, since: float, kind: str) -> bool:
        """Whether a holder of before has the GPU and no step of this kind is needed: a slurmctld that is killed forgets
        the guard and that the holder has ended."""
        steps = self._steps(node, since)
        is_taken = any(row["what"] == "begin" and row["kind"] == kind for row in steps)
        return not is_taken and any(row["what"] == "wait" and "is held by job" in row["why"] for row in steps)

    def _until_held(self, node: str) -> None:
        """Wait until an operator's job has the GPU, which is when the job ends that has it now."""
        # A slurmctld that is killed in between says nothing.
        holders = f"sudo squeue --all --noheader --user=slurm --states=RUNNING --nodelist={node} 2>/dev/null || true"
        until(lambda: ssh(self.controller, holders).strip(), PATIENCE_S, lambda: self._steps(node, 0.0)[-5:])

    def _kill(self, node: str) -> None:
        # Not slurmd: where it dies in the middle of a Prolog, Slurm itself drains the node and holds the job.
        dice = self._dices[node]
        machine, unit = dice.choice(
            [
                (self.controller, "baremetal-gpu-reconciler"),
                (self.controller, "slurmctld"),
                (self.controller, "slurmdbd"),
                (node, "baremetal-gpu-agent"),
            ]
        )
        # The lab's log of the kernel is a pipe: the line that an agent has read and not published is lost with it,
        # where the kernel's own would still have it. So an agent is killed before the fault.
        delay = 0.0 if unit == "baremetal-gpu-agent" else dice.uniform(0.0, 4.0)
        self.killed.setdefault(unit, []).append(time.time() + delay)
        # The daemon alone: what runs jobs is in the same control group.
        kill = f"sudo systemctl kill --kill-who=main -s KILL {unit}"
        ssh(machine, f"(sleep {delay:.2f}; {kill}) >/dev/null 2>&1 </dev/null &")

    def _wait(self, node: str, since: float, *kinds: str) -> float:
        """When the reconciler had taken a step of one of these kinds on the node."""
        begun = looked = time.monotonic()
        while time.monotonic() < begun + PATIENCE_S:
            for row in self._steps(node, since):
                if row["what"] == "end" and row["kind"] in kinds and row["result"] == "done":
                    return float(row["time"])
            if kinds[0] in ("guard", "unguard") and self._is_held(node, since, kinds[0]):
                return since
            if time.monotonic() > looked + LOOK_S:
                looked = time.monotonic()
                self._resume(node)
            time.sleep(0.3)
        wanted = " or ".join(kinds)
        raise AssertionError(f"no {wanted} of {node} within {PATIENCE_S:g} s: {self._steps(node, since)[-5:]}")

    def _resume(self, node: str) -> None:
        """What an operator does with a node that Slurm itself has drained: a slurmctld that is killed may give the
        number of a job that runs to another one, and slurmstepd may hang after a job that SIGTERM did not end."""
        told = ssh(self.controller, f"scontrol show node {node}")
        # The reason stays when the node is back.
        if "+DRAIN" in told and any(f"Reason={reason}" in told for reason in ("Duplicate jobid", "Kill task failed")):
            self.resumed.append(node)
            ssh(self.controller, f"sudo scontrol update nodename={node} state=resume")

    def _steps(self, node: str, since: float) -> list[dict[str, Any]]:
        return [row for row in list(self._rows) if row["host"] == node and row["time"] >= since]

    def _read(self, journal: Iterable[str]) -> None:
        """The reconciler's journal as it is written: one login for all is far less work than one a look."""
        for line in journal:
            # A reconciler that is killed may leave the beginning of a line.
            with contextlib.suppress(ValueError):
                self._rows.append(json.loads(line))

    def _outcome(self) -> Outcome:
        begun: dict[str, tuple[str, float, list[int], str]] = {}
        ended = set()
        for node in self.nodes:
            for line in ssh(node, f"cat {LOG}").splitlines():
                at, what, token, job, *gpus = line.split(" ")
                if what == "end":
                    ended.add(token)
                else:
                    positions = [int(gpu) for gpu in gpus[0].split(",") if gpu] if gpus else []
                    begun[token] = (node, float(at), positions, job)
        found = Outcome(len(begun))
        given = self._allocations()
        for token, (node, at, positions, job) in begun.items():
            name = f"job {job} on {node}"
            # After a slurmctld that was killed the same number may be another job's.
            allocated = max(time for time in given[job] if time < at)
            if any(
                fence.node == node and fence.position in positions and fence.closed < allocated < fence.cleared
                for fence in self.fences
            ):
                found.on_fenced.append(name)
            if token not in ended:
                young = any(at < killed < at + SAVED_S for killed in self.killed.get("slurmctld", ()))
                (found.lost_by_slurmctld if young else found.lost).append(name)
        return found

    def _allocations(self) -> dict[str, list[float]]:
        """Job -> when it was given its resources, each time."""
        log = ssh(self.controller, f"sudo journalctl --unit slurmctld --output short-unix --since @{self._begun:.0f}")
        found: dict[str, list[float]] = {}
        for line in log.splitlines():
            if started := _ALLOCATED.search(line):
                number = started[2] or started[1]
                found.setdefault(number, []).append(float(line.split(" ", 1)[0]))
        return found
