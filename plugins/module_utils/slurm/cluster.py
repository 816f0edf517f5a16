# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a cluster as one document: nodes, partitions, jobs, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import diagnosis
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, USER, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.queue import QueuedJob


def is_holder(job: QueuedJob) -> bool:
    """Whether it keeps a GPU out of service for the operator. Users cannot submit to that partition."""
    return job.user == USER and job.partition == PARTITION


def minors(job: QueuedJob, node: str, listed: Mapping[str, Sequence[int]]) -> list[int | None]:
    """The minor of each of a job's GPUs on a node; None for one that is not known.

    :param listed: node -> minors of its GPUs by position in gres.conf.
    """
    count, positions = job.nodes[node]
    there = listed.get(node, ())
    if positions is None or len(positions) != count:
        return [None] * count
    return [there[one] if one < len(there) else None for one in positions]


def job_row(job: QueuedJob, listed: Mapping[str, Sequence[int]]) -> dict[str, Any]:
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


def count(slurm: Slurm) -> dict[str, Any]:
    """The document of `read` for who looks every few seconds. Raises CallFailed.

    Jobs that wait are not read, however many they are: `waiting` has their number by partition and reason.
    """
    nodes, jobs, listed = slurm.nodes(), slurm.jobs(), slurm.minors()
    return {
        "nodes": [nodes[name] for name in sorted(nodes)],
        "partitions": users_partitions(slurm),
        "jobs": [job_row(one, listed) for one in jobs],
        "waiting": slurm.count_waiting(),
    }


def users_partitions(slurm: Slurm) -> list[dict[str, Any]]:
    """The partitions without that of the holders, which is nobody's to submit to."""
    return [row for name, row in slurm.partitions().items() if name != PARTITION]


def read(slurm: Slurm, about: Collection[str] = ()) -> dict[str, Any]:
    """The document. Raises CallFailed.

    :param about: nodes; with some, only their problems are told.
    """
    nodes, jobs = slurm.nodes(), slurm.jobs()
    partitions = users_partitions(slurm)
    waiting, total = slurm.waiting()
    theirs = [one for one in waiting if not is_holder(one)]
    listed = slurm.minors()
    if about:
        problems = diagnosis.problems([row for name, row in nodes.items() if name in about])
    else:
        problems = diagnosis.problems(nodes.values(), partitions, theirs, slurm.controllers())
    return {
        "nodes": [nodes[name] for name in sorted(nodes)],
        "partitions": partitions,
        "jobs": [job_row(one, listed) for one in [*jobs, *waiting]],
        "waiting_total": total - (len(waiting) - len(theirs)),
        "problems": [one.as_dict() for one in problems],
    }
