# SPDX-License-Identifier: GPL-3.0-or-later
"""Prolog and Epilog of a job on simulated GPUs, with the notes between them."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import command, epilog, left, prolog, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.job import Job, of_environment
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.notes import Notes
from tests.unit.plugins.module_utils.slurm.test_gpus import XID, Host, part
from tests.unit.plugins.module_utils.slurm.test_left import sleeping
from tests.unit.plugins.service_account import needs_root
from tests.unit.simulators.conftest import built, scenario  # noqa: F401  # fixtures

GRES = "NodeName=n1 Name=gpu File=/dev/nvidia0\nNodeName=n1 Name=gpu File=/dev/nvidia1\n"
ENVIRONMENT = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "1001", "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "0,1"}
FIRST = Job(17, 1001, "n1", "0")


class Node:
    """A node whose Prolog and Epilog can be run, on GPUs of a scenario."""

    def __init__(self, root: Path, gpus: Any, library: Path) -> None:
        self.host = Host(root)
        self.host.write("run/slurm/conf/gres.conf", GRES)
        self.host.report(part(0), part(1))
        self.gpus = gpus
        self.library = str(library)
        self.notes = root / "notes"

    def prolog(self, job: Job = FIRST) -> dict[str, Any]:
        return prolog.prolog(job, str(self.host.root), str(self.notes), self.library)

    def epilog(self, job: Job = FIRST, **more: Any) -> dict[str, Any]:
        return epilog.epilog(job, root=str(self.host.root), directory=str(self.notes), library=self.library, **more)

    def settings(self) -> dict[str, Any]:
        return settings.read([0, 1], self.library)

    def set(self, minor: int, **values: Any) -> None:
        assert settings.put_back({str(minor): values}, self.library) == {}

    @property
    def refused(self) -> str:
        path = Path(Notes(FIRST.number, str(self.notes)).refused)
        return path.read_text() if path.exists() else ""


@pytest.fixture
def node(tmp_path: Path, built: Path, scenario: Any) -> Node:  # noqa: F811  # fixtures
    return Node(tmp_path / "host", scenario("a100-sxm4-40gb-x2"), built / "libnvidia-ml.so.1")


def test_a_job_on_a_healthy_gpu_starts_and_its_gpus_are_noted(node: Node) -> None:
    told = node.prolog()
    assert told["verdict"] == "usable"
    assert not node.refused
    kept = Notes(17, str(node.notes)).read()["gpus"]
    assert list(kept) == ["0"]
    assert kept["0"]["compute_mode"] == 0
    assert kept["0"]["power_limit_mw"] == 400000
    assert kept["0"]["application_clocks"] == [1215, 1095]


def test_the_user_of_a_refused_job_reads_which_gpu_why_and_what_to_do(node: Node) -> None:
    node.host.report(part(0, XID), part(1))
    assert node.prolog()["refused"] == {"GPU-00000000-0000-0000-0000-000000000000": ["xid_fatal"]}
    assert node.refused.splitlines() == [
        "print GPU GPU-00000000-0000-0000-0000-000000000000 of n1 is out of order, so this job does not run on it.",
        "print xid_fatal: Xid 79 at 12:00",
        "print remedy: reboot the host",
    ]
    assert node.prolog(Job(18, 1001, "n1", "1"))["verdict"] == "usable"


def test_a_job_that_comes_again_is_no_longer_refused(node: Node) -> None:
    node.host.report(part(0, XID), part(1))
    node.prolog()
    node.host.report(part(0), part(1))
    node.prolog()
    assert not node.refused


def test_without_a_verdict_the_job_may_start_and_the_log_says_why(node: Node) -> None:
    (node.host.root / "run/baremetal-gpu/gpu.json").unlink()
    told = node.prolog()
    assert told["verdict"] == "unknown"
    assert "there is none" in told["why"]
    assert not node.refused


def test_without_nvml_the_job_may_start_and_nothing_is_put_back(node: Node) -> None:
    node.library = "libnvidia-ml-that-is-not-there.so"
    assert "there is no NVML" in node.prolog()["settings"]
    assert "there is no NVML" in node.epilog()["why"]


def test_a_gpu_that_hangs_holds_nobody_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.gpus.fault(call="nvmlDeviceGetComputeMode", hang=True)
    with pytest.raises(settings.Failed, match="no answer within"):
        settings.read([0], node.library, deadline_s=0.3)


@needs_root
def test_settings_are_put_back_on_the_gpus_of_the_job_alone(node: Node) -> None:
    node.set(0, power_limit_mw=350000)
    node.prolog()
    before = node.settings()
    node.set(0, compute_mode=3, application_clocks=[1215, 1410], power_limit_mw=200000)
    node.set(1, compute_mode=2)
    told = node.epilog()
    assert told["put_back"] == {"0": {"compute_mode": 0, "application_clocks": [1215, 1095], "power_limit_mw": 350000}}
    assert "unclean" not in told
    after = node.settings()
    assert after["0"] == before["0"]
    assert after["1"]["compute_mode"] == 2


@needs_root
def test_an_epilog_without_a_note_changes_nothing(node: Node) -> None:
    node.set(0, compute_mode=3)
    assert node.epilog() == {}
    assert node.settings()["0"]["compute_mode"] == 3


@needs_root
@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": 5}', '{"gpus": {"0": {"compute_mode": "3"}, "x": {}}}'])
def test_a_note_that_makes_no_sense_changes_nothing(node: Node, text: str) -> None:
    node.prolog()
    Path(Notes(17, str(node.notes)).found).write_text(text)
    node.set(0, compute_mode=3)
    assert "put_back" not in node.epilog()
    assert node.settings()["0"]["compute_mode"] == 3


def test_what_cannot_be_put_back_is_told(node: Node) -> None:
    node.prolog()
    node.gpus.devices[0]["mig"].update(current=1, pending=1)
    node.gpus.devices[0]["memory"]["used_mib"] = 900
    node.gpus.write()
    told = node.epilog()
    assert told["changed"] == {"0": {"mig": [[0, 0], [1, 1]], "memory_used": [571 << 20, 1471 << 20]}}
    assert told["unclean"]


@needs_root
def test_a_setting_that_nvml_refuses_is_told(node: Node) -> None:
    node.prolog()
    node.set(0, compute_mode=3)
    node.gpus.fault(call="nvmlDeviceSetComputeMode", error=999)
    told = node.epilog()
    assert told["refused"] == {"0": {"compute_mode": 999}}
    assert told["unclean"]


def test_notes_are_gone_after_the_epilog(node: Node) -> None:
    node.prolog()
    node.epilog()
    node.host.report(part(0, XID), part(1))
    node.prolog()
    node.epilog()
    assert list(node.notes.iterdir()) == []


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a user without a job."""
    with sleeping(user=1001) as started:
        yield started


def computes(node: Node, minor: int, pid: int) -> None:
    node.gpus.devices[minor]["processes"] = [{"pid": pid, "type": "C", "memory_mib": 100}]
    node.gpus.write()


@needs_root
def test_a_process_that_was_left_on_a_gpu_of_the_job_is_ended(node: Node, sleeper: Any) -> None:
    node.prolog()
    computes(node, 0, sleeper.pid)
    assert node.epilog()["ended"] == [f"{sleeper.pid} sleep"]
    assert sleeper.wait(60) == -signal.SIGKILL


@needs_root
def test_a_process_is_left_where_the_operator_wants_it_so(node: Node, sleeper: Any) -> None:
    node.prolog()
    computes(node, 0, sleeper.pid)
    told = node.epilog(kill=False)
    assert told["left"] == [f"{sleeper.pid} sleep"]
    assert told["unclean"]
    assert left.look(sleeper.pid) is not None


@needs_root
def test_a_process_on_another_gpu_or_of_another_user_is_left_alone(node: Node, sleeper: Any) -> None:
    node.prolog()
    computes(node, 1, sleeper.pid)
    assert node.epilog() == {}
    computes(node, 0, sleeper.pid)
    assert node.epilog(Job(17, 1002, "n1", "0"))["left"] == [f"{sleeper.pid} sleep"]
    assert left.look(sleeper.pid) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "../../etc/passwd"},
        {"SLURM_JOB_UID": "-1"},
        {"SLURMD_NODENAME": "n1 n2"},
        {"SLURM_JOB_GPUS": "0;reboot"},
        {"SLURM_JOB_GPUS": "0\n1"},
    ],
)
def test_what_slurmd_does_not_set_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        of_environment({**ENVIRONMENT, **changes})


def test_names_that_a_user_chooses_are_not_looked_at() -> None:
    job = of_environment({**ENVIRONMENT, "SLURM_JOB_NAME": "$(reboot)\n", "SLURM_JOB_USER": "\x1b[2J"})
    assert job == Job(17, 1001, "n1", "0,1")


def test_a_fault_of_the_program_is_logged_and_fails_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[dict[str, Any], bool]] = []
    monkeypatch.setattr(command, "log", lambda told, is_warning: lines.append((told, is_warning)))
    monkeypatch.setattr(prolog, "prolog", lambda job: ctypes.c_int("no number"))  # type: ignore[arg-type]
    monkeypatch.setattr(command.os, "environ", ENVIRONMENT)
    assert command.main(["prolog"]) == 0
    ((told, is_warning),) = lines
    assert "TypeError" in told["why"]
    assert is_warning


@pytest.mark.parametrize("fails", [False, True])
def test_a_refused_job_has_a_note_and_is_refused_without_slurmctld_too(monkeypatch: pytest.MonkeyPatch, fails) -> None:
    lines: list[dict[str, Any]] = []
    notes: list[tuple[int, str, str]] = []

    def refuse(self: Slurm, *given: Any) -> None:
        if fails:
            raise CallFailed("squeue --json: no answer", "")
        notes.append(given)

    monkeypatch.setattr(command, "log", lambda told, is_warning: lines.append(told))
    monkeypatch.setattr(prolog, "prolog", lambda job: {"verdict": "fatal", "refused": {"GPU-1": ["xid_fatal"]}})
    monkeypatch.setattr(Slurm, "refuse", refuse)
    monkeypatch.setattr(command.os, "environ", ENVIRONMENT)
    assert command.main(["prolog"]) == 0
    assert notes == ([] if fails else [(17, "n1", "GPU-1 is out of order (xid_fatal)")])
    assert lines[0]["refused"] == {"GPU-1": ["xid_fatal"]}
    assert ("not_noted" in lines[0]) == fails


@pytest.mark.parametrize(("words", "code"), [(["epilog"], 0), (["epilog", "--fail-if-unclean"], command.UNCLEAN)])
def test_an_epilog_fails_only_where_it_was_asked_to(monkeypatch: pytest.MonkeyPatch, words: list[str], code: int):
    monkeypatch.setattr(command, "log", lambda told, is_warning: None)
    monkeypatch.setattr(epilog, "epilog", lambda job, kill: {"left": ["1 x"], "unclean": True})
    monkeypatch.setattr(command.os, "environ", ENVIRONMENT)
    assert command.main(words) == code


def test_the_log_has_one_line_of_json(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(path)
        command.log({"what": "prolog", "why": "a\nb\x1b" + "c" * 9000}, True, path)
        head, _colon, text = log.recv(65536).decode().partition(": ")
    assert head.startswith("<28>baremetal-gpu-slurm[")
    assert text.isprintable()
    command.log({"what": "epilog", "job": 17}, False, str(tmp_path / "nobody"))


def test_a_log_line_can_be_read_by_a_program(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(path)
        command.log({"what": "epilog", "job": 17, "ended": ["4 sl\u00e9ep"]}, False, path)
        assert json.loads(log.recv(65536).decode().partition(": ")[2])["job"] == 17
