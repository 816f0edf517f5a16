# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a cluster as one document: nodes, partitions, jobs, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import diagnosis
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, USER, Holder, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.queue import QueuedJob


def is_holder(job: QueuedJob) -> bool:
    """Whether it keeps a GPU out of service for the operator. Users cannot submit to that partition."""
    return job.user == USER and job.partition == PARTITION


def minors(job: QueuedJob, node: str, listed: Gres) -> list[int | None]:
    """The minor of each of a job's GPUs on a node; None for one that is not known.

    :param listed: the minors of nodes' GPUs by position.
    """
    count, positions = job.nodes[node]
    there = listed.known(node)
    if positions is None or len(positions) != count:
        return [None] * count
    return [there[one] if one < len(there) else None for one in positions]


def job_row(job: QueuedJob, listed: Gres) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "state": "+".join(job.words),
        "waits": job.waits,
        "reason": job.reason if job.waits else "",
        "waits_for": diagnosis.waits_for(job) if job.waits else "",
        "cpus": job.cpus,
        "gpus": job.gpus,
        "submitted": job.submitted,
        "started": job.started,
        "ends": job.ends,
        "holder": is_holder(job),
        "nodes": [{"name": node, "minors": minors(job, node, listed)} for node in sorted(job.nodes)],
    }


def holdings(jobs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each job of a document with each of its nodes where it has GPUs. Those of holders nobody has."""
    for job in jobs:
        if not job["waits"] and not job["holder"]:
            for node in job["nodes"]:
                if node["minors"]:
                    yield job, node


def node_rows(
    nodes: Mapping[str, Mapping[str, Any]],
    partitions: Iterable[Mapping[str, Any]],
    guards: Mapping[str, float],
    jobs: Iterable[QueuedJob],
    fenced: Mapping[str, list[int | None]],
) -> list[dict[str, Any]]:
    """The nodes by name, with `guard`, when that ends; `takes_jobs`; `gpus_held` and `gpus_free`; and `fenced`.

    A GPU is free where a user's job with it could start now: on a node that takes jobs, in a partition that is up, and
    with a core for it.

    :param partitions: those of users.
    """
    up = {row["name"] for row in partitions if row["state"] == "UP"}
    held: Counter[str] = Counter()
    for job in jobs:
        for name, (gpus, _positions) in job.nodes.items() if is_holder(job) else ():
            held[name] += gpus
    found = []
    for name in sorted(nodes):
        row = dict(nodes[name])
        row["guard"] = guards.get(name)
        row["fenced"] = fenced.get(name, [])
        row["takes_jobs"] = row["takes_jobs"] and not row["guard"] and bool(up & set(row["partitions"]))
        # The holders' GPUs are among those that Slurm calls used.
        row["gpus_held"] = min(held[name], row["gpus_used"])
        row["gpus_free"] = row["gpus_free"] if row["takes_jobs"] else 0
        found.append(row)
    return found


def fenced(holders: Iterable[Holder], listed: Gres) -> dict[str, list[int | None]]:
    """Node -> the minor of each GPU that holders have or get next; None for one that is not known."""
    kept: dict[str, set[int]] = {}
    for one in holders:
        kept.setdefault(one.node, set()).update(one.keeps)
    found: dict[str, list[int | None]] = {}
    for node, positions in kept.items():
        there = listed.known(node)
        found[node] = [there[one] if one < len(there) else None for one in sorted(positions)]
    return found


def count(slurm: Slurm) -> dict[str, Any]:
    """The document of `read` for who looks every few seconds. Raises CallFailed.

    Jobs that wait are not read, however many they are: `waiting` has their number by partition and reason. `stuck` are
    nodes with holders that do not start, and why.
    """
    nodes, guards, jobs, listed = slurm.nodes(), slurm.guards(), slurm.jobs(), slurm.gres()
    partitions, holders = users_partitions(slurm), slurm.holders()
    return {
        "nodes": node_rows(nodes, partitions, guards, jobs, fenced(holders, listed)),
        "partitions": partitions,
        "jobs": [job_row(one, listed) for one in jobs],
        "waiting": slurm.count_waiting(),
        "stuck": {one.node: one.reason for one in holders if one.is_stuck},
    }


def users_partitions(slurm: Slurm) -> list[dict[str, Any]]:
    """The partitions without that of the holders, which is nobody's to submit to."""
    return [row for name, row in slurm.partitions().items() if name != PARTITION]


def read(slurm: Slurm, about: Collection[str] = ()) -> dict[str, Any]:
    """The document. Raises CallFailed.

    :param about: nodes; with some, only their problems are told.
    """
    nodes, guards, jobs = slurm.nodes(), slurm.guards(), slurm.jobs()
    partitions = users_partitions(slurm)
    waiting, total = slurm.waiting()
    theirs = [one for one in waiting if not is_holder(one)]
    listed, holders = slurm.gres(), slurm.holders()
    rows = node_rows(nodes, partitions, guards, jobs, fenced(holders, listed))
    problems = diagnosis.holder_problems(holders)
    if about:
        problems = [one for one in problems if one.subject in about]
        problems += diagnosis.problems([row for row in rows if row["name"] in about])
    else:
        problems += diagnosis.problems(rows, partitions, theirs, slurm.controllers())
    return {
        "nodes": rows,
        "partitions": partitions,
        "jobs": [job_row(one, listed) for one in [*jobs, *waiting]],
        "waiting_total": total - (len(waiting) - len(theirs)),
        "problems": [one.as_dict() for one in problems],
    }
