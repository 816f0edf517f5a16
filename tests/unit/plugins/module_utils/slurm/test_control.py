# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm's commands print, as 24.11.5 and 22.05.8 do, and what is made of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Holder, Job, Slurm

NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=2  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=6.08 Gres=gpu:a100:2,gpu:t4:1 "
    "GresDrain=N/A GresUsed=gpu:a100:1(IDX:1),gpu:t4:1(IDX:2) NodeAddr=192.0.2.1 NodeHostName=n1 RealMemory=22057 "
    "State=MIXED+DRAIN ThreadsPerCore=1 Partitions=all  Reason=gpuops: GPU-1 (xid_79) [root@2026-11-27T14:00:00] "
)
RESERVATIONS = (
    "ReservationName=gpuops-n1 StartTime=2026-11-27T14:27:00 EndTime=2026-11-27T14:37:00 Duration=00:10:00 Nodes=n1 "
    "NodeCnt=1 CoreCnt=2 Features=(null) PartitionName=(null) Flags=FLEX,IGNORE_JOBS,SPEC_NODES TRES=cpu=2 "
    "Users=slurm Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE\n"
    "ReservationName=maint StartTime=2026-11-27T14:27:00 EndTime=2026-11-28T14:37:00 Duration=1-00:10:00 Nodes=n2 "
    "NodeCnt=1 CoreCnt=2 Flags=MAINT TRES=cpu=2 Users=alice Groups=(null) State=ACTIVE\n"
)


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def job(job_id: int, node: str, gres: str, **more: Any) -> dict[str, Any]:
    """A job as Slurm 24.11 tells it."""
    return {
        "job_id": job_id,
        "user_name": "alice",
        "partition": "all",
        "name": "wrap",
        "comment": "",
        "dependency": "",
        "job_state": ["RUNNING"],
        "gres_detail": [gres] if gres else [],
        "job_resources": {"nodes": {"list": node, "allocation": [{"index": 0, "name": node}]}} if node else None,
        "required_nodes": "",
        "resv_name": "",
        "start_time": number(200),
        **more,
    }


def holder(job_id: int, node: str, gres: str, **more: Any) -> dict[str, Any]:
    ours = {"user_name": "slurm", "partition": "gpuops", "name": "gpuops-hold-1-3", "comment": "after="}
    return job(job_id, node, gres, **{**ours, **more})


class Cluster:
    """Answers in the place of Slurm's commands, and keeps what was called."""

    def __init__(
        self, jobs: list[dict[str, Any]] | None = None, reservations: str = RESERVATIONS, accounting: str = "(null)"
    ) -> None:
        self.jobs, self.reservations, self.calls = jobs or [], reservations, []
        self.accounting, self.refuses = accounting, ""

    def submitted(self) -> list[list[str]]:
        return [call for call in self.calls if "--parsable" in call]

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append(argv[1:])
        if argv[0] == "/usr/bin/squeue":
            return 0, json.dumps({"jobs": self.jobs}), ""
        if "reservation" in argv and "show" in argv:
            return 0, self.reservations, ""
        if "node" in argv:
            return 0, f"{NODE}\n", ""
        if argv[1:] == ["show", "config"]:
            return 0, f"AccountingStoragePort   = 6819\nAccountingStorageType   = {self.accounting}\n", ""
        if self.refuses and "--account=gpuops" in argv:
            return 1, "", self.refuses
        return 0, "7\n", ""


def test_a_node_tells_which_gpus_are_used_of_all_its_types() -> None:
    node = Slurm(Cluster()).nodes()["n1"]
    assert (node["used"], node["free_cpus"], node["drained"], node["silent"]) == ([1, 2], 1, True, False)
    assert node["reason"] == "gpuops: GPU-1 (xid_79)"


def test_positions_are_those_of_the_lines_in_gres_conf(tmp_path: Path) -> None:
    conf = tmp_path / "gres.conf"
    conf.write_text(
        "AutoDetect=off\nNodeName=n1 Name=gpu Type=a100 File=/dev/nvidia1 Cores=0\n"
        "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia3\nNodeName=n2 Name=gpu Type=t4 File=/dev/nvidia0\n"
    )
    gres = Slurm(Cluster(), gres_conf=str(conf)).gres()
    assert (gres.minors("n1"), gres.minors("n2"), gres.minors("n3")) == ([1, 3], [0], [])


def test_only_reservations_of_ours_are_guards() -> None:
    ends = time.mktime((2026, 11, 27, 14, 37, 0, 0, 0, -1))
    assert Slurm(Cluster()).guards() == {"n1": ends}
    assert Slurm(Cluster(reservations="No reservations in the system\n")).guards() == {}


def test_holders_are_told_from_jobs_that_only_have_their_name() -> None:
    jobs = [
        holder(7, "n1", "gpu:a100:1(IDX:3)"),
        holder(8, "", "", job_state=["PENDING"], required_nodes="n1", resv_name="gpuops-n1"),
        holder(9, "", "", job_state=["PENDING"], required_nodes="n1", dependency="afterany:5", comment="after=5,6"),
        holder(10, "n1", "gpu:a100:1(IDX:0)", user_name="mallory"),
        holder(11, "n1", "gpu:a100:1(IDX:0)", name="gpuops-hold-x"),
        holder(12, "n1", "gpu:a100:1(IDX:0)", job_state=["COMPLETED"]),
        holder(13, "n1", "gpu:a100:1(IDX:0)", job_state=["CANCELLED", "COMPLETING"]),
        holder(14, "n1", "gpu:a100:1(IDX:0)", job_state=["RUNNING", "CONFIGURING"]),
    ]
    assert Slurm(Cluster(jobs)).holders() == [
        Holder(7, "n1", "RUNNING", (1, 3), 3, (), False, False, 200.0),
        Holder(8, "n1", "PENDING", (1, 3), None, (), False, True),
        Holder(9, "n1", "PENDING", (1, 3), None, (5, 6), True, False),
        Holder(14, "n1", "RUNNING", (1, 3), 0, (), False, False, 200.0),
    ]


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocGrpGRES", True),
        ("InvalidAccount", True),
        ("JobHeldAdmin", True),
        ("ReservationDeleted", True),
        ("Resources", False),
        ("Priority", False),
        ("Dependency", False),
        ("None", False),
    ],
)
def test_a_holder_waits_in_vain_for_a_limit_and_not_for_a_gpu(reason: str, stuck: bool) -> None:
    waiting = holder(8, "", "", job_state=["PENDING"], required_nodes="n1", state_reason=reason)
    running = holder(9, "n1", "gpu:a100:1(IDX:3)", state_reason=reason)
    assert [one.is_stuck for one in Slurm(Cluster([waiting, running])).holders()] == [stuck, False]


def test_jobs_on_a_node_have_their_gpus_there_and_text_of_users_makes_none() -> None:
    two = job(6, "n1", "")
    two["job_resources"]["nodes"]["allocation"] = [{"name": "n2"}, {"name": "n1"}]
    two["gres_detail"] = ["gpu:a100:2(IDX:0-1)", "gpu:a100:1(IDX:2),gpu:t4:1(IDX:4)"]
    jobs = [job(5, "n1", "gpu:a100:2(IDX:0,3)", comment="GRES=gpu:a100:1(IDX:1)"), two, job(7, "n1", "")]
    jobs.append(job(8, "n1", "gpu:a100:1"))
    jobs.append(holder(9, "n1", "gpu:a100:1(IDX:1)"))
    assert Slurm(Cluster(jobs)).jobs_on("n1") == [
        Job(5, "alice", "RUNNING", (0, 3)),
        Job(6, "alice", "RUNNING", (2, 4)),
        Job(7, "alice", "RUNNING", ()),
        # Which it has is not told.
        Job(8, "alice", "RUNNING", None),
    ]


def test_the_older_releases_json_is_understood() -> None:
    old = {
        **job(5, "n1", "gpu:a100:1(IDX:1)"),
        "job_state": "RUNNING",
        "job_resources": {"nodes": "n1", "allocated_nodes": [{"nodename": "n1"}]},
        "start_time": 200,
    }
    # 22.05 keeps to no --states with --json.
    ended = {**old, "job_id": 6, "job_state": "CANCELLED", "gres_detail": []}
    ends = {**old, "job_id": 7, "job_state": "COMPLETING", "time_limit": 120, "end_time": 900}
    endless = {**old, "job_id": 8, "time_limit": 4294967295}
    assert Slurm(Cluster([old, ended, ends, endless])).jobs_on("n1") == [
        Job(5, "alice", "RUNNING", (1,)),
        Job(7, "alice", "COMPLETING", (1,), limit_min=120, ends=900.0),
        Job(8, "alice", "RUNNING", (1,)),
    ]


def test_a_guard_that_is_there_is_made_longer() -> None:
    cluster = Cluster()
    Slurm(cluster).guard("n1")
    assert cluster.calls[-1] == ["update", "reservationname=gpuops-n1", "endtime=now+10minutes"]
    Slurm(cluster).guard("n3")
    assert cluster.calls[-1][:3] == ["create", "reservation", "reservationname=gpuops-n3"]


def test_holders_inside_a_guard_go_on_when_it_is_lifted() -> None:
    cluster = Cluster([holder(7, "n1", "gpu:a100:1(IDX:3)", resv_name="gpuops-n1"), holder(8, "n2", "")])
    Slurm(cluster).unguard("n1")
    changes = [call for call in cluster.calls if call[0] in ("update", "delete")]
    assert changes == [["update", "jobid=7", "reservationname="], ["delete", "reservationname=gpuops-n1"]]


def test_holders_after_jobs_start_with_the_first_that_ends() -> None:
    cluster = Cluster()
    Slurm(cluster).hold("n1", [1, 3], 2, after=[6, 5], inside=False)
    first, second = cluster.submitted()
    assert first == second
    assert "--dependency=afterany:5?afterany:6" in first
    assert "--comment=after=5,6" in first
    assert not [word for word in first if word.startswith("--reservation")]


def owner(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith(("--account", "--qos"))]


def test_holders_have_an_account_and_a_qos_of_their_own_where_there_is_accounting() -> None:
    cluster = Cluster(accounting="accounting_storage/slurmdbd")
    Slurm(cluster).hold("n1", [1], 1, after=[], inside=True)
    (words,) = cluster.submitted()
    assert owner(words) == ["--account=gpuops", "--qos=gpuops"]
    # A time without an end is over every limit on it.
    assert "--time=365-0" in words


def test_without_accounting_holders_name_neither() -> None:
    cluster = Cluster(accounting="(null)")
    Slurm(cluster).hold("n1", [1], 2, after=[], inside=True)
    assert [owner(words) for words in cluster.submitted()] == [[], []]


@pytest.mark.parametrize("said", ["Invalid account or account/partition combination specified", "Invalid qos"])
def test_before_the_account_is_made_a_gpu_is_held_all_the_same(said: str) -> None:
    cluster = Cluster(accounting="accounting_storage/slurmdbd")
    cluster.refuses = f"sbatch: error: Batch job submission failed: {said}"
    Slurm(cluster).hold("n1", [1], 2, after=[], inside=True)
    assert [owner(words) for words in cluster.submitted()] == [["--account=gpuops", "--qos=gpuops"], [], []]
    # The proof of the role is one of the account.
    with pytest.raises(CallFailed, match=said):
        Slurm(cluster).probe()


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"jobs": 5}', "{" * 10000])
def test_an_answer_that_is_no_list_of_jobs_is_a_failure_with_a_reason(answer: str) -> None:
    with pytest.raises(CallFailed, match="squeue's answer cannot be read"):
        Slurm(lambda *_words: (0, answer, "")).holders()


def test_a_command_that_fails_says_what_to_look_at() -> None:
    with pytest.raises(CallFailed, match=r"Unable to contact slurm controller.*journalctl -u slurmctld"):
        Slurm(lambda *_words: (1, "", "slurm_load_node error: Unable to contact slurm controller")).nodes()


def test_a_name_that_is_no_node_is_never_a_word_of_a_command() -> None:
    with pytest.raises(CallFailed, match="is not the name of a node"):
        Slurm(Cluster(reservations="")).guard("n1 users=mallory")


def test_a_holder_that_is_gone_already_is_no_failure_and_another_reason_is() -> None:
    gone = Slurm(lambda *_words: (1, "", "scancel: error: Kill job error on job id 7: Invalid job id specified"))
    gone.cancel([7, 8])
    with pytest.raises(CallFailed, match="Access/permission denied"):
        Slurm(lambda *_words: (1, "", "scancel: error: Kill job error on job id 7: Access/permission denied")).cancel(
            [7]
        )


def test_a_job_that_is_signalled_is_told_why_and_keeps_what_others_noted() -> None:
    cluster = Cluster()
    Slurm(cluster).signal([{"id": 7, "note": "see alice"}], "fatal: GPU-1 (xid_79)")
    assert cluster.calls == [
        ["--full", "--signal=TERM", "7"],
        ["update", "jobid=7", "admincomment=see alice; gpuops: SIGTERM: fatal: GPU-1 (xid_79)"],
    ]


@pytest.mark.parametrize(
    ("task", "name", "noted", "kept"),
    [
        ({}, "7", "", ""),
        # The last task of an array has the number of the array.
        ({"array_job_id": 7, "array_task_id": {"set": True, "number": 3}}, "7_3", "", ""),
        ({}, "7", "see alice", "see alice; "),
        ({}, "7", "gpuops: refused by n2: GPU-2; see alice", "see alice; "),
        ({}, "7", "see alice; gpuops: refused by n2: GPU-2", "see alice; "),
    ],
)
def test_a_job_that_is_refused_is_told_by_which_node_and_keeps_what_others_noted(task, name, noted, kept) -> None:
    calls = []

    def slurmctld(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        calls.append(argv[1:])
        row = {"job_id": 7, "job_state": ["RUNNING"], "admin_comment": noted, **task}
        return 0, json.dumps({"jobs": [row, {**row, "job_id": 8}]}) if argv[0].endswith("squeue") else "", ""

    Slurm(slurmctld).refuse(7, "n1", "GPU-1 is out of order (xid_fatal)")
    text = f"admincomment={kept}gpuops: refused by n1: GPU-1 is out of order (xid_fatal)"
    assert calls[1:] == [["update", f"jobid={name}", text]]


def test_only_a_batch_job_that_its_user_lets_can_be_queued_again() -> None:
    jobs = [
        job(1, "n1", "gpu:a100:1(IDX:0)", requeue=True, batch_flag=True),
        job(2, "n1", "gpu:a100:1(IDX:1)", requeue=True, batch_flag=False),
        job(3, "n1", "gpu:a100:1(IDX:2)", requeue=False, batch_flag=True),
    ]
    cluster = Cluster(jobs)
    assert [one.can_requeue for one in Slurm(cluster).jobs_on("n1")] == [True, False, False]
    Slurm(cluster).requeue([1])
    assert cluster.calls[-1] == ["requeue", "1"]
