# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job of every kind on one node of Slurm: batch, interactive, an array, one with a GPU, one beyond its memory, and an
all-reduce over its GPUs. And an all-reduce over several nodes.

They are small, have one name, and are cancelled at the end. One that is left behind by a run that was killed is thrown
away by slurmctld when its deadline passes. Their output goes nowhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import collective
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import TIMED_OUT, Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import maintenance, state
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, Slurm

SBATCH, SRUN, SCANCEL, SACCT = (f"/usr/bin/{name}" for name in ("sbatch", "srun", "scancel", "sacct"))
MEMORY_MIB = 500
# A job may have this much, and takes three times as much.
FEW_MIB = 100
START_S, PATIENCE_S = 60, 150.0
ACCOUNTING_S, POLL_S = 30.0, 2.0
BUSY = collective.BUSY
OUT_OF_MEMORY = re.compile(r"\boom[ _-]?kill|out of memory|out_of_memory", re.IGNORECASE)
NO_ACCOUNTING = "accounting storage is disabled"

Row = dict[str, Any]


def _told(ok: bool | None, text: str) -> Row:
    return {"ok": ok, "text": one_line(text, 300)}


class Node:
    """A node on which jobs are run, by root, on a host with Slurm's commands."""

    def __init__(
        self,
        run: Run,
        row: Mapping[str, Any],
        name: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._row, self._name, self._clock, self._sleep = run, row, name, clock, sleep
        self._job = ""

    def _words(self, program: str, *more: str) -> list[str]:
        common = (
            f"--job-name={self._name}",
            f"--partition={_partitions(self._row)[0]}",
            f"--nodelist={self._row['name']}",
        )
        return [program, *common, "--nodes=1", "--ntasks=1", "--time=2", "--deadline=now+5minutes", "--chdir=/", *more]

    def _ended(self, status: int, out: str, error: str, what: str) -> Row:
        said = error or out
        if status == TIMED_OUT or any(text in said for text in BUSY):
            return _told(None, f"{what} did not start in time: the node has other jobs")
        return _told(status == 0, f"{what} ended well" if status == 0 else f"{what} ended with {status}: {said}")

    def _interactive(self, *words: str) -> tuple[int, str, str]:
        return self._run(self._words(SRUN, f"--immediate={START_S}", *words), None, PATIENCE_S)

    def batch(self, *more: str) -> Row:
        words = ("--wait", "--parsable", "--output=/dev/null", f"--mem={FEW_MIB}M", *more, "--wrap=true")
        status, out, error = self._run(self._words(SBATCH, *words), None, PATIENCE_S)
        number = re.match(r"\d{1,10}", out)
        if number and not more:
            self._job = number[0]
        return self._ended(status, out, error, f"job {number[0]}" if number else "the job")

    def array(self) -> Row:
        return self.batch("--array=0-1")

    def interactive(self) -> Row:
        status, out, error = self._interactive(f"--mem={FEW_MIB}M", "hostname")
        found = self._ended(status, out, error, "srun")
        if found["ok"] and not out.strip():
            return _told(False, "srun ended well, but nothing of what the job printed came back")
        return found

    def gpu(self) -> Row:
        if self._row["gpus_used"] >= self._row["gpus"]:
            return _told(None, "no GPU of the node is free")
        status, out, error = self._interactive(f"--mem={MEMORY_MIB}M", "--gres=gpu:1", "nvidia-smi", "-L")
        found = self._ended(status, out, error, "the job with a GPU")
        seen = len(re.findall(r"^GPU \d+:", out, re.MULTILINE))
        if not found["ok"]:
            return found
        return _told(seen == 1, f"a job with one GPU of {self._row['gpus']} sees {seen}")

    def memory(self) -> Row:
        """A job that takes more memory than it asked for is ended."""
        work = f"bytearray({3 * FEW_MIB} << 20)"
        status, out, error = self._interactive(f"--mem={FEW_MIB}M", "python3", "-c", work)
        if status == TIMED_OUT or any(text in error for text in BUSY):
            return self._ended(status, out, error, "the job")
        if status == 0:
            return _told(False, f"a job with {FEW_MIB} MiB took {3 * FEW_MIB} MiB and was not ended")
        if OUT_OF_MEMORY.search(error + out):
            return _told(True, f"a job with {FEW_MIB} MiB that took more was ended")
        return _told(None, f"the job ended with {status}, and not for its memory: {error or out}")

    def collective(self, python: str) -> Row:
        """An all-reduce over all GPUs of the node."""
        node, gpus, partition = self._row["name"], self._row["gpus"], _partitions(self._row)[0]
        if (
            self._row["gpus_used"]
            or self._row["free_cpus"] < gpus
            or self._row["free_memory_mib"] < collective.MEMORY_MIB
        ):
            return _told(None, "other jobs have GPUs, cores or memory of the node")
        found = collective.with_perf(self._run, self._name, partition, node, gpus)
        if found is None:
            addresses = {node: "127.0.0.1"}
            found = collective.with_torch(self._run, self._name, partition, [node], gpus, gpus, python, addresses)
        return found

    def accounting(self) -> Row | None:
        """Whether the batch job has come to the accounting; None for a cluster without one."""
        if not self._job:
            return _told(None, "there is no job to look for")
        deadline = self._clock() + ACCOUNTING_S
        words = [SACCT, "--noheader", "--parsable2", "--allocations", f"--jobs={self._job}", "--format=State,NodeList"]
        while True:
            status, out, error = self._run(words, None, 20.0)
            if NO_ACCOUNTING in error + out:
                return None
            ended, _bar, node = out.strip().partition("|")
            if status == 0 and ended == "COMPLETED" and node == self._row["name"]:
                return _told(True, f"the accounting has job {self._job}")
            if self._clock() >= deadline:
                said = (error or out).strip() or "nothing"
                return _told(False, f"of job {self._job} the accounting has after {ACCOUNTING_S:.0f} s: {said}")
            self._sleep(POLL_S)

    def cancel(self) -> None:
        """What is left of them. Nobody else has jobs of that name."""
        self._run([SCANCEL, f"--name={self._name}", "--quiet"], None, 20.0)


def kinds(node: Node, gpus: int, python: str) -> dict[str, Row]:
    """A job of each kind: {kind: {ok, text}}."""
    found: dict[str, Row] = {}
    try:
        for kind, work in (("batch", node.batch), ("array", node.array), ("interactive", node.interactive)):
            found[kind] = work()
        if gpus:
            found["gpu"] = node.gpu()
        if gpus > 1:
            found["collective"] = node.collective(python)
        found["memory"] = node.memory()
        accounted = node.accounting()
        if accounted is not None:
            found["accounting"] = accounted
    finally:
        node.cancel()
    return found


def takes_jobs(row: Mapping[str, Any]) -> bool:
    return state.is_open(row) and bool(_partitions(row))


def _partitions(row: Mapping[str, Any]) -> Sequence[str]:
    return [name for name in row["partitions"] if name != PARTITION]


def check(run: Run, node: str, name: str, python: str = "python3") -> dict[str, Any]:
    """{node, state, reason, owner, why, kinds}; no job is run on a node that takes none. Raises what Slurm() raises."""
    row = maintenance.find(Slurm(run), node)
    found = {key: row[key] for key in ("state", "reason", "in_service", "drained")}
    found["takes_jobs"] = takes_jobs(row)
    found |= {"node": node, "owner": maintenance.owner(row), "why": "", "kinds": {}}
    if not takes_jobs(row):
        return {**found, "why": "the node takes no jobs" if _partitions(row) else "the node is in no partition"}
    if row["free_cpus"] < 1 or row["free_memory_mib"] < MEMORY_MIB:
        return {**found, "why": "the jobs of others take all of the node"}
    return {**found, "kinds": kinds(Node(run, row, name), row["gpus"], python)}


def between(run: Run, addresses: Mapping[str, str], name: str, python: str = "python3") -> dict[str, Any]:
    """{nodes, ok, text}: an all-reduce over those nodes that have nothing else to do. Raises what Slurm() raises.

    :param addresses: by which the nodes reach each other.
    """
    known = Slurm(run).nodes()
    rows = [known[node] for node in sorted(addresses) if node in known and takes_jobs(known[node])]
    free = [row for row in rows if not row["busy"] and row["free_memory_mib"] >= collective.MEMORY_MIB]
    if not free:
        return {"nodes": [], **_told(None, "no node is free")}
    # Slurm gives a job nodes of one partition.
    partition = max({part for row in free for part in _partitions(row)}, key=lambda part: _count(free, part))
    chosen = [row for row in free if partition in _partitions(row)]
    nodes = [row["name"] for row in chosen]
    if len(nodes) < 2:
        return {"nodes": nodes, **_told(None, "fewer than two nodes of a partition are free")}
    gpus = min(row["gpus"] for row in chosen)
    try:
        found = collective.with_torch(run, name, partition, nodes, max(gpus, 1), gpus, python, addresses)
    finally:
        run([SCANCEL, f"--name={name}", "--quiet"], None, 20.0)
    return {"nodes": nodes, **found}


def _count(rows: Sequence[Mapping[str, Any]], partition: str) -> tuple[int, str]:
    return sum(partition in row["partitions"] for row in rows), partition
