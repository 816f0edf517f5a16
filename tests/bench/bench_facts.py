# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's facts over SSH: what gpu_facts says about its GPUs, against all that Ansible's setup says about a host.

Both are a playbook with one module and a task that uses a fact, on the same machine of the lab, in turns and over one
connection that stays open. The time of a playbook that does nothing on the host is subtracted from both, which leaves
the module and its transfer. The GPUs are simulated and answer at once. What these facts cost the controller afterwards
is in the benchmark `scale`.

It needs a finished machine `gpu1`: that of `make lab-node`, or of the lab that GPUOPS_LAB_ID names.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.harness import CPU, WALL, Figure, Row, Sample, compare, paired
from tests.bench.lab_run import NOTHING, machine, play

SETUP = Path(__file__).with_name("facts_setup.yml")
OURS = Path(__file__).with_name("facts_gpu.yml")
GOAL: dict[str, float | None] = {"wall_s": 2.0}


def run(quick: bool) -> list[Row]:
    machine()

    def theirs() -> Sample:
        return play(SETUP)

    def ours() -> Sample:
        return play(OURS)

    control = paired(ours, ours, 1 if quick else 5, [theirs, ours])
    pairs = paired(theirs, ours, 1 if quick else 11)
    least = [play(NOTHING) for _number in range(1 if quick else 5)]
    start = Sample.median(least)
    what = "setup against gpu_facts of 2 GPUs"
    return [
        *compare(
            f"{what}, beyond a playbook of nothing",
            pairs,
            {} if quick else GOAL,
            control,
            start,
            quantities=(WALL, CPU),
        ),
        *compare(f"{what}, the whole process", pairs, {}, control, quantities=(WALL, CPU)),
        Figure.of("a playbook of nothing", "wall", "s", [sample.wall_s for sample in least]),
    ]
