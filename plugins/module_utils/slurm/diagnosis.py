# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a node takes no jobs and why a job waits, in plain words and with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import known_texts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.known_texts import Known
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import (
    FENCE_MARK,
    HEALTH_CHECK_MARK,
    OPERATOR_MARK,
    REFUSAL,
    USER,
    Holder,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.queue import QueuedJob

RESUME = "`sudo scontrol update nodename={node} state=resume`"


# The reasons of nodes by their texts in 24.11; the first that is in the reason counts.
NODE_REASONS = (
    Known(
        "count reported lower than configured",
        "gpus_missing",
        "it has fewer GPUs than slurm.conf says, so it accepts no jobs; running jobs continue",
        "see which GPU is missing with `gpuops doctor {node}` and repair it; or drain the node and remove the GPU from "
        "Slurm with `gpuops up --limit` for the controller and the node. Then `sudo systemctl restart slurmd` there, "
        f"and {RESUME}",
    ),
    Known(
        "low realmemory",
        "memory_missing",
        "it has less memory than slurm.conf says",
        "compare `free -m` there with the memory that it should have. If the change is intended, run "
        f"`gpuops up --tags slurm`, then {RESUME}",
    ),
    Known(
        "low socket*core*thread",
        "cores_missing",
        "it has fewer cores than slurm.conf says",
        "see `slurmd -C` there; check the firmware's settings of threads and cores. If the change is intended, "
        f"run `gpuops up --tags slurm`, then {RESUME}",
    ),
    Known(
        "low cpus",
        "cores_missing",
        "it has fewer CPUs than slurm.conf says",
        f"see `slurmd -C` there. If the change is intended, run `gpuops up --tags slurm`, then {RESUME}",
    ),
    Known(
        "prolog error",
        "prolog_failed",
        "its Prolog failed, so the job was requeued and is held",
        f"see `sudo journalctl -u slurmd` there, fix the cause, {RESUME}, and `sudo scontrol release JOB` for the "
        "held job",
    ),
    Known(
        "epilog error",
        "epilog_failed",
        "its Epilog failed, so processes and settings of a job may be left",
        "see `sudo journalctl -t baremetal-gpu-slurm` and `sudo journalctl -u slurmd` there, fix the cause, then "
        "" + RESUME,
    ),
    Known(
        "kill task failed",
        "not_killed",
        "processes of a job did not end when they were killed",
        "look there for processes in state D with `ps -eo pid,stat,wchan:30,args`; often it is a file system that "
        f"hangs or a GPU that does not answer. Reboot it if they stay. When none is left, {RESUME}",
    ),
    Known(
        "unexpectedly rebooted",
        "rebooted",
        "it rebooted without Slurm, and its jobs are lost",
        f"see why in `sudo journalctl --boot=-1` there and in the log of its BMC, then {RESUME}",
    ),
    Known(
        "duplicate jobid",
        "two_slurmds",
        "two hosts register as this node, or slurmctld lost its state",
        f"see that no other host runs slurmd under this name, restart slurmd there, then {RESUME}",
    ),
    Known(
        "slurmdspooldir is full",
        "disk_full",
        "the file system of its SlurmdSpoolDir is full, so no job can be started there",
        f"see `df -h /var/lib/slurm/slurmd` there and make room, then {RESUME}",
    ),
    Known(
        "low tmpdisk",
        "disk_missing",
        "its TmpFS has less space than the TmpDisk of slurm.conf",
        f"see `df -h /tmp` there. If the change is intended, correct TmpDisk in slurm.conf, then {RESUME}",
    ),
    Known(
        "batch job complete failure",
        "launch_failed",
        "a batch job could not be started or ended there",
        f"see `sudo journalctl -u slurmd` there, fix the cause, then {RESUME}",
    ),
    Known(
        "reboot asap",
        "reboots",
        "Slurm reboots it as soon as its jobs have ended",
        "wait for it; `sudo scontrol cancel_reboot {node}` takes the order back",
    ),
    Known(
        "reboot timed out",
        "not_rebooted",
        "Slurm rebooted it, and it did not register in time",
        f"see its console or BMC and `sudo journalctl -u slurmd` there, then {RESUME}",
    ),
    Known(
        "resumetimeout",
        "not_resumed",
        "Slurm switched it on, and it did not register in time",
        f"see its console or BMC and `sudo journalctl -u slurmd` there, then {RESUME}",
    ),
    Known(
        "gres/",
        "gres_wrong",
        "its GPUs are not what slurm.conf and gres.conf say",
        f"compare `nvidia-smi -L` and `slurmd -G` there with gres.conf; run `gpuops up --tags slurm`, then {RESUME}",
    ),
    Known(
        "munge",
        "not_trusted",
        "slurmctld and the node do not accept each other's credentials",
        "see that munge runs there with the key of the cluster, and that the clock is right; the playbook slurm "
        f"replaces a wrong key. Then {RESUME}",
    ),
    Known(
        "not responding",
        "not_responding",
        "slurmctld cannot reach its slurmd",
        "see `systemctl status slurmd munge` and the clock there, and its port 6818 from the controller; "
        "`gpuops doctor {node}` examines the host",
    ),
)
NOT_RESPONDING = NODE_REASONS[-1]


def node_problem(node: Mapping[str, Any]) -> Problem | None:
    """Why a node (see `state.parse`) takes no jobs; None for one that does."""
    name, told = node["name"], str(node["reason"])
    if node["in_service"] and not node["drained"]:
        return _closed(node)
    evidence = f"{node['state']}: {told}" if told else node["state"]
    if told.startswith(HEALTH_CHECK_MARK):
        return Problem(
            "not_fenced",
            name,
            f"its health check drained it: {told[len(HEALTH_CHECK_MARK) :]}",
            node["state"],
            "see with `sudo gpuops-reconciler status` whether the reconciler runs on its host: it takes the node over. "
            f"Without one, repair the GPU (`gpuops doctor {name}` has the remedy), then {RESUME.format(node=name)}",
        )
    # What the reconciler has drained it puts back by itself.
    if told.startswith(FENCE_MARK):
        return Problem(
            "fenced",
            name,
            f"the reconciler drained it: {told[len(FENCE_MARK) :]}",
            node["state"],
            "see `sudo gpuops-reconciler status` on its host for the remedy; once it is repaired, "
            f"`sudo gpuops-reconciler clear {name}` there",
        )
    if told.startswith(OPERATOR_MARK):
        by, since = node["reason_by"], node["reason_since"].replace("T", " ")
        return Problem(
            "maintenance",
            name,
            f"gpuops drain took it out{f' for {by}' if by else ''}{f' since {since}' if since else ''}: "
            f"{told[len(OPERATOR_MARK) :]}",
            node["state"],
            f"once it is well, `gpuops restore {name}`",
        )
    known = known_texts.first(NODE_REASONS, told)
    if known is None and node["drained"] and node["reason_by"] == USER:
        return Problem(
            "drained_by_slurm",
            name,
            f"Slurm itself drained it: {told or 'no reason given'}",
            node["state"],
            "see `sudo journalctl -u slurmctld` on the controller and `sudo journalctl -u slurmd` there, fix the "
            "cause, then "
            f"{RESUME}".format(node=name),
        )
    if known is None and node["drained"]:
        by = f" by {node['reason_by']}" if node["reason_by"] else ""
        since = f" since {node['reason_since'].replace('T', ' ')}" if node["reason_since"] else ""
        cause = f"it was drained{by}{since}: {told or 'no reason given'}"
        remedy = f"ask who drained it, or fix the cause; then {RESUME}".format(node=name)
        return Problem("drained", name, cause, node["state"], remedy)
    if known is None and (not told or node["state"].endswith("*") or "NOT_RESPONDING" in node["state"]):
        known = NOT_RESPONDING
    if known is None:
        return Problem(
            "down",
            name,
            f"it is out of service: {told}",
            node["state"],
            f"see `sudo journalctl -u slurmd` there, fix the cause, then {RESUME}".format(node=name),
        )
    return Problem(known.code, name, known.cause, evidence, known.remedy.format(node=name))


# Nodes that are well and closed, by `state.closed`, "guard" among them: code, cause and remedy.
CLOSED = {
    "guard": (
        "guarded",
        "the reconciler keeps it closed while it takes a bad GPU out of service",
        "see `gpuops-reconciler status` on its host; a guard that stays for minutes has holders that do not start",
    ),
    "maintenance": (
        "reserved_for_maintenance",
        "it is reserved for maintenance",
        "`scontrol show reservation` tells by whom and until when; it takes jobs again after that",
    ),
    "reserved": (
        "reserved",
        "a reservation keeps it for others",
        "`scontrol show reservation` tells for whom and until when; they submit with --reservation",
    ),
    "failing": (
        "failing",
        "it was marked as failing",
        "ask who did; once it is well, " + RESUME,
    ),
    "rebooting": (
        "reboots",
        "Slurm is to reboot it, or has and waits for it",
        "wait for it; `sudo scontrol cancel_reboot {node}` takes an order back that has not begun",
    ),
    "powering_down": ("powered_down", "Slurm switches it off to save energy", "none is needed: Slurm switches it on"),
    "powering_up": ("powers_up", "Slurm switches it on", "wait until it has booted"),
}


def _closed(node: Mapping[str, Any]) -> Problem | None:
    kind = "guard" if node.get("guard") else state.closed(node["state"])
    if not kind:
        return None
    code, cause, remedy = CLOSED[kind]
    told = str(node["reason"])
    evidence = f"{node['state']}: {told}" if told else node["state"]
    return Problem(code, node["name"], cause, evidence, remedy.format(node=node["name"]))


# Why jobs wait. Those with a remedy do not start by themselves.
OTHER_SIZE = (
    "see what it asks for with `scontrol show job {job}`, and the limits with `sacctmgr show qos` and `sacctmgr show "
    "assoc`; cancel it and submit it with another size or --time"
)
LAUNCH_FAILED = "launch failed"
MAINTENANCE, RESERVED = "reserved for maintenance", "may be reserved"
WAITS: dict[str, tuple[str, str]] = {
    LAUNCH_FAILED: (
        "its start failed on a node, so it is held",
        "see why that node is drained with `sinfo -R`, then `sudo scontrol release {job}`",
    ),
    "None": ("the scheduler has not considered it yet", ""),
    "Priority": ("jobs with a higher priority come first", ""),
    "Resources": ("no node has enough free resources", ""),
    "Dependency": ("it depends on another job", ""),
    "DependencyNeverSatisfied": (
        "the job that it depends on ended otherwise than it requires",
        "cancel it with `sudo scancel {job}`, or `sudo scontrol update jobid={job} dependency=`",
    ),
    "BeginTime": ("its start time is in the future, or it was requeued and waits for half a minute", ""),
    "Cleaning": ("Slurm is cleaning up after its last start", ""),
    "JobArrayTaskLimit": ("its array already runs as many tasks as allowed", ""),
    "Licenses": ("there is no free licence", ""),
    "Reservation": ("its reservation has not begun", ""),
    "ReqNodeNotAvail": ("a node that it needs is down, drained or reserved", "see `sinfo -R` for the node"),
    MAINTENANCE: (
        "nodes are reserved for maintenance before it would end: it starts after that, or now with a shorter --time",
        "",
    ),
    RESERVED: ("the nodes that it needs are kept for jobs that come first, or are reserved", ""),
    "NodeDown": ("a node that it needs is down", "see `sinfo -R` for the node"),
    "JobHeldUser": ("its user holds it (`scontrol hold`)", ""),
    "JobHeldAdmin": ("it is held", "see why with `scontrol show job {job}`, then `sudo scontrol release {job}`"),
    "JobHoldMaxRequeue": (
        "it was requeued too often",
        "see why it fails with `sacct -D -j {job}`, then `sudo scontrol release {job}`",
    ),
    "BadConstraints": (
        "no node can ever satisfy its request",
        "see what it asks for with `scontrol show job {job}`; `sudo scontrol release {job}` if a node has it again, or "
        "`sudo scancel {job}`",
    ),
    "PartitionDown": ("its partition is down", "`sudo scontrol update partitionname={partition} state=up`"),
    "PartitionInactive": ("its partition is inactive", "`sudo scontrol update partitionname={partition} state=up`"),
    "PartitionNodeLimit": (
        "it requests more nodes than its partition has or allows",
        "`sudo scontrol update jobid={job} numnodes=NUMBER`, or cancel it with `sudo scancel {job}`",
    ),
    "PartitionTimeLimit": (
        "it requests more time than its partition allows",
        "`sudo scontrol update jobid={job} timelimit=TIME`, or cancel it",
    ),
    "InvalidAccount": (
        "its account no longer exists",
        "`sudo scontrol update jobid={job} account=ACCOUNT`, or cancel it",
    ),
    "InvalidQOS": ("its QOS no longer exists", "`sudo scontrol update jobid={job} qos=QOS`, or cancel it"),
    "ReservationDeleted": (
        "its reservation no longer exists",
        "`sudo scontrol update jobid={job} reservationname=`, or cancel it",
    ),
}
# Limits are many, and their names say whose and of what.
_LIMIT = re.compile(r"(QOS|Assoc)(Max|Grp|Min)?(.*?)(?:PerUser|PerAccount|PerJob|Limit|Minutes|Min|Per.*)?")
# Limits on one job: it waits for ever, whatever else ends.
_OF_ONE_JOB = re.compile(r"(?:QOS|Assoc)(?:\w*Per(?:Job|Node)\w*|Min\w+|TimeLimit)")
_OF = {"GRES": "GPUs", "Cpu": "CPUs", "CPU": "CPUs", "Mem": "memory", "Memory": "memory", "Jobs": "jobs", "Job": "jobs"}


def _word(reason: str) -> str:
    """The word of a reason, which may have the names of nodes behind it."""
    return re.split(r"[,( ]", reason, maxsplit=1)[0]


def _reason(job: QueuedJob) -> str:
    """The reason of a job. What Slurm holds after a start that failed, it calls held by the user."""
    if "launch failed" in job.description:
        return LAUNCH_FAILED
    word, told = _word(job.reason), f"{job.reason} {job.description}".lower().replace("_", " ")
    if word != "ReqNodeNotAvail":
        return word
    return next((kind for kind in (MAINTENANCE, RESERVED) if kind in told), "ReqNodeNotAvail")


def waits_for(job: QueuedJob) -> str:
    """Why a job waits, in plain words; Slurm's own where there are none. With the last node that refused it."""
    refusal = REFUSAL.search(job.note)
    return _waits_for(job) + (f"; refused by {refusal[1]}" if refusal else "")


def _waits_for(job: QueuedJob) -> str:
    if job.description.startswith("Nodes required for job are"):
        return "the nodes that could run it are full, down, drained or reserved"
    word = _reason(job)
    if word in WAITS:
        return WAITS[word][0]
    limit = _LIMIT.fullmatch(word)
    if limit:
        whose = "QOS" if limit[1] == "QOS" else "account"
        if _OF_ONE_JOB.fullmatch(word):
            than = "more time" if re.search("Wall|Time", word) else "less" if "Min" in word[:9] else "more"
            return f"it asks for {than} than its {whose} lets one job have"
        of = _OF.get(limit[3], "")
        return f"a limit of its {whose}{f' on {of}' if of else ''} is reached"
    return job.description or job.reason


def job_problem(job: QueuedJob) -> Problem | None:
    """Why a job will not start by itself; None for one that will."""
    word = _reason(job)
    remedy = WAITS.get(word, ("", ""))[1] or (OTHER_SIZE if _OF_ONE_JOB.fullmatch(word) else "")
    if not job.waits or not remedy:
        return None
    if word == "ReqNodeNotAvail" and job.wanted_nodes:
        remedy += ", or submit it without --nodelist"
    return Problem(
        "job_waits",
        f"job {job.id}",
        f"the job of {job.user} does not start without help: {waits_for(job)}",
        f"{job.reason}: {job.description}" if job.description else job.reason,
        remedy.format(job=job.number, partition=job.partition),
    )


def shut_out_problems(users: Iterable[str]) -> Iterable[Problem]:
    """Of users whose uid slurmctld does not know."""
    for user in users:
        yield Problem(
            "no_uid",
            f"user {user}",
            f"slurmctld does not know the uid of {user}, whose account came or changed later, and refuses every job",
            "scontrol show assoc_mgr flags=users",
            "run `gpuops up --tags slurm`, or `sudo systemctl restart slurmctld` on the controller; jobs go on",
        )


def holder_problems(holders: Iterable[Holder]) -> list[Problem]:
    """Of nodes whose bad GPUs are not taken out of service, because holders do not start."""
    stuck = {one.node: one for one in holders if one.is_stuck}
    return [
        Problem(
            "holder_waits",
            name,
            f"a bad GPU of it is not out of service: the reconciler's job {one.id} does not start, and a guard keeps "
            "the node closed meanwhile",
            one.reason,
            "run `gpuops up --tags slurm`, which gives these jobs an account and a QOS that no limit reaches; "
            f"`scontrol show job {one.id}` shows what it waits for",
        )
        for name, one in sorted(stuck.items())
    ]


def partition_problem(partition: Mapping[str, Any]) -> Problem | None:
    if partition["state"] == "UP":
        return None
    return Problem(
        "partition_closed",
        f"partition {partition['name']}",
        f"its state is {partition['state']}, so no job starts in it",
        partition["state"],
        f"`sudo scontrol update partitionname={partition['name']} state=up` once it may",
    )


def controller_problems(controllers: Mapping[str, bool]) -> Iterable[Problem]:
    """Of controllers that do not answer while another one does.

    :param controllers: whether each answers, by the name of its host.
    """
    if any(controllers.values()):
        for name, answers in controllers.items():
            if not answers:
                yield Problem(
                    "controller_down",
                    name,
                    "slurmctld does not answer there, so nothing is left if the other controller fails",
                    "",
                    "see `sudo journalctl -u slurmctld` there, then `sudo systemctl start slurmctld`",
                )


def problems(
    nodes: Iterable[Mapping[str, Any]],
    partitions: Iterable[Mapping[str, Any]] = (),
    waiting: Iterable[QueuedJob] = (),
    controllers: Mapping[str, bool] | None = None,
) -> list[Problem]:
    """What keeps Slurm from its work, or will if one more thing fails."""
    found = [
        *controller_problems(controllers or {}),
        *map(node_problem, nodes),
        *map(partition_problem, partitions),
        *map(job_problem, waiting),
    ]
    return [one for one in found if one is not None]


# What the commands say where they are refused, in lower case.
NO_ANSWER = (
    Known(
        "authentication|credential|munge",
        "not_trusted",
        "slurmctld does not accept this host's credentials, or munge does not run there",
        "see `systemctl status munge` there, and compare its clock and /etc/munge/munge.key with the controller's; the "
        "playbook slurm replaces a wrong key",
    ),
    Known(
        "configuration source|resolve controller|slurm.conf",
        "no_configuration",
        "Slurm has no configuration there",
        "see `systemctl status slurmd` there: it fetches the configuration from the controller when it starts",
    ),
    Known(
        "no such file|not found",
        "not_installed",
        "Slurm's commands are not installed there",
        "run `gpuops up --tags slurm`",
    ),
)


_NO_ANSWER = Known(
    "",
    "no_answer",
    "slurmctld does not answer",
    "see `systemctl status slurmctld` and `sudo journalctl -u slurmctld` on the controller, and its port 6817",
)


def no_answer(evidence: str) -> Problem:
    """Why slurmctld was not asked, by what the command said."""
    return known_texts.problem("slurmctld", NO_ANSWER, evidence, _NO_ANSWER)
