# SPDX-License-Identifier: GPL-3.0-or-later
"""A finished site of many hosts: what another run of site.yml costs the controller, and what the hosts' facts cost it.

The hosts do not exist: a connection plugin answers for them at once with what a finished host of the lab answered, so
CPU and memory are the controller's alone. A task-host is one task on one host, done or skipped. The goal is for its
CPU time: at most 1.35 times that of 50 hosts, so the ratio must be at least 0.74. It is for `gpuops up`, in which hosts
take turns after the preflight of all; one ansible-playbook for 300 hosts is measured too.

Memory is that of all processes of a run together. Ansible's own facts, for the comparison, are what `setup` says about
the machine that measures. Since that may be a small one, they are also measured enlarged by hand: its first disk,
interface, mount and its processors are repeated as often as a server with GPUs has them.

A host costs some seconds of CPU, so larger fleets run less often. BENCH_SCALE_HOSTS is the largest number of hosts to
measure, 1,000 by default; 3,000 hosts run once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import run_fleet
from tests.bench.harness import (
    Figure,
    Row,
    Run,
    Sample,
    child,
    compare,
    paired,
)

HERE = Path(__file__).parent
SITE = run_fleet.ROOT / "playbooks" / "site.yml"
FEW = 50
MOST = int(os.environ.get("BENCH_SCALE_HOSTS", "1000"))
FACTS = 1_000
GOAL = 0.74
MEMORY_GOAL = 3.0
# What a server with eight GPUs tells of itself: threads, disks, network interfaces with those of containers, mounts.
THREADS, DISKS, INTERFACES, MOUNTS = 256, 32, 40, 40
# What each() makes of a run.
TASK_HOST = ("cpu_s", "CPU of a task-host", "ms")


def fleet(playbook: Path, hosts: int, answers: Path = run_fleet.ANSWERS, **environment: str) -> Run:
    """A run of a playbook on so many hosts."""
    environment = {"ANSIBLE_FORKS": "20", **environment}
    return lambda: child("tests.bench.run_fleet", playbook, str(hosts), answers, environment=environment)


def each(sample: Sample) -> Sample:
    """The CPU time of a task-host in milliseconds, in the place of the whole."""
    return Sample(sample.cpu_s * 1000 / int(sample.outcome), sample.memory_mib, sample.outcome, sample.wall_s)


def scale(
    way: str, on: Callable[[int], Run], few: int, many: Mapping[int, int], goals: Mapping[str, float]
) -> Iterator[Row]:
    """What a task-host costs with few and with many hosts.

    :param way: what is run.
    :param on: runs it on so many hosts.
    :param many: how many, and in how many pairs of runs.
    """
    small = on(few)
    control = [(each(one), each(other)) for one, other in paired(small, small, max(many.values(), default=1))]
    for hosts, pairs in many.items():
        found = [(each(one), each(other)) for one, other in paired(small, on(hosts), pairs)]
        what = f"{way} on {hosts:,} finished hosts against {few}"
        yield from compare(what, found, goals, control, quantities=(TASK_HOST,))
        yield from _large(f"{way} on {hosts:,} finished hosts", hosts, [other for _one, other in found])


def _large(what: str, hosts: int, samples: Sequence[Sample]) -> Iterator[Row]:
    tasks = int(samples[0].outcome) / hosts
    for quantity, unit, values in (
        ("CPU of a host", "s", [sample.cpu_s * tasks / 1000 for sample in samples]),
        ("memory", "MiB", [sample.memory_mib for sample in samples]),
        ("wall", "s", [sample.wall_s for sample in samples]),
    ):
        yield Figure.of(f"{what}, {tasks:g} tasks each", quantity, unit, values)


def of_a_server(answer: dict[str, Any]) -> dict[str, Any]:
    """Hand-made: what setup told of this machine, told of a server."""
    told = dict(answer["ansible_facts"])
    disk = max(told["ansible_devices"].values(), key=lambda row: len(json.dumps(row)))
    device = told[f"ansible_{told['ansible_default_ipv4']['interface']}"]
    names = [f"eth{number}" for number in range(INTERFACES)]
    told.update(
        ansible_processor=[str(n) if not n % 3 else told["ansible_processor"][n % 3] for n in range(3 * THREADS)],
        ansible_devices={f"sd{number}": disk for number in range(DISKS)},
        ansible_mounts=[{**told["ansible_mounts"][0], "mount": f"/mnt/{number}"} for number in range(MOUNTS)],
        ansible_interfaces=names,
        **{f"ansible_{name}": {**device, "device": name} for name in names},
    )
    return {**answer, "ansible_facts": told}


def facts(hosts: int, pairs: int, folder: Path) -> list[Row]:
    """Memory and CPU for the facts of all hosts: Ansible's own against the collection's."""
    said = subprocess.run(
        [str(Path(sys.executable).with_name("ansible")), "localhost", "-m", "setup", "--tree", str(folder)],
        env={**os.environ, "ANSIBLE_CONFIG": str(run_fleet.ROOT / "ansible.cfg")},
        capture_output=True,
        check=False,
    )
    if said.returncode:
        raise SystemExit(f"setup ended with {said.returncode}: {said.stdout.decode()[-2000:]}")
    full = json.loads((folder / "localhost").read_text())
    ours = json.loads(run_fleet.ANSWERS.read_text())
    mine = fleet(HERE / "facts_gpu.yml", hosts)
    control = paired(mine, mine, 1)
    rows: list[Row] = []
    goal, none = {"memory_mib": MEMORY_GOAL}, dict[str, float]()
    for of, answer, goals, times in (
        ("this machine", full, none, 1),
        ("a server, by hand", of_a_server(full), goal, pairs),
    ):
        answers = folder / "answers.json"
        answers.write_text(json.dumps({**ours, "ansible.builtin.setup": answer}))
        theirs = fleet(HERE / "facts_setup.yml", hosts, answers)
        sizes = [len(json.dumps(row["ansible_facts"])) / 1000 for row in (answer, ours["baremetal.gpu.gpu_facts"])]
        what = f"facts of {hosts:,} hosts: setup's {sizes[0]:.0f} kB ({of}) against {sizes[1]:.1f} kB of gpu_facts"
        rows += compare(what, paired(theirs, mine, times), goals, control)
    return rows


def divided(hosts: int) -> Run:
    return fleet(SITE, hosts, BENCH_UP="")


def undivided(hosts: int) -> Run:
    return fleet(SITE, hosts)


def run(quick: bool) -> list[Row]:
    goals = {"cpu_s": GOAL}
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        if quick:
            return [
                *scale("gpuops up", divided, 3, {6: 1}, goals),
                *scale("site.yml", undivided, 3, {6: 1}, {}),
                *facts(20, 1, Path(folder)),
            ]
        many = {hosts: pairs for hosts, pairs in {300: 1, 1_000: 1, 3_000: 1}.items() if hosts <= MOST}
        return [
            *scale("gpuops up", divided, FEW, many, goals),
            *scale("site.yml", undivided, FEW, {300: 1}, {}),
            *facts(FACTS, 3, Path(folder)),
        ]
