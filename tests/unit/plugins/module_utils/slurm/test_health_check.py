# SPDX-License-Identifier: GPL-3.0-or-later
"""The HealthCheckProgram: when it drains its node, and when it leaves the node as it is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import command, health_check
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import FENCE_MARK, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.diagnosis import node_problem
from tests.unit.plugins.module_utils.slurm.test_control import RESERVATIONS, holder
from tests.unit.plugins.module_utils.slurm.test_gpus import UUIDS, XID, Host, part

IDLE = "NodeName=n1 CPUAlloc=0 CPUTot=2 Gres=gpu:a100:2 State=IDLE ThreadsPerCore=1 Partitions=all"


class Slurmctld:
    """Answers in the place of Slurm's commands, and keeps what was changed."""

    def __init__(self) -> None:
        self.node, self.reservations, self.changes = IDLE, "", []
        self.jobs: list[dict[str, Any]] = []
        self.status = 0

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        words = argv[1:]
        if self.status:
            return self.status, "", "Unable to contact slurm controller"
        if argv[0] == "/usr/bin/squeue":
            return 0, json.dumps({"jobs": self.jobs}), ""
        if "show" in words:
            return 0, self.reservations if "reservation" in words else f"{self.node}\n", ""
        self.changes.append(words)
        return 0, "", ""


class Node:
    """n1 with two GPUs; in gres.conf the GPU of minor 1 has position 0."""

    def __init__(self, root: Path) -> None:
        self.host, self.slurmctld = Host(root), Slurmctld()
        # Up for long.
        self.fails()

    def fails(self, *minors: int, since: float = 600.0, whole: bool = False) -> None:
        """The GPUs of these minors, or the host, have been fatal for so many seconds."""
        reason = {**XID, "evidence": {"since": time.time() - since}}
        parts = [part(minor, *([reason] if minor in minors else [])) for minor in (0, 1)]
        self.host.report(*parts, reasons=(reason,) if whole else ())

    def check(self, grace_s: float = 300.0) -> dict[str, Any]:
        return health_check.check("n1", grace_s, Slurm(self.slurmctld), str(self.host.root))

    @property
    def reasons(self) -> list[str]:
        """Those of the drains that were made."""
        assert all(words[:3] == ["update", "nodename=n1", "state=drain"] for words in self.slurmctld.changes)
        return [words[3].partition("=")[2] for words in self.slurmctld.changes]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(health_check.agent_result, "uptime", lambda: 100000.0)
    return Node(tmp_path)


def test_a_gpu_that_is_fatal_and_that_nobody_has_fenced_drains_the_node(node: Node) -> None:
    node.fails(0)
    assert node.check()["drained"] == f"{UUIDS[0]} (xid_fatal) for 600 s"
    assert node.reasons == [f"gpuops: health check: fatal and not fenced: {UUIDS[0]} (xid_fatal) for 600 s"]
    # The reconciler takes what begins so for its own.
    assert node.reasons[0].startswith(FENCE_MARK)


def test_a_healthy_node_asks_slurmctld_nothing(node: Node) -> None:
    node.slurmctld.status = 1
    assert node.check() == {}


@pytest.mark.parametrize(("since", "grace", "drains"), [(200, 300, 0), (200, 100, 1), (1, 0, 1), (-50, 0, 0)])
def test_a_fault_has_to_last_for_longer_than_the_grace_period(node: Node, since, grace, drains) -> None:
    node.fails(0, since=since)
    node.check(grace)
    assert len(node.reasons) == drains


def test_after_a_boot_the_grace_period_begins_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.fails(0, since=86400)
    monkeypatch.setattr(health_check.agent_result, "uptime", lambda: 120.0)
    text = json.loads((node.host.root / "run/baremetal-gpu/gpu.json").read_text())
    node.host.write("run/baremetal-gpu/gpu.json", json.dumps({**text, "uptime": 119.0}))
    assert node.check() == {}
    assert node.check(100.0)["drained"].endswith("for 120 s")


@pytest.mark.parametrize(
    ("jobs", "drains"),
    [
        ([holder(7, "n1", "gpu:a100:1(IDX:1)")], 0),
        # It waits for the job that has the GPU.
        ([holder(7, "", "", name="gpuops-hold-1", job_state=["PENDING"], required_nodes="n1")], 0),
        # It waits for the end of a limit, which does not come.
        (
            [
                holder(
                    7,
                    "",
                    "",
                    name="gpuops-hold-1",
                    job_state=["PENDING"],
                    required_nodes="n1",
                    state_reason="AssocGrpGRES",
                )
            ],
            1,
        ),
        # It has the other GPU, another node's, or belongs to somebody else.
        ([holder(7, "n1", "gpu:a100:1(IDX:0)")], 1),
        ([holder(7, "n2", "gpu:a100:1(IDX:1)")], 1),
        ([holder(7, "n1", "gpu:a100:1(IDX:1)", user_name="mallory")], 1),
    ],
)
def test_a_gpu_that_a_holder_has_is_fenced(node: Node, jobs: list[dict[str, Any]], drains: int) -> None:
    # Of minor 0, which is at position 1.
    node.fails(0)
    node.slurmctld.jobs = jobs
    node.check()
    assert len(node.reasons) == drains


def test_a_fault_of_the_whole_host_is_not_fenced_by_holders(node: Node) -> None:
    node.fails(whole=True)
    node.slurmctld.jobs = [holder(7, "n1", "gpu:a100:1(IDX:0)"), holder(8, "n1", "gpu:a100:1(IDX:1)")]
    assert node.check()["drained"] == "n1 (xid_fatal) for 600 s"


def test_a_node_with_a_guard_is_the_reconcilers(node: Node) -> None:
    node.fails(0)
    node.slurmctld.reservations = RESERVATIONS
    assert node.check() == {}
    assert node.reasons == []


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "MIXED+DRAIN", "DOWN+NOT_RESPONDING"])
def test_a_node_that_is_out_of_service_keeps_its_reason(node: Node, state: str) -> None:
    node.fails(0)
    node.slurmctld.node = IDLE.replace("IDLE", state) + " Reason=a smell of smoke [root@2026-11-27T14:00:00]"
    assert node.check() == {}
    assert node.reasons == []


def test_a_reason_of_somebody_elses_is_not_overwritten_on_a_node_in_service_either(node: Node) -> None:
    node.fails(0)
    node.slurmctld.node = f"{IDLE} Reason=reboot at noon [root@2026-11-27T14:00:00]"
    told = node.check()
    assert "reboot at noon" in told["why"]
    assert UUIDS[0] in told["fatal"]
    assert node.reasons == []


@pytest.mark.parametrize("path", ["run/baremetal-gpu/gpu.json", "run/slurm/conf/gres.conf"])
def test_without_verdicts_or_gpus_nothing_is_done(node: Node, path: str) -> None:
    node.fails(0)
    (node.host.root / path).unlink()
    assert node.check() == {}
    assert node.reasons == []


def test_a_fault_without_a_time_does_nothing(node: Node) -> None:
    node.host.report(part(0, XID), part(1, {**XID, "evidence": {"since": "yesterday"}}))
    assert node.check() == {}


def test_a_fault_of_its_own_is_logged_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[tuple[Any, bool]] = []
    monkeypatch.setattr(command, "log", lambda told, is_warning: logged.append((told, is_warning)))
    assert command.main(["health-check", "n1", "soon"]) == 0
    assert logged[0][0]["what"] == "health-check"
    assert "soon" in logged[0][0]["why"]
    assert logged[0][1]


def test_a_check_that_finds_nothing_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    monkeypatch.setattr(command, "log", lambda told, is_warning: logged.append(told))
    monkeypatch.setattr(health_check, "check", lambda *_given: {})
    assert command.main(["health-check", "n1", "300"]) == 0
    assert logged == []


def test_the_doctor_tells_who_drained_the_node_and_what_to_do(node: Node) -> None:
    node.fails(0)
    node.check()
    row = {"name": "n1", "state": "IDLE+DRAIN", "reason": node.reasons[0], "in_service": True, "drained": True}
    problem = node_problem(row)
    assert problem is not None
    assert problem.code == "not_fenced"
    assert f"its health check drained it: fatal and not fenced: {UUIDS[0]}" in problem.cause
    assert "gpuops-reconciler status" in problem.remedy
