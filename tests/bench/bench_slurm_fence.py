# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to the fence on Slurm, under a load of users' jobs: real daemons, simulated GPUs.

Jobs of random length with one or two GPUs come and go on one node. A fatal line is written into its kernel's log at a
random moment, and the clock stops when slurmctld has closed the node to new jobs. Once the GPU is held an operator
clears it, and the next fault follows. Every job notes on the node which GPU it had and that it came to its end: a job
that began on a GPU after its fence, and one that did not end, are counted.

The other side of the comparison is what DeepOps sets: a HealthCheckProgram every 300 s on idle nodes that drains one
whose GPUs are not all there. Its time to the drain is that to the next call: half an interval in the mean, a whole one
at most, and without an end on a node that is never idle. That is not measured again here.

It needs the machines that tests/site/test_slurm_fence.py leaves in the lab that GPUOPS_LAB_ID names, with
GPUOPS_KEEP_LAB=1.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass

from tests.bench.harness import Figure, NotHere, Row
from tests.bench.lab_run import lab

NODE, CONTROLLER = "gpu1", "cpu1"
ADDRESSES = ("0000:3b:00", "0000:af:00")
FAULTS = 200
GOAL_S = 1.0
HELD_S = 90.0
KERNEL_LOG = "/usr/lib/baremetal-gpu-simulators/run/kernel-log"
JOURNAL = "/var/lib/baremetal-gpu/reconciler/journal.jsonl"
LOG = "/var/tmp/fence-jobs.log"
# Keeps some jobs in the queue until the file is gone.
LOAD = f"""#!/bin/bash
touch /tmp/load
while [ -e /tmp/load ]; do
    if [ "$(squeue --noheader --user=$(id -un) | wc -l)" -lt 6 ]; then
        gpus=$((RANDOM % 4 ? 1 : 2)) seconds=$((1 + RANDOM % 8))
        sbatch --quiet --gres=gpu:$gpus --mem=20 --output=/dev/null --no-requeue >/dev/null <<JOB
#!/bin/sh
echo "\\$(date +%s.%N) begin \\$SLURM_JOB_ID \\$SLURM_JOB_GPUS" >>{LOG}
sleep $seconds
echo "\\$(date +%s.%N) end \\$SLURM_JOB_ID \\$SLURM_JOB_GPUS" >>{LOG}
JOB
    fi
    sleep 0.3
done
"""


@dataclass(frozen=True)
class Fence:
    """A fault of a GPU: when its line was written, when the node was closed, and when it was cleared."""

    position: int
    fault: float
    closed: float
    cleared: float


def ssh(machine: str, command: str) -> str:
    return lab("ssh", machine, "--", command)


def entries(since: float) -> list[dict[str, object]]:
    """The reconciler's steps on the node from then on."""
    rows = map(json.loads, ssh(CONTROLLER, f"sudo tail -n 60 {JOURNAL}").splitlines())
    return [row for row in rows if row["host"] == NODE and row["time"] >= since]


def fails(position: int) -> float:
    line = f"NVRM: Xid (PCI:{ADDRESSES[position]}): 79, pid=4242, name=python3, GPU has fallen off the bus."
    told = ssh(
        NODE,
        "now=$(awk '{printf \"%d\", $1 * 1000000}' /proc/uptime); date +%s.%N; "
        f"printf '4,%s,%s,-;%s\\n' \"$now\" \"$now\" '{line}' | sudo tee {KERNEL_LOG} >/dev/null",
    )
    return float(told.split()[0])


def wait(what: str, since: float, kinds: tuple[str, ...]) -> float:
    """When one of these steps was over."""
    end = time.monotonic() + HELD_S
    while time.monotonic() < end:
        for row in entries(since):
            if row["what"] == "end" and row["kind"] in kinds and row["result"] == "done":
                return float(str(row["time"]))
        time.sleep(0.3)
    raise SystemExit(f"{what} did not come within {HELD_S:g} s: {entries(since)[-3:]}")


def one(dice: random.Random) -> Fence:
    time.sleep(dice.uniform(0.05, 2.0))
    position = dice.randrange(len(ADDRESSES))
    fault = fails(position)
    closed = wait("the guard", fault, ("guard",))
    wait("the end of the guard", closed, ("unguard",))
    time.sleep(dice.uniform(0.5, 6.0))
    cleared = time.time()
    ssh(CONTROLLER, f"sudo gpuops-reconciler clear {NODE}")
    wait("the end of the fence", cleared, ("close",))
    return Fence(position, fault, closed, cleared)


def jobs() -> tuple[dict[str, tuple[float, list[int]]], set[str]]:
    """(job -> when it began and its GPUs, jobs that came to their end)."""
    begun: dict[str, tuple[float, list[int]]] = {}
    ended: set[str] = set()
    for line in ssh(NODE, f"cat {LOG}").splitlines():
        at, what, number, gpus = line.split()
        if what == "begin":
            begun[number] = (float(at), [int(gpu) for gpu in gpus.split(",")])
        else:
            ended.add(number)
    return begun, ended


def run(quick: bool) -> list[Row]:
    if "leads" not in ssh(CONTROLLER, "sudo gpuops-reconciler status 2>/dev/null || true"):
        raise NotHere(f"no reconciler leads on {CONTROLLER}; see the first lines of this file")
    dice = random.Random(0)
    ssh(NODE, f"sudo rm -f {LOG}; install -m 0666 /dev/null {LOG}")
    ssh(CONTROLLER, f"cat >/tmp/load.sh <<'SCRIPT'\n{LOAD}SCRIPT\nnohup bash /tmp/load.sh >/dev/null 2>&1 </dev/null &")
    try:
        fences = [one(dice) for _number in range(5 if quick else FAULTS)]
    finally:
        ssh(CONTROLLER, "rm -f /tmp/load")
    ssh(CONTROLLER, "for n in $(seq 60); do squeue --noheader --user=$(id -un) | grep -q . || break; sleep 1; done")
    begun, ended = jobs()
    on_fenced = [
        number
        for number, (at, gpus) in begun.items()
        if any(fence.position in gpus and fence.closed < at < fence.cleared for fence in fences)
    ]
    lost = sorted(set(begun) - ended)
    print(f"{len(fences)} faults, {len(begun)} jobs; begun on a fenced GPU: {on_fenced}; not ended: {lost}")
    if on_fenced or lost:
        raise SystemExit("the fence let a job in, or cost one")
    seconds = [fence.closed - fence.fault for fence in fences]
    what = "fatal line in the kernel's log → no new job on the node of Slurm"
    return [Figure.of(what, "wall", "s", seconds, None if quick else GOAL_S)]
