# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm's Prolog, TaskProlog and Epilog cost a job: jobs with one GPU that do nothing, one after another, with a
slurm.conf that names the three and with one that does not.

A job is submitted when the one before is over. Its time runs from the submission to the start of its task and back. It
includes the Prolog, and also the Epilog if the next job waits for the GPU.

It needs the machines that tests/site/test_slurm_prolog.py leaves in the lab that GPUOPS_LAB_ID names, with
GPUOPS_KEEP_LAB=1.
"""

from __future__ import annotations

import re
import time

from tests.bench.harness import WALL, NotHere, Row, Sample, compare, paired
from tests.bench.lab_run import lab

NODE, CONTROLLER = "gpu1", "cpu1"
JOBS = 20
CONFIG = "/etc/slurm/slurm.conf"
NAMED = "Prolog|TaskProlog|Epilog"


def ssh(command: str) -> str:
    return lab("ssh", CONTROLLER, "--", command)


def configure(change: str) -> None:
    """Change slurm.conf and have all daemons read it."""
    ssh(f"sudo sed -Ei '{change}' {CONFIG}; sudo scontrol reconfigure")
    time.sleep(3)


def jobs(count: int) -> Sample:
    loop = f"for n in $(seq {count}); do srun --quiet --gres=gpu:1 true </dev/null || echo failed; done"
    told = ssh(f"begin=$(date +%s%N); {loop}; echo took $(($(date +%s%N) - begin))")
    took = re.fullmatch(r"took (\d+)", told.strip())
    if took is None:
        raise SystemExit(f"the jobs did not run: {told}")
    return Sample(0.0, 0.0, "", int(took[1]) / 1e9 / count)


def run(quick: bool) -> list[Row]:
    if not re.search(rf"^({NAMED})=", ssh(f"cat {CONFIG} 2>/dev/null || true"), re.MULTILINE):
        raise NotHere(f"no Slurm with a Prolog runs on {NODE} and {CONTROLLER}; see the first lines of this file")
    count = 3 if quick else JOBS

    def without() -> Sample:
        configure(rf"s/^({NAMED})=/#\1=/")
        return jobs(count)

    def with_all() -> Sample:
        configure(rf"s/^#({NAMED})=/\1=/")
        return jobs(count)

    try:
        control = paired(without, without, 1 if quick else 3, [without])
        pairs = paired(without, with_all, 1 if quick else 7, [with_all])
    finally:
        configure(rf"s/^#({NAMED})=/\1=/")
    what = "a job with a GPU, without the three programs against with them"
    return list(compare(what, pairs, {}, control, quantities=(WALL,)))
