# SPDX-License-Identifier: GPL-3.0-or-later
"""How Ansible's forks, its strategy and several processes change a run of site.yml on finished hosts.

The hosts are those of the benchmark `scale`, and every module takes 0.26 s, as over SSH with pipelining. Several
processes of Ansible help only if there are more cores than one process and its workers use.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.run import shards
from tests.bench.bench_scale import SITE, fleet
from tests.bench.harness import CPU, MEMORY, WALL, Figure, Row, Run, Sample, compare, paired

HOSTS, FEW = 40, 12
FORKS = (5, 20, 40)
# What would be sensible here for a fleet.
PROCESSES = max(2, shards.sensible(1_000))
SSH_S = 0.26


def forks(hosts: int, rounds: int, counts: Sequence[int]) -> list[Row]:
    """How long site.yml takes with so many forks, and what it costs."""
    taken: dict[int, list[Sample]] = {count: [] for count in counts}
    for number in range(rounds):
        for count in counts if number % 2 else reversed(counts):
            run = fleet(SITE, hosts, ANSIBLE_FORKS=str(count), BENCH_DELAY=str(SSH_S))
            taken[count].append(run())
    rows: list[Row] = []
    for count, samples in taken.items():
        what = f"site.yml on {hosts} finished hosts that answer in {SSH_S} s, {count} forks"
        for quantity, unit, values in (
            ("wall", "s", [sample.wall_s for sample in samples]),
            ("CPU", "s", [sample.cpu_s for sample in samples]),
            ("memory", "MiB", [sample.memory_mib for sample in samples]),
        ):
            rows.append(Figure.of(what, quantity, unit, values))
    return rows


def divided(hosts: int, processes: int, pairs: int) -> list[Row]:
    """gpuops up in one process against several."""

    def among(count: int) -> Run:
        return fleet(SITE, hosts, BENCH_UP=f"--shards {count}", BENCH_DELAY=str(SSH_S))

    what = f"gpuops up on {hosts} finished hosts that answer in {SSH_S} s: 1 process against {processes}"
    pairs_of_both, controls = paired(among(1), among(processes), pairs), paired(among(1), among(1), 1)
    return [*compare(what, pairs_of_both, {}, controls, quantities=(WALL, CPU, MEMORY))]


def strategies(hosts: int, pairs: int) -> list[Row]:
    """Every host going on as soon as it can, against waiting for the others at each task."""

    def by(strategy: str) -> Run:
        return fleet(SITE, hosts, ANSIBLE_STRATEGY=strategy, BENCH_DELAY=str(SSH_S))

    what = f"site.yml on {hosts} finished hosts that answer in {SSH_S} s: strategy free against linear"
    pairs_of_both, controls = paired(by("free"), by("linear"), pairs), paired(by("linear"), by("linear"), 1)
    return [*compare(what, pairs_of_both, {}, controls, quantities=(WALL, CPU, MEMORY))]


def run(quick: bool) -> list[Row]:
    if quick:
        return [*forks(6, 1, (2, 6)), *strategies(4, 1), *divided(4, 2, 1)]
    return [*forks(HOSTS, 2, FORKS), *strategies(FEW, 2), *divided(HOSTS, PROCESSES, 2)]
