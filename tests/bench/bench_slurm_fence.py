# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to the fence on Slurm, under a load of users' jobs: real daemons, simulated GPUs.

Jobs start and end on one node. A fatal line is written into its kernel's log at a random moment, and the clock stops
when slurmctld has closed the node to new jobs. Once a holder has the GPU, an operator clears it, and the next fault
follows. Jobs that started on a GPU after its fence, and jobs that did not finish, are counted (see
tests/site/slurm_faults.py).

The baseline is what DeepOps sets: a HealthCheckProgram every 300 s on idle nodes. Here it is a program that records
when slurmd calls it, in the same cluster at the same time. It would have found a fault at its next call; if there was
none, the time to the end of the run is the least that it would have needed.

It needs the machines that tests/site/test_slurm_fence.py leaves in the lab that GPUOPS_LAB_ID names, with
GPUOPS_KEEP_LAB=1.
"""

from __future__ import annotations

import time

from tests.bench.harness import Figure, NotHere, Row
from tests.site.plays import ssh
from tests.site.slurm_faults import Faults

NODE, CONTROLLER = "gpu1", "cpu1"
FAULTS = 200
GOAL_S = 1.0
CONFIG = "/etc/slurm/slurm.conf"
PROGRAM, CALLS = "/usr/local/sbin/note-health-check", "/var/tmp/health-checks"
DEEPOPS = (f"HealthCheckProgram={PROGRAM}", "HealthCheckInterval=300", "HealthCheckNodeState=IDLE")


def check_health_as_deepops() -> None:
    """Have slurmd call a program at DeepOps' settings, and forget the calls that this makes at once."""
    ssh(
        NODE,
        f"printf '#!/bin/sh\\ndate +%s.%N >>{CALLS}\\n' | sudo tee {PROGRAM} >/dev/null; sudo chmod 755 {PROGRAM}",
    )
    lines = "\\n".join(DEEPOPS)
    ssh(CONTROLLER, f"sudo sed -i '/^HealthCheck/d' {CONFIG}; printf '{lines}\\n' | sudo tee -a {CONFIG} >/dev/null")
    ssh(CONTROLLER, "sudo scontrol reconfigure; sleep 5")
    ssh(NODE, f"sudo rm -f {CALLS}")


def run(quick: bool) -> list[Row]:
    ssh(CONTROLLER, "sudo systemctl start zookeeper baremetal-gpu-reconciler", check=False)
    if "leads" not in ssh(CONTROLLER, "sleep 10; sudo gpuops-reconciler status 2>/dev/null || true"):
        raise NotHere(f"no reconciler leads on {CONTROLLER}; see the first lines of this file")
    check_health_as_deepops()
    faults = Faults(CONTROLLER, [NODE])
    faults.begin()
    try:
        faults.many(5 if quick else FAULTS)
    finally:
        ended = time.time()
        outcome = faults.end()
    print(f"{len(faults.fences)} faults; {outcome}")
    if outcome.on_fenced or outcome.lost:
        raise SystemExit("the fence let a job in, or cost one")
    calls = [float(line) for line in ssh(NODE, f"cat {CALLS} 2>/dev/null || true").split()]
    print(f"slurmd called the HealthCheckProgram {len(calls)} times")
    ours = [fence.closed - fence.fault for fence in faults.fences]
    theirs = [min([at for at in calls if at > fence.fault], default=ended) - fence.fault for fence in faults.fences]
    return [
        Figure.of(
            "fatal line in the kernel's log → no new job on the node of Slurm",
            "wall",
            "s",
            ours,
            None if quick else GOAL_S,
        ),
        Figure.of("the same → next call of a HealthCheckProgram (300 s, IDLE), or the end", "wall", "s", theirs),
    ]
