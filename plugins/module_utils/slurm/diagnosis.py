# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a node takes no jobs and why a job waits, in plain words and with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.queue import QueuedJob

RESUME = "`scontrol update nodename={node} state=resume`"


class Known(NamedTuple):
    """A reason of Slurm's: what is in its text in small letters, our code, the cause and the remedy."""

    text: str
    code: str
    cause: str
    remedy: str


# The reasons of nodes by their texts in 24.11; the first that is in the reason counts.
NODE_REASONS = (
    Known(
        "count reported lower than configured",
        "gpus_missing",
        "it has fewer GPUs than slurm.conf says, so it takes no jobs; those that run go on",
        "see which GPU is missing with `gpuops doctor {node}` and mend it; or drain it and let `gpuops up --limit` "
        f"with the controller and the node take it out. Then `systemctl restart slurmd` there, and {RESUME}",
    ),
    Known(
        "low realmemory",
        "memory_missing",
        "it has less memory than slurm.conf says",
        "compare `free -m` there with the modules that it should have. If it is to stay like that, run the playbook "
        f"slurm again, then {RESUME}",
    ),
    Known(
        "low socket*core*thread",
        "cores_missing",
        "it has fewer cores than slurm.conf says",
        "see `slurmd -C` there; was the firmware's setting of threads or cores changed? If it is to stay like that, "
        f"run the playbook slurm again, then {RESUME}",
    ),
    Known(
        "low cpus",
        "cores_missing",
        "it has fewer CPUs than slurm.conf says",
        f"see `slurmd -C` there. If it is to stay like that, run the playbook slurm again, then {RESUME}",
    ),
    Known(
        "prolog error",
        "prolog_failed",
        "its Prolog failed, so the job was put back and is held",
        "see `journalctl -u slurmd` there, mend what the Prolog stumbled over, "
        f"{RESUME}, and `scontrol release JOB` for what is held",
    ),
    Known(
        "epilog error",
        "epilog_failed",
        "its Epilog failed, so what a job has left may be there yet",
        "see `journalctl -t baremetal-gpu-slurm` and `journalctl -u slurmd` there, end what was left, then " + RESUME,
    ),
    Known(
        "kill task failed",
        "not_killed",
        "processes of a job did not end when they were killed",
        "look there for processes in state D with `ps -eo pid,stat,wchan:30,args`; often it is a file system that "
        f"hangs or a GPU that does not answer. Reboot it if they stay, then {RESUME}",
    ),
    Known(
        "unexpectedly rebooted",
        "rebooted",
        "it was booted without Slurm, which lost the jobs that ran there",
        f"see why in `journalctl --boot=-1` there and in the log of its BMC, then {RESUME}",
    ),
    Known(
        "duplicate jobid",
        "two_slurmds",
        "two nodes say that they are this one, or slurmctld lost its state",
        f"see that no other host runs slurmd under this name, restart slurmd there, then {RESUME}",
    ),
    Known(
        "munge",
        "not_trusted",
        "slurmctld and it do not take each other's credentials",
        "see that munge runs there, that its clock is right and its key that of the cluster; the playbook slurm "
        f"puts the key right. Then {RESUME}",
    ),
    Known(
        "not responding",
        "not_responding",
        "slurmctld has heard nothing of its slurmd",
        "see `systemctl status slurmd munge` there, its clock, and port 6818 of it from the controller; "
        "`gpuops doctor {node}` looks at the host",
    ),
)
NOT_RESPONDING = NODE_REASONS[-1]


def node_problem(node: Mapping[str, Any]) -> Problem | None:
    """Why a node (see `state.parse`) takes no jobs; None for one that does."""
    name, told = node["name"], str(node["reason"])
    if node["in_service"] and not node["drained"]:
        return None
    evidence = f"{node['state']}: {told}" if told else node["state"]
    # What the reconciler has drained it puts back by itself.
    if told.startswith("gpuops: "):
        return Problem(
            "fenced",
            name,
            f"the reconciler drained it: {told[len('gpuops: ') :]}",
            node["state"],
            "see `gpuops-reconciler status` on its host for the remedy; once it is mended, "
            f"`gpuops-reconciler clear {name}` there",
        )
    known = next((one for one in NODE_REASONS if one.text in told.lower()), None)
    if known is None and node["drained"]:
        by = f" by {node['reason_by']}" if node["reason_by"] else ""
        since = f" since {node['reason_since'].replace('T', ' ')}" if node["reason_since"] else ""
        cause = f"it was drained{by}{since}: {told or 'no reason given'}"
        remedy = f"ask who drained it, or mend the cause; then {RESUME}".format(node=name)
        return Problem("drained", name, cause, node["state"], remedy)
    if known is None and (not told or node["state"].endswith("*") or "NOT_RESPONDING" in node["state"]):
        known = NOT_RESPONDING
    if known is None:
        return Problem(
            "down",
            name,
            f"it is out of service: {told}",
            node["state"],
            f"see `journalctl -u slurmd` there, mend the cause, then {RESUME}".format(node=name),
        )
    return Problem(known.code, name, known.cause, evidence, known.remedy.format(node=name))


# Why jobs wait. Those with a remedy do not start by themselves.
LAUNCH_FAILED = "launch failed"
WAITS: dict[str, tuple[str, str]] = {
    LAUNCH_FAILED: (
        "its start failed on a node, so it is held",
        "see why that node is drained with `sinfo -R`, then `scontrol release {job}`",
    ),
    "None": ("the scheduler has not come to it yet", ""),
    "Priority": ("others are before it", ""),
    "Resources": ("no node has enough free for it", ""),
    "Dependency": ("it waits for another job", ""),
    "DependencyNeverSatisfied": (
        "the job that it waits for did not end as it wants",
        "cancel it with `scancel {job}`, or `scontrol update jobid={job} dependency=`",
    ),
    "BeginTime": ("its time has not come, or it was put back and waits two minutes", ""),
    "Cleaning": ("what its last start has left is being cleared up", ""),
    "JobArrayTaskLimit": ("its array runs as many tasks as it may at once", ""),
    "Licenses": ("there is no free licence", ""),
    "Reservation": ("its reservation has not begun", ""),
    "ReqNodeNotAvail": (
        "a node that it needs is down, drained or reserved",
        "see `sinfo -R` for the node, or submit it without --nodelist",
    ),
    "NodeDown": ("a node that it needs is down", "see `sinfo -R` for the node"),
    "JobHeldUser": ("its user holds it", ""),
    "JobHeldAdmin": ("it is held", "see why with `scontrol show job {job}`, then `scontrol release {job}`"),
    "JobHoldMaxRequeue": (
        "it was put back too often",
        "see why it fails with `sacct -D -j {job}`, then `scontrol release {job}`",
    ),
    "BadConstraints": (
        "no node has what it asks for",
        "see what it asks for with `scontrol show job {job}`; `scontrol release {job}` if a node has it again, or "
        "`scancel {job}`",
    ),
    "PartitionDown": ("its partition is down", "`scontrol update partitionname={partition} state=up`"),
    "PartitionInactive": ("its partition is inactive", "`scontrol update partitionname={partition} state=up`"),
    "PartitionNodeLimit": (
        "it wants more nodes than its partition has or allows",
        "correct it with `scontrol update jobid={job}`, or cancel it",
    ),
    "PartitionTimeLimit": (
        "it wants more time than its partition allows",
        "`scontrol update jobid={job} timelimit=TIME`, or cancel it",
    ),
    "InvalidAccount": ("its account is gone", "`scontrol update jobid={job} account=ACCOUNT`, or cancel it"),
    "InvalidQOS": ("its QOS is gone", "`scontrol update jobid={job} qos=QOS`, or cancel it"),
    "ReservationDeleted": (
        "its reservation is gone",
        "`scontrol update jobid={job} reservationname=`, or cancel it",
    ),
}
# Limits are many, and their names say whose and of what.
_LIMIT = re.compile(r"(QOS|Assoc)(Max|Grp|Min)?(.*?)(?:PerUser|PerAccount|PerJob|Limit|Minutes|Min|Per.*)?")
_OF = {"GRES": "GPUs", "Cpu": "CPUs", "CPU": "CPUs", "Mem": "memory", "Memory": "memory", "Jobs": "jobs", "Job": "jobs"}


def _word(reason: str) -> str:
    """The word of a reason, which may have the names of nodes behind it."""
    return re.split(r"[,( ]", reason, maxsplit=1)[0]


def _reason(job: QueuedJob) -> str:
    """The reason of a job. What Slurm holds after a start that failed, it calls held by the user."""
    return LAUNCH_FAILED if "launch failed" in job.description else _word(job.reason)


def waits_for(job: QueuedJob) -> str:
    """Why a job waits, in plain words; Slurm's own where there are none."""
    if job.description.startswith("Nodes required for job are"):
        return "the nodes that it could have are full, down, drained or reserved"
    word = _reason(job)
    if word in WAITS:
        return WAITS[word][0]
    limit = _LIMIT.fullmatch(word)
    if limit:
        whose = "QOS" if limit[1] == "QOS" else "account"
        of = _OF.get(limit[3], "")
        return f"a limit of its {whose}{f' on {of}' if of else ''} is reached"
    return job.description or job.reason


def job_problem(job: QueuedJob) -> Problem | None:
    """Why a job will not start by itself; None for one that will."""
    remedy = WAITS.get(_reason(job), ("", ""))[1]
    if not job.waits or not remedy:
        return None
    return Problem(
        "job_waits",
        f"job {job.id}",
        f"the job of {job.user} does not start by itself: {waits_for(job)}",
        f"{job.reason}: {job.description}" if job.description else job.reason,
        remedy.format(job=job.number, partition=job.partition),
    )


def partition_problem(partition: Mapping[str, Any]) -> Problem | None:
    if partition["state"] == "UP":
        return None
    return Problem(
        "partition_closed",
        f"partition {partition['name']}",
        f"its state is {partition['state']}, so no job starts in it",
        partition["state"],
        f"`scontrol update partitionname={partition['name']} state=up` once it may",
    )


def problems(
    nodes: Iterable[Mapping[str, Any]],
    partitions: Iterable[Mapping[str, Any]] = (),
    waiting: Iterable[QueuedJob] = (),
) -> list[Problem]:
    """What keeps Slurm from its work."""
    found = [
        *map(node_problem, nodes),
        *map(partition_problem, partitions),
        *map(job_problem, waiting),
    ]
    return [one for one in found if one is not None]


# What the commands say where they are refused, in small letters.
NO_ANSWER = (
    (
        ("authentication", "credential", "munge"),
        "not_trusted",
        "slurmctld does not take this host's credentials, or munge does not run here",
        "see `systemctl status munge` here, the clock against the controller's, and that /etc/munge/munge.key is the "
        "cluster's; the playbook slurm puts the key right",
    ),
    (
        ("configuration source", "resolve controller", "slurm.conf"),
        "no_configuration",
        "Slurm has no configuration here",
        "see `systemctl status slurmd` here: it brings the configuration from the controller when it starts",
    ),
    (
        ("no such file", "not found"),
        "not_installed",
        "Slurm's commands are not here",
        "run the playbook slurm for this host",
    ),
)


def no_answer(evidence: str) -> Problem:
    """Why slurmctld was not asked, by what the command said."""
    small = evidence.lower()
    for words, code, cause, remedy in NO_ANSWER:
        if any(word in small for word in words):
            return Problem(code, "slurmctld", cause, evidence, remedy)
    return Problem(
        "no_answer",
        "slurmctld",
        "slurmctld does not answer",
        evidence,
        "see `systemctl status slurmctld` and `journalctl -u slurmctld` on the controller, and its port 6817",
    )
