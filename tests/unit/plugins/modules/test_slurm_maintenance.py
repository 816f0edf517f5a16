# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm_maintenance drains a node and resumes it, waits for users' jobs, and undoes nothing that others have done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import control, maintenance
from ansible_collections.baremetal.gpu.plugins.modules import slurm_maintenance

Result = dict[str, Any]
Ask = Callable[..., Result]

# As 24.11.5 prints it, less some fields.
LINE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=2  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=6.08 Gres=gpu:a100:2 "
    "GresDrain=N/A GresUsed=gpu:a100:1(IDX:1) NodeAddr=192.0.2.1 NodeHostName=n1 RealMemory=22057 State={state} "
    "ThreadsPerCore=1 Partitions=all  BootTime=2026-11-27T09:00:00 SlurmdStartTime=2026-11-27T10:00:00 "
    "LastBusyTime=2026-11-27T11:00:00 ResumeAfterTime=None {end}"
)
BY_ROOT = "root@2026-11-27T14:00:00"


def job(number: int, **more: Any) -> dict[str, Any]:
    return {
        "job_id": number,
        "user_name": "alice",
        "partition": "all",
        "name": "train",
        "job_state": ["RUNNING"],
        "gres_detail": ["gpu:a100:1(IDX:1)"],
        "job_resources": {"nodes": {"allocation": [{"name": "n1"}]}},
        "time_limit": {"set": True, "infinite": False, "number": 90},
        "end_time": {"set": True, "infinite": False, "number": 0},
        **more,
    }


class Controller:
    """Stands in for scontrol and squeue on the host of slurmctld, with the node n1."""

    def __init__(self) -> None:
        self.state = "MIXED"
        self.reason = ""
        self.jobs: list[dict[str, Any]] = []
        self.told: list[str] = []
        self.answers = True
        self.on_look: Callable[[], None] = lambda: None

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if not self.answers:
            return 1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)"
        if argv[0].endswith("squeue"):
            self.on_look()
            return 0, json.dumps({"jobs": self.jobs}), ""
        if "show" in argv:
            end = f"Reason={self.reason} " if self.reason else ""
            return 0, LINE.format(state=self.state, end=end) + "\n", ""
        self.told.append(" ".join(argv[1:]))
        words = dict(word.split("=", 1) for word in argv if "=" in word)
        if words["state"] == "drain":
            self.state, self.reason = "MIXED+DRAIN", f"{words['reason']} [{BY_ROOT}]"
        else:
            self.state, self.reason = "IDLE", ""
        return 0, "", ""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Controller:
    made = Controller()
    monkeypatch.setattr(slurm_maintenance, "run", made.run)
    monkeypatch.setattr(maintenance, "is_set_up", lambda: True)
    conf = tmp_path / "gres.conf"
    conf.write_text("".join(f"NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia{minor}\n" for minor in (0, 3)))
    read = control.read_text
    monkeypatch.setattr(control, "read_text", lambda path: read(str(conf) if path == control.GRES_CONF else path))
    return made


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(state: str, failed: bool = False, check: bool = False, **options: Any) -> Result:
        given = {"node": "n1", "state": state, "timeout": 0, "_ansible_check_mode": check, **options}
        with patch_module_args(given), pytest.raises(SystemExit) as ended:
            slurm_maintenance.main()
        told: Result = json.loads(capsys.readouterr().out)
        assert ended.value.code == int(failed), told
        return told

    return asked


def problem(told: Result) -> dict[str, str]:
    (only,) = told["problems"]
    return dict(only)


def test_a_node_is_drained_once_with_the_reason_and_resumed_once(slurm: Controller, ask: Ask) -> None:
    told = ask("drained", reason="another fan")
    assert (told["changed"], told["action"], told["ours"]) == (True, "drain", True)
    assert slurm.told == ["update nodename=n1 state=drain reason=gpuops drain: another fan"]
    told = ask("drained", reason="upgrade")
    assert (told["changed"], told["ours"], told["node"]["reason"]) == (False, True, "gpuops drain: another fan")
    told = ask("active")
    assert (told["changed"], told["action"], told["ours"]) == (True, "resume", False)
    assert slurm.told[1:] == ["update nodename=n1 state=resume"]
    assert ask("active")["changed"] is False


def test_check_mode_tells_the_same_difference_and_changes_nothing(slurm: Controller, ask: Ask) -> None:
    for state in ("drained", "active"):
        announced = ask(state, check=True)
        before = list(slurm.told)
        done = ask(state)
        assert announced["diff"] == done["diff"]
        assert announced["diff"]["before"] != announced["diff"]["after"]
        assert announced["changed"] is done["changed"] is True
        assert len(slurm.told) == len(before) + 1


def test_a_reason_is_one_short_line(slurm: Controller, ask: Ask) -> None:
    ask("drained", reason="first\nsecond\x1b[31m; before: gpuops: nothing" + "x" * 500)
    (told,) = slurm.told
    reason = told.partition("reason=")[2]
    assert reason.startswith("gpuops drain: first second\ufffd[31m; gpuops: nothing")
    assert len(reason) < 200
    assert maintenance.reason_before(reason) == ""


def test_users_jobs_are_waited_for_and_named_when_the_time_is_over(slurm: Controller, ask: Ask) -> None:
    slurm.jobs = [
        job(12),
        job(13, user_name="bob", gres_detail=[], time_limit={"set": True, "infinite": True, "number": 0}),
        job(14, partition="gpuops", user_name="slurm"),
    ]
    told = ask("drained", failed=True, timeout=0.01)
    found = problem(told)
    assert found["code"] == "jobs_left"
    assert "job 12 of alice (/dev/nvidia3; time limit 01:30:00)" in told["msg"]
    assert "job 13 of bob (no GPU; no time limit)" in told["msg"]
    assert "14" not in told["msg"]
    assert "scancel 12 13" in found["remedy"]
    assert not any("scancel" in line or "cancel" in line for line in slurm.told)
    assert slurm.state == "MIXED+DRAIN"


def test_without_a_wait_the_jobs_are_told(slurm: Controller, ask: Ask) -> None:
    slurm.jobs = [job(12)]
    (left,) = ask("drained")["jobs"]
    assert (left["id"], left["user"], left["gpus"], left["limit_min"]) == (12, "alice", ["/dev/nvidia3"], 90)


def test_holders_alone_do_not_keep_a_node(slurm: Controller, ask: Ask) -> None:
    slurm.jobs = [job(14, partition="gpuops", user_name="slurm")]
    assert ask("drained", timeout=5)["jobs"] == []


def test_a_node_that_takes_jobs_again_meanwhile_is_not_called_empty(slurm: Controller, ask: Ask) -> None:
    def resumed() -> None:
        slurm.state, slurm.reason = "IDLE", ""

    slurm.on_look = resumed
    assert problem(ask("drained", failed=True, timeout=5))["code"] == "resumed_meanwhile"


@pytest.mark.parametrize(
    ("state", "reason"),
    [("IDLE+DRAIN", f"fan [{BY_ROOT}]"), ("DOWN", f"gone [{BY_ROOT}]"), ("IDLE+DRAIN", "Prolog error [slurm@x]")],
)
def test_what_others_took_out_keeps_its_reason_and_stays_out(
    slurm: Controller, ask: Ask, state: str, reason: str
) -> None:
    slurm.state, slurm.reason = state, reason
    told = ask("drained")
    assert (told["changed"], told["ours"], told["node"]["owner"]) == (False, False, "other")
    left = ask("active", foreign="left")
    assert (left["changed"], left["node"]["owner"]) == (False, "other")
    refused = ask("active", failed=True)
    assert problem(refused)["code"] == "drained_by_others"
    assert reason.split(" [")[0] in refused["msg"]
    assert slurm.told == []
    assert ask("active", foreign="taken")["action"] == "resume"


def test_who_drained_a_node_and_when_is_told(slurm: Controller, ask: Ask) -> None:
    slurm.state, slurm.reason = "IDLE+DRAIN", f"another fan [{BY_ROOT}] ReservationName=gpuops-n1"
    told = ask("active", failed=True)["msg"]
    assert "drained by root since 2026-11-27T14:00:00 with the reason 'another fan'" in told


def test_a_drain_of_the_reconciler_is_taken_over_and_given_back(slurm: Controller, ask: Ask) -> None:
    slurm.state, slurm.reason = "IDLE+DRAIN", f"gpuops: xid_79 [{BY_ROOT}]"
    told = ask("drained", reason="another GPU")
    assert (told["ours"], told["node"]["before"]) == (True, "reconciler")
    assert not told["node"]["reason"].startswith(control.FENCE_MARK), "the reconciler would resume it"
    announced = ask("active", check=True)
    told = ask("active")
    assert (told["action"], told["node"]["owner"], told["node"]["reason"]) == (
        "hand_back",
        "reconciler",
        "gpuops: xid_79",
    )
    assert announced["diff"] == told["diff"]
    assert not any("state=resume" in line for line in slurm.told)


def test_a_node_down_by_slurmctld_itself_can_be_drained_and_resumed(slurm: Controller, ask: Ask) -> None:
    slurm.state, slurm.reason = "DOWN*", "Not responding [slurm@2026-11-27T14:00:00]"
    assert ask("drained")["action"] == "drain"
    slurm.state = "DOWN+DRAIN"
    assert ask("active")["action"] == "resume"


def test_a_node_that_has_not_registered_since_its_slurmd_was_started_stays_drained(slurm: Controller, ask: Ask) -> None:
    ask("drained")
    started = maintenance.time.mktime((2026, 11, 27, 10, 0, 0, 0, 0, -1))
    assert problem(ask("active", failed=True, slurmd_started=started + 60))["code"] == "not_registered"
    slurm.state = "IDLE*+DRAIN"
    assert problem(ask("active", failed=True))["code"] == "not_registered"
    slurm.state = "IDLE+DRAIN"
    assert ask("active", slurmd_started=started + 0.4)["action"] == "resume"


def test_a_node_with_fewer_gpus_than_slurm_conf_has_stays_drained(slurm: Controller, ask: Ask) -> None:
    ask("drained")
    slurm.state = "IDLE+DRAIN+INVALID_REG"
    slurm.reason = slurm.reason.replace(" [", " : gres/gpu count reported lower than configured (1 < 2) [")
    told = ask("active", failed=True)
    assert problem(told)["code"] == "registers_less"
    assert "less than slurm.conf claims" in told["msg"]
    assert "Gres=gpu:a100:2" in problem(told)["evidence"]
    assert "count reported lower" in problem(told)["evidence"]
    assert slurm.state == "IDLE+DRAIN+INVALID_REG"


def test_a_host_that_is_no_node_is_refused_or_left_as_asked(
    slurm: Controller, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem(ask("drained", failed=True, node="n[1-9]"))["code"] == "no_node"
    told = ask("drained", node="n2", unknown="left")
    assert (told["changed"], told["node"]) == (False, None)
    monkeypatch.setattr(maintenance, "is_set_up", lambda: False)
    assert problem(ask("drained", failed=True))["code"] == "no_slurm"
    assert ask("active", unknown="left")["node"] is None
    assert slurm.told == []


def test_a_slurmctld_that_does_not_answer_is_no_empty_node(slurm: Controller, ask: Ask) -> None:
    slurm.answers = False
    told = ask("drained", failed=True, unknown="left")
    assert "Unable to contact slurm controller" in told["msg"]


def test_a_wait_goes_on_while_slurmctld_is_restarted() -> None:
    class Restarted:
        def __init__(self) -> None:
            self.failures = 2

        def jobs_on(self, node: str) -> list[control.Job]:
            self.failures -= 1
            if self.failures >= 0:
                raise control.CallFailed("squeue: connect failure")
            return []

        def nodes(self) -> dict[str, dict[str, Any]]:
            return {"n1": {"drained": True, "reason": "gpuops drain: x"}}

    times = iter(range(100))
    slurm = Restarted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "is_set_up", lambda: True)
        maintenance.wait_empty(slurm, "n1", 50, lambda: next(times), lambda _s: None)  # type: ignore[arg-type]
        assert slurm.failures == -1
        slurm.failures = 1000
        with pytest.raises(Refused, match="connect failure"):
            maintenance.wait_empty(slurm, "n1", 50, lambda: next(times), lambda _s: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (5400, "01:30:00"), (2 * 86400 + 61, "2-00:01:01"), (59.9, "00:00:59")]
)
def test_a_time_is_written_as_slurm_does(seconds: float, text: str) -> None:
    assert maintenance.duration(seconds) == text
