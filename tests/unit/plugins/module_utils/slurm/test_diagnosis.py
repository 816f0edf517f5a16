# SPDX-License-Identifier: GPL-3.0-or-later
"""Why nodes take no jobs and why jobs wait: Slurm's own words of 24.11, and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import diagnosis, state
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.queue import QueuedJob

LINE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=2  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.10 Gres=gpu:a100:2 "
    "NodeAddr=192.0.2.1 NodeHostName=n1 RealMemory=22057 AllocMem=0 FreeMem=100 State={state} ThreadsPerCore=1 "
    "Partitions=all  Reason={reason} [{by}@2026-11-27T14:00:00] "
)


def node(text: str, reason: str, by: str = "slurm") -> dict[str, Any]:
    found = state.parse(LINE.format(state=text, reason=reason, by=by))
    assert found is not None
    return found


def job(reason: str, description: str = "", words: tuple[str, ...] = ("PENDING",)) -> QueuedJob:
    told = (12, "12", "train", "alice", "science", "gpu", "normal", words, reason, description, 1, 2, {}, "")
    return QueuedJob(*told, 100.0, None, None)


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        ("IDLE+DRAIN+INVALID_REG", "gres/gpu count reported lower than configured (1 < 2)", "gpus_missing"),
        ("IDLE+DRAIN+INVALID_REG", "Low RealMemory (reported:3000 < 100.00% of configured:4000)", "memory_missing"),
        ("IDLE+DRAIN+INVALID_REG", "Low socket*core*thread count, Low CPUs", "cores_missing"),
        ("IDLE+DRAIN", "Prolog error", "prolog_failed"),
        ("IDLE+DRAIN", "Epilog error", "epilog_failed"),
        ("IDLE+DRAIN", "Kill task failed", "not_killed"),
        ("DOWN", "Node unexpectedly rebooted", "rebooted"),
        ("DOWN*", "Not responding", "not_responding"),
        ("IDLE+DRAIN", "SlurmdSpoolDir is full", "disk_full"),
        ("IDLE+DRAIN", "Low TmpDisk (reported:100 < 100.00% of configured:4000)", "disk_missing"),
        ("IDLE+DRAIN", "batch job complete failure", "launch_failed"),
        ("IDLE+DRAIN", "gres/gpu GRES autodetected core affinity 0-1 on node n1 doesn't match", "gres_wrong"),
        ("IDLE+DRAIN+REBOOT_REQUESTED", "Reboot ASAP", "reboots"),
        ("DOWN", "reboot timed out", "not_rebooted"),
        ("DOWN+POWERED_DOWN", "ResumeTimeout reached", "not_resumed"),
        ("IDLE+DRAIN", "words of a later release", "drained_by_slurm"),
        ("DOWN", "what nobody has thought of", "down"),
        ("MIXED+DRAIN", "gpuops: GPU-1 (xid_79)", "fenced"),
    ],
)
def test_a_node_that_takes_no_jobs_has_a_cause_and_a_remedy(text: str, reason: str, code: str) -> None:
    problem = diagnosis.node_problem(node(text, reason))
    assert problem is not None
    assert (problem.code, problem.subject) == (code, "n1")
    assert problem.evidence.startswith(text)
    assert reason.replace("gpuops: ", "") in problem.cause + problem.evidence
    assert "{" not in problem.remedy
    assert "n1" in problem.remedy or "there" in problem.remedy


def test_a_node_that_takes_jobs_has_no_problem() -> None:
    assert diagnosis.node_problem(node("MIXED", "")) is None


@pytest.mark.parametrize("by", ["slurm", "root"])
def test_nobody_is_to_be_asked_who_drained_a_node_that_slurm_itself_has(by: str) -> None:
    problem = diagnosis.node_problem(node("IDLE+DRAIN", "SlurmdSpoolDir is full", by))
    assert problem is not None
    assert "SlurmdSpoolDir is full" in problem.evidence
    assert "ask who" not in problem.remedy
    assert "df -h /var/lib/slurm/slurmd" in problem.remedy
    other = diagnosis.node_problem(node("IDLE+DRAIN", "words of a later release"))
    assert other is not None
    assert "Slurm itself drained it: words of a later release" in other.cause
    assert "journalctl -u slurmctld" in other.remedy


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("IDLE+MAINTENANCE", "reserved_for_maintenance"),
        ("IDLE+MAINTENANCE+RESERVED", "reserved_for_maintenance"),
        ("MIXED+MAINT", "reserved_for_maintenance"),
        ("IDLE$", "reserved_for_maintenance"),
        ("IDLE+RESERVED", "reserved"),
        ("IDLE+RESERVED+PLANNED", "reserved"),
        ("IDLE+FAIL", "failing"),
        ("MIXED+FAIL", "failing"),
        ("IDLE+REBOOT_ISSUED", "reboots"),
        ("IDLE@", "reboots"),
        ("IDLE+POWERING_DOWN", "powered_down"),
        ("IDLE+POWERING_UP", "powers_up"),
    ],
)
def test_a_node_that_is_well_and_closed_takes_no_jobs_and_says_why(text: str, code: str) -> None:
    closed = node(text, "")
    assert closed["in_service"]
    assert not closed["takes_jobs"]
    problem = diagnosis.node_problem(closed)
    assert problem is not None
    assert (problem.code, problem.evidence) == (code, text)


@pytest.mark.parametrize("text", ["IDLE", "MIXED", "IDLE+PLANNED", "IDLE-", "ALLOCATED+COMPLETING", "IDLE+CLOUD"])
def test_a_node_that_is_open_takes_jobs(text: str) -> None:
    assert node(text, "")["takes_jobs"]
    assert diagnosis.node_problem(node(text, "")) is None


def test_a_drain_of_somebodys_is_told_with_who_and_when() -> None:
    problem = diagnosis.node_problem(node("IDLE+DRAIN", "the fan of slot 3", "alice"))
    assert problem is not None
    assert problem.cause == "it was drained by alice since 2026-11-27 14:00:00: the fan of slot 3"


def test_a_drain_from_here_ends_by_restore() -> None:
    problem = diagnosis.node_problem(node("IDLE+DRAIN", "gpuops drain: another fan", "root"))
    assert problem is not None
    assert problem.code == "maintenance"
    assert problem.cause.endswith("since 2026-11-27 14:00:00: another fan")
    assert problem.remedy == "once it is well, `gpuops restore n1`"


def test_what_the_reconciler_has_drained_is_not_resumed_by_hand() -> None:
    problem = diagnosis.node_problem(node("MIXED+DRAIN", "gpuops: GPU-1 (xid_79)", "root"))
    assert problem is not None
    assert "gpuops-reconciler clear n1" in problem.remedy
    assert "resume" not in problem.remedy


def test_a_reason_with_brackets_of_its_own_is_kept() -> None:
    assert node("DOWN", "see [ticket 5]", "bob")["reason"] == "see [ticket 5]"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "no node has enough free resources"),
        ("Priority", "jobs with a higher priority come first"),
        ("QOSMaxGRESPerUser", "a limit of its QOS on GPUs is reached"),
        ("AssocGrpCpuLimit", "a limit of its account on CPUs is reached"),
        ("QOSMaxJobsPerUserLimit", "a limit of its QOS on jobs is reached"),
        ("AssocGrpGRES", "a limit of its account on GPUs is reached"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "a node that it needs is down, drained or reserved"),
        (
            "ReqNodeNotAvail, Reserved for maintenance",
            "nodes are reserved for maintenance before it would end: it starts after that, or now with a shorter "
            "--time",
        ),
        ("QOSMaxWallDurationPerJobLimit", "it asks for more time than its QOS lets one job have"),
        ("AssocMaxWallDurationPerJobLimit", "it asks for more time than its account lets one job have"),
        ("QOSMaxGRESPerJob", "it asks for more than its QOS lets one job have"),
        ("QOSMinGRES", "it asks for less than its QOS lets one job have"),
        ("NeverHeardOf", "NeverHeardOf"),
    ],
)
def test_a_job_waits_for_something_in_plain_words(reason: str, words: str) -> None:
    assert diagnosis.waits_for(job(reason)) == words


def test_only_what_does_not_start_by_itself_is_a_problem() -> None:
    assert diagnosis.job_problem(job("Resources")) is None
    assert diagnosis.job_problem(job("JobHeldUser")) is None
    assert diagnosis.job_problem(job("BadConstraints", words=("RUNNING",))) is None
    held = diagnosis.job_problem(job("JobHeldUser", "launch failed requeued held"))
    assert held is not None
    assert (held.code, held.subject) == ("job_waits", "job 12")
    assert "its start failed on a node" in held.cause
    assert "scontrol release 12" in held.remedy


@pytest.mark.parametrize(
    ("reason", "description"),
    [
        ("ReqNodeNotAvail", "ReqNodeNotAvail, Reserved for maintenance"),
        ("ReqNodeNotAvail, Reserved for maintenance", ""),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", ""),
        ("ReqNodeNotAvail", "ReqNodeNotAvail, May be reserved for other job"),
        ("ReqNodeNotAvail, May be reserved for other job", ""),
    ],
)
def test_a_job_that_waits_for_the_end_of_a_reservation_starts_without_help(reason: str, description: str) -> None:
    waiting = job(reason, description)
    assert diagnosis.job_problem(waiting) is None
    assert "down" not in diagnosis.waits_for(waiting)


def test_a_job_whose_node_is_down_is_a_problem_and_only_one_that_names_nodes_is_told_not_to() -> None:
    down = job("ReqNodeNotAvail, UnavailableNodes:maintenance1")
    problem = diagnosis.job_problem(down)
    assert problem is not None
    assert "--nodelist" not in problem.remedy
    named = diagnosis.job_problem(replace(down, wanted_nodes="maintenance1"))
    assert named is not None
    assert named.remedy.endswith("or submit it without --nodelist")


def test_a_job_over_a_limit_on_one_job_never_starts_and_one_over_a_limit_on_all_does() -> None:
    assert diagnosis.job_problem(job("QOSMaxJobsPerUserLimit")) is None
    assert diagnosis.job_problem(job("AssocGrpGRES")) is None
    for reason in ("QOSMaxWallDurationPerJobLimit", "QOSMaxGRESPerJob", "QOSMaxCpuPerNode", "QOSMinGRES"):
        problem = diagnosis.job_problem(job(reason))
        assert problem is not None
        assert "scontrol show job 12" in problem.remedy


def test_a_partition_that_is_closed_is_a_problem() -> None:
    problem = diagnosis.partition_problem({"name": "gpu", "state": "DRAIN"})
    assert problem is not None
    assert problem.remedy.startswith("`sudo scontrol update partitionname=gpu state=up`")
    assert diagnosis.partition_problem({"name": "gpu", "state": "UP"}) is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("scontrol --details: slurm_load_node error: Protocol authentication error", "not_trusted"),
        ("scontrol: error: Munge encode failed: Failed to access /run/munge/munge.socket.2", "not_trusted"),
        ("Unable to contact slurm controller (connect failure)", "no_answer"),
        ("fatal: Could not establish a configuration source", "no_configuration"),
        ("[Errno 2] No such file or directory: '/usr/bin/scontrol'", "not_installed"),
    ],
)
def test_why_slurmctld_was_not_asked(said: str, code: str) -> None:
    problem = diagnosis.no_answer(said)
    assert (problem.code, problem.subject, problem.evidence) == (code, "slurmctld", said)
    assert problem.remedy
