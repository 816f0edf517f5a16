# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a cluster, from answers of Slurm that were captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster, queue
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres
from tests.unit.plugins.slurm_answers import GUARD, JOBS, NODE, PARTITIONS, STUCK, Answers, gres_conf

LINE = "NodeName=gpu1 Name=gpu File=/dev/nvidia{}\n"


def read(tmp_path: Path, jobs: list[dict[str, Any]] = JOBS, **more: Any) -> dict[str, Any]:
    return cluster.read(Slurm(Answers(jobs), gres_conf=gres_conf(tmp_path)), **more)


def test_jobs_have_their_gpus_times_and_names(tmp_path: Path) -> None:
    jobs = {row["id"]: row for row in read(tmp_path)["jobs"]}
    train = jobs["4"]
    assert (train["name"], train["user"], train["state"], train["gpus"]) == ("train", "admin", "RUNNING", 1)
    assert train["nodes"] == [{"name": "gpu1", "minors": [3]}]
    assert train["ends"] - train["started"] == 2 * 3600
    # A task of an array without a limit on its time.
    assert jobs["6_1"]["nodes"] == [{"name": "gpu1", "minors": [1]}]
    assert jobs["6_1"]["ends"] is None


def test_jobs_wait_with_a_reason_and_have_neither_a_start_nor_an_end(tmp_path: Path) -> None:
    found = read(tmp_path)
    jobs = {row["id"]: row for row in found["jobs"] if row["waits"]}
    assert list(jobs) == ["6_[2-3]", "14", "15"]
    assert found["waiting_total"] == 3
    assert jobs["6_[2-3]"]["waits_for"] == "no node has enough free resources"
    assert jobs["14"]["waits_for"] == "the nodes that could run it are full, down, drained or reserved"
    assert [(row["started"], row["ends"], row["nodes"]) for row in jobs.values()] == [(None, None, [])] * 3


def test_a_job_that_was_refused_says_where_and_why(tmp_path: Path) -> None:
    note = "see alice; gpuops: refused by gpu1: GPU-1 is out of order (xid_fatal); thanks"
    jobs = [{**job, "admin_comment": note} if job["job_id"] == 14 else job for job in JOBS]
    (job,) = [row for row in read(tmp_path, jobs)["jobs"] if row["id"] == "14"]
    assert job["waits_for"].endswith("; refused by gpu1: GPU-1 is out of order (xid_fatal)")


def test_a_holder_is_told_from_jobs_of_people(tmp_path: Path) -> None:
    holders = [row["id"] for row in read(tmp_path)["jobs"] if row["holder"]]
    assert holders == ["12"]
    forged = [{**JOBS[2], "user_name": "mallory"}]
    assert [row["holder"] for row in read(tmp_path, forged)["jobs"]] == [False]


def test_what_needs_somebody_is_a_problem(tmp_path: Path) -> None:
    problems = {row["subject"]: row["code"] for row in read(tmp_path)["problems"]}
    assert problems == {"gpu2": "gpus_missing", "job 15": "job_waits"}
    assert read(tmp_path, about=["gpu1"])["problems"] == []
    assert [row["subject"] for row in read(tmp_path, about=["gpu2"])["problems"]] == ["gpu2"]


def test_a_holder_that_does_not_start_is_a_problem_of_its_node(tmp_path: Path) -> None:
    jobs = [*JOBS, STUCK, {**STUCK, "job_id": 100}]
    (problem,) = [row for row in read(tmp_path, jobs)["problems"] if row["code"] == "holder_waits"]
    assert (problem["subject"], problem["evidence"]) == ("gpu1", "QOSMaxWallDurationPerJobLimit")
    assert "gpuops up --tags slurm" in problem["remedy"]
    assert [row["code"] for row in read(tmp_path, jobs, about=["gpu1"])["problems"]] == ["holder_waits"]
    assert read(tmp_path, [*JOBS, {**STUCK, "state_reason": "Resources"}], about=["gpu1"])["problems"] == []


def free(answers: Answers) -> tuple[bool, int, int]:
    """Of gpu1, which has two GPUs and of which a job or a holder has one."""
    row = cluster.read(Slurm(answers))["nodes"][0]
    return row["takes_jobs"], row["gpus_free"], row["gpus_held"]


def test_a_gpu_is_free_where_a_users_job_can_start() -> None:
    answers = Answers(JOBS)
    assert free(answers) == (True, 1, 1)
    # A guard, whatever state the node has meanwhile.
    answers.reservations = GUARD
    assert free(answers) == (False, 0, 1)
    # One of somebody else's, of which slurmctld tells in the state.
    answers.reservations = "No reservations in the system\n"
    for word in ("MAINTENANCE", "RESERVED", "FAIL", "DRAIN", "NOT_RESPONDING", "REBOOT_ISSUED", "POWERING_DOWN"):
        answers.node = NODE.replace("State=MIXED", f"State=MIXED+{word}")
        assert free(answers) == (False, 0, 1), word
    # The jobs there have all cores.
    answers.node = NODE.replace("CPUAlloc=1", "CPUAlloc=2")
    assert free(answers) == (True, 0, 1)
    # The partition of the holders is no user's.
    answers.node, answers.partitions = NODE, PARTITIONS.replace("State=UP", "State=DOWN", 1)
    assert free(answers) == (False, 0, 1)
    answers.node, answers.partitions = NODE.replace("Partitions=all", "Partitions=gpuops"), PARTITIONS
    assert free(answers) == (False, 0, 1)


def test_a_node_that_the_reconciler_has_closed_says_so(tmp_path: Path) -> None:
    answers = Answers(JOBS)
    answers.reservations = GUARD
    problems = {row["subject"]: row["code"] for row in cluster.read(Slurm(answers), ["gpu1"])["problems"]}
    assert problems == {"gpu1": "guarded"}


@pytest.mark.parametrize(
    ("primary", "backup", "down"), [("UP", "UP", []), ("DOWN", "UP", ["ctl1"]), ("UP", "DOWN", ["ctl2"])]
)
def test_a_controller_that_does_not_answer_is_named(primary: str, backup: str, down: list[str]) -> None:
    answers = Answers([])
    answers.ping = f"Slurmctld(primary) at ctl1 is {primary}\nSlurmctld(backup) at ctl2 is {backup}\n"
    problems = cluster.read(Slurm(answers))["problems"]
    assert [row["subject"] for row in problems if row["code"] == "controller_down"] == down


def test_nodes_and_partitions_have_their_sizes(tmp_path: Path) -> None:
    found = read(tmp_path)
    first = found["nodes"][0]
    assert (first["gpus"], first["gpus_used"], first["cpus"], first["free_cpus"]) == (2, 1, 2, 1)
    assert (first["memory_mib"], first["free_memory_mib"], first["partitions"]) == (22057, 22007, ["all"])
    # That of the holders is nobody's to submit to.
    (partition,) = found["partitions"]
    assert (partition["name"], partition["default"], partition["nodes"]) == ("all", True, 1)
    assert partition["max_time"] == "1-00:00:00"


def test_of_many_jobs_that_wait_the_first_are_read_and_all_are_counted() -> None:
    answers = Answers([{**JOBS[4], "job_id": number} for number in range(100, 900)])
    jobs, total = Slurm(answers).waiting(at_most=3)
    assert ([job.number for job in jobs], total) == ([100, 101, 102], 800)
    assert answers.calls[-1][-1] == "--jobs=100,101,102"


def test_those_of_a_user_are_among_the_jobs_that_wait_however_many_others_have() -> None:
    many = [{**JOBS[4], "job_id": number, "user_name": "bob"} for number in range(100, 900)]
    own = [{**JOBS[4], "job_id": number, "user_name": "alice"} for number in range(900, 950)]
    holders = [{**JOBS[4], "job_id": number, "user_name": "slurm", "partition": "gpuops"} for number in range(90, 100)]
    jobs, total = Slurm(Answers([*holders, *many, *own])).waiting(at_most=30)
    told = {user: [job.number for job in jobs if job.user == user] for user in ("slurm", "bob", "alice")}
    # Holders take nobody's place.
    assert told == {"slurm": list(range(90, 100)), "bob": list(range(100, 130)), "alice": list(range(900, 920))}
    assert total == 860


def test_the_last_job_that_waits_may_be_gone_when_it_is_looked_at() -> None:
    def gone(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        return (1, "", "slurm_load_jobs error: Invalid job id specified") if "--json" in argv else (0, "7\n", "")

    assert Slurm(gone).waiting() == ([], 1)


@pytest.mark.parametrize("minors", [[], [3]])
def test_a_gpu_that_gres_conf_does_not_list_is_not_guessed(minors: list[int]) -> None:
    (job,) = queue.jobs([{**JOBS[0], "gres_detail": ["gpu:a100:1(IDX:1)"]}])
    assert cluster.minors(job, "gpu1", Gres("".join(map(LINE.format, minors)))) == [None]


def test_gpus_whose_positions_are_not_told_are_counted() -> None:
    (job,) = queue.jobs([{**JOBS[0], "gres_detail": ["gpu:a100:2,gpu:t4:1"]}])
    assert cluster.minors(job, "gpu1", Gres("".join(map(LINE.format, range(3))))) == [None, None, None]


def test_text_of_users_is_one_printable_line() -> None:
    (job,) = queue.jobs([{**JOBS[0], "name": "a\n\x1b[2Jb" * 100}])
    assert job.name.isprintable()
    assert len(job.name) <= queue.NAME_AT_MOST


def test_a_job_that_nobody_can_read_does_not_hide_the_others() -> None:
    odd = {**JOBS[0], "job_resources": {"nodes": {"allocation": 5}}}
    assert [job.number for job in queue.jobs([odd, JOBS[0]])] == [JOBS[0]["job_id"]]


def test_what_22_05_tells_is_understood() -> None:
    old = {
        **JOBS[0],
        "job_state": "RUNNING",
        "job_resources": {"nodes": "gpu1", "allocated_nodes": [{"nodename": "gpu1"}]},
        "array_job_id": 0,
        "array_task_id": None,
        "array_task_string": "",
        "start_time": 1000,
        "end_time": 1060,
        "time_limit": 1,
    }
    (job,) = queue.jobs([old])
    assert (job.id, job.words, job.started, job.ends) == ("4", ("RUNNING",), 1000.0, 1060.0)
    assert job.nodes == {"gpu1": (1, (0,))}


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"tres_per_node": "gres/gpu:2", "node_count": {"set": True, "number": 3}}, 6),
        ({"tres_per_node": "gres:gpu:a100:2", "node_count": 1}, 2),
        ({"tres_per_node": "gres/gpu"}, 1),
        ({"tres_per_node": "gres/gpu:a100:2,gres/gpu:t4:1,gres/shard:5"}, 3),
        ({"tres_per_job": "gres/gpu:5", "node_count": 2}, 5),
        ({"tres_per_task": "gres/gpu=1", "tasks": {"set": True, "number": 4}}, 4),
        ({"tres_per_task": "gres/gpu:a100=2", "tasks": {"set": True, "number": 2}}, 4),
        ({"tres_per_node": ""}, 0),
        ({}, 0),
    ],
)
def test_without_accounting_a_job_that_waits_asks_for_what_it_asks_for(asked: dict[str, Any], gpus: int) -> None:
    waiting = {**JOBS[0], "job_state": ["PENDING"], "job_resources": {}, "gres_detail": []}
    waiting |= {"tres_req_str": "cpu=1,mem=50M,node=1,billing=1", "tres_alloc_str": "", **asked}
    (job,) = queue.jobs([waiting])
    assert (job.waits, job.gpus) == (True, gpus)


def test_without_accounting_a_job_that_runs_has_the_gpus_that_it_has() -> None:
    (job,) = queue.jobs(
        [{**JOBS[0], "tres_req_str": "cpu=1", "tres_alloc_str": "cpu=1", "tres_per_node": "gres/gpu:9"}]
    )
    assert job.gpus == 1


def test_a_slurmctld_that_does_not_answer_is_a_failure_with_its_words() -> None:
    with pytest.raises(CallFailed, match="connect failure"):
        cluster.read(Slurm(lambda *_given: (1, "", "Unable to contact slurm controller (connect failure)")))
