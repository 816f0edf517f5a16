# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster says in numbers: its nodes, partitions and jobs, and who has which GPU.

Series are of what is there now: nodes, partitions, and jobs that have resources. A job that ended has none, and jobs
that wait are counted by a bounded number of reasons. Prometheus itself sets the labels `job` and `instance`, so no
metric has those.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import LEASES, Metrics, Sample
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster, diagnosis
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import HAS_RESOURCES

MIB = 1 << 20
LABEL_AT_MOST = 100
REASONS_AT_MOST = 20
OTHER = "other"
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# What squeue prints in the place of Slurm's word, where slurmctld has described the reason.
_DESCRIBED = {"Nodes required for job are": "Resources", "launch failed": "JobLaunchFailure"}
# Of several words of a job's state the first of these says most.
_STATES = ("COMPLETING", "CONFIGURING", "SUSPENDED", *sorted(HAS_RESOURCES))

METRICS: Metrics = {
    "slurm_controller_up": ("gauge", (), "Whether slurmctld answers."),
    "slurm_database_up": ("gauge", (), "Whether slurmdbd answers; only with accounting."),
    "slurm_last_success_timestamp_seconds": ("gauge", (), "When slurmctld answered last."),
    "slurm_scrape_duration_seconds": ("gauge", (), "How long the answers took."),
    "slurm_node_info": (
        "gauge",
        ("node", "state", "reason", "problem"),
        "State of a node in Slurm's words, and the problem that gpuops sees in it; the value is always 1.",
    ),
    "slurm_node_available": (
        "gauge",
        ("node",),
        "Whether a user's job can start on a node: it answers, is not drained or reserved, and its partition is up.",
    ),
    "slurm_node_cpus": ("gauge", ("node", "state"), "CPUs of a node: allocated or free."),
    "slurm_node_memory_bytes": ("gauge", ("node", "state"), "Memory of a node for jobs: allocated or free."),
    "slurm_node_gpus": (
        "gauge",
        ("node", "state"),
        "GPUs of a node: allocated to jobs of users, held by the reconciler, free, or closed: no job can start there.",
    ),
    "slurm_node_fenced_gpus": (
        "gauge",
        ("node",),
        "GPUs of a node that jobs of the reconciler have or get next, so that no user's job gets them.",
    ),
    "slurm_holder_stuck": (
        "gauge",
        ("node", "reason"),
        "A job of the reconciler's that is to keep a bad GPU out of service and does not start; the value is always 1.",
    ),
    "slurm_partition_info": ("gauge", ("partition", "state"), "State of a partition; the value is always 1."),
    "slurm_jobs": ("gauge", ("partition", "state"), "Jobs of users that wait or have resources."),
    "slurm_jobs_waiting": (
        "gauge",
        ("reason",),
        f"Jobs of users that wait, by Slurm's reason; those beyond the {REASONS_AT_MOST} most frequent are {OTHER}.",
    ),
    **LEASES,
}


def _text(value: object) -> str:
    return one_line(value, LABEL_AT_MOST)


def _nodes(found: Mapping[str, Any]) -> Iterator[Sample]:
    for row in found["nodes"]:
        label = {"node": _text(row["name"])}
        problem = diagnosis.node_problem(row)
        yield (
            "slurm_node_info",
            {
                **label,
                "state": _text(row["state"]),
                "reason": _text(row["reason"]) or None,
                "problem": problem.code if problem else None,
            },
            1.0,
        )
        yield "slurm_node_available", label, float(row["takes_jobs"])
        if row["gpus"]:
            yield "slurm_node_fenced_gpus", label, float(len(row["fenced"]))
        used_mib = row["memory_mib"] - row["free_memory_mib"]
        for name, values in (
            ("slurm_node_cpus", {"allocated": row["cpus"] - row["free_cpus"], "free": row["free_cpus"]}),
            ("slurm_node_memory_bytes", {"allocated": used_mib * MIB, "free": row["free_memory_mib"] * MIB}),
            (
                "slurm_node_gpus",
                {
                    "allocated": row["gpus_used"] - row["gpus_held"],
                    "held": row["gpus_held"],
                    "free": row["gpus_free"],
                    "closed": max(0, row["gpus"] - row["gpus_used"] - row["gpus_free"]),
                }
                if row["gpus"]
                else {},
            ),
        ):
            for state, value in values.items():
                yield name, {**label, "state": state}, float(value)


def _state(words: str) -> str:
    told = words.split("+")
    return next((word for word in _STATES if word in told), OTHER.upper())


def _reason(told: str) -> str:
    """Slurm's word for why a job waits, without the nodes behind it."""
    for begin, word in _DESCRIBED.items():
        if told.startswith(begin):
            return word
    word = re.split("[,(]", told, maxsplit=1)[0]
    return word if _REASON.fullmatch(word) else OTHER


def _jobs(found: Mapping[str, Any]) -> Iterator[Sample]:
    counts = Counter((_text(job["partition"]), _state(job["state"])) for job in found["jobs"] if not job["holder"])
    reasons: Counter[str] = Counter()
    for (partition, told), count in found["waiting"].items():
        counts[_text(partition), "PENDING"] += count
        reasons[_reason(told)] += count
    for (partition, state), count in sorted(counts.items()):
        yield "slurm_jobs", {"partition": partition, "state": state}, float(count)
    kept = sorted((reason for reason in reasons if reason != OTHER), key=lambda one: (-reasons[one], one))
    kept = kept[:REASONS_AT_MOST]
    for reason in kept:
        yield "slurm_jobs_waiting", {"reason": reason}, float(reasons[reason])
    rest = sum(reasons.values()) - sum(reasons[reason] for reason in kept)
    if rest:
        yield "slurm_jobs_waiting", {"reason": OTHER}, float(rest)


def _leases(found: Mapping[str, Any]) -> Iterator[Sample]:
    for job, node in cluster.holdings(found["jobs"]):
        lease = {"scheduler": "slurm", "host": _text(node["name"]), "job_id": _text(job["id"])}
        names = {key: _text(job[key]) for key in ("user", "account", "partition")}
        names["job_name"] = _text(job["name"])
        # A job has one series for all of its GPUs that Slurm does not tell: a series comes once.
        for minor in dict.fromkeys(node["minors"]):
            yield "gpu_lease_info", {**lease, "minor": minor, **names}, 1.0
        if job["started"] is not None:
            yield "gpu_lease_start_timestamp_seconds", lease, job["started"]


def samples(found: Mapping[str, Any]) -> Iterator[Sample]:
    """What the document of `cluster.count` says in numbers."""
    yield from _nodes(found)
    for row in found["partitions"]:
        labels = {"partition": _text(row["name"]), "state": _text(row["state"])}
        yield "slurm_partition_info", labels, 1.0
    for node, reason in sorted(found["stuck"].items()):
        yield "slurm_holder_stuck", {"node": _text(node), "reason": _reason(reason)}, 1.0
    yield from _jobs(found)
    yield from _leases(found)
