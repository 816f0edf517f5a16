# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job of Slurm that has the free GPUs of a node while they are under load, so that no other job gets one.

It sleeps. It gives way to every other job that waits, ends when it is told to, and at the latest with its time limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import maintenance
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Unclear

SBATCH, SCANCEL, SQUEUE = "/usr/bin/sbatch", "/usr/bin/scancel", "/usr/bin/squeue"
# Beyond the minutes of the load: its beginning, the copies, and the pairs.
MORE_MINUTES = 30
START_S, POLL_S, LEFT_S = 90.0, 2.0, 10.0
NICE = 1_000_000


def hold(
    run: Run,
    node: str,
    name: str,
    minutes: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """{job, minors, why}: the minors of the GPUs that nobody else gets; on a drained node those that nobody has.

    Raises what Slurm() raises.
    """
    slurm = Slurm(run)
    _status, left, _error = run([SQUEUE, "--noheader", f"--name={name}", "--format=%A"], None, 30.0)
    if left.strip():
        # Of a run that was killed. Its GPUs take a moment to be free.
        release(run, name)
        sleep(LEFT_S)
    row = maintenance.find(slurm, node)
    try:
        minors = slurm.gres().minors(node)
    except Unclear as why:
        return _nothing(str(why))
    unused = [minor for position, minor in enumerate(minors) if position not in row["used"]]
    if row["drained"]:
        return {"job": None, "minors": unused, "why": ""}
    partitions = [one for one in row["partitions"] if one != PARTITION]
    if not unused or not partitions:
        return _nothing("other jobs have all GPUs of the node" if partitions else "the node is in no partition")
    argv = [SBATCH, "--parsable", f"--job-name={name}", f"--partition={partitions[0]}", f"--nodelist={node}"]
    argv += [f"--gres=gpu:{len(unused)}", "--ntasks=1", "--mem=10M", f"--nice={NICE}", "--no-requeue", "--chdir=/"]
    limit = math.ceil(minutes) + MORE_MINUTES
    argv += [f"--time={limit}", f"--deadline=now+{limit + 10}minutes", "--output=/dev/null", "--wrap=sleep infinity"]
    status, out, error = run(argv, None, 30.0)
    number = out.strip().partition(";")[0]
    if status or not number.isdigit():
        return _nothing(f"the job that is to hold the GPUs was refused: {one_line(error or out, 200)}")
    deadline = clock() + START_S
    while True:
        mine = [job for job in slurm.jobs_on(node) if job.id == int(number)]
        if mine and mine[0].positions:
            held = [minors[position] for position in mine[0].positions if position < len(minors)]
            return {"job": int(number), "minors": held, "why": ""}
        if clock() >= deadline:
            release(run, name)
            return _nothing(f"the job that is to hold the GPUs did not start within {START_S:.0f} s")
        sleep(POLL_S)


def _nothing(why: str) -> dict[str, Any]:
    minors: Sequence[int] = []
    return {"job": None, "minors": minors, "why": why}


def release(run: Run, name: str) -> None:
    """Ends the job. Nobody else has jobs of that name."""
    run([SCANCEL, f"--name={name}", "--quiet"], None, 30.0)
