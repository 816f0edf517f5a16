# SPDX-License-Identifier: GPL-3.0-or-later
"""Why nodes take no jobs and why jobs wait: Slurm's own words of 24.11, and what is made of them."""

from __future__ import annotations

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
        ("IDLE+DRAIN", "the fan of slot 3", "drained"),
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


def test_a_partition_that_is_closed_is_a_problem() -> None:
    problem = diagnosis.partition_problem({"name": "gpu", "state": "DRAIN"})
    assert problem is not None
    assert problem.remedy.startswith("`scontrol update partitionname=gpu state=up`")
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
