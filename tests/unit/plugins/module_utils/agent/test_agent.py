# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process of its own, with the real pynvml on the simulated NVML library. The file tree is hand-made."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.simulated_host import ROOT, Looker, SimulatedHost

XID_79 = "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

# The file tree is a plain user's, who can make no device files.
PROGRAM = """
import sys
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
snapshot.device_nodes.is_right = lambda node, root: True
sys.exit(agent_command.main(["--config", sys.argv[1], "agent"]))
"""


class Running:
    """An agent, and what can be seen of it from outside."""

    def __init__(self, host: SimulatedHost, directory: Path, library: Path, **settings: Any) -> None:
        self.host = host
        self.directory = directory
        self.result = directory / "gpu.json"
        self.log = directory / "kmsg"
        self.config = directory / "agent.json"
        self.sequence = 0
        if not self.log.exists():
            os.mkfifo(self.log)
        self.writer = os.open(self.log, os.O_RDWR)
        self.environment = {**host.looker.environment, "LD_LIBRARY_PATH": str(library)}
        told = {
            "state_directory": str(directory),
            "socket": str(directory / "agent.sock"),
            "kernel_log": str(self.log),
            "interval_s": 0.1,
            "deadline_s": 4.0,
            "start_deadline_s": 8.0,
            "root": host.path,
            **settings,
        }
        self.config.write_text(json.dumps({"settings": told, "result": str(self.result)}))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.config], env=self.environment, cwd=ROOT, start_new_session=True
        )

    def close(self) -> None:
        """End it with its child, which may hang: systemd ends the whole unit, too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.writer)

    def told(self) -> dict[str, Any]:
        """The last result; empty before the first."""
        try:
            found: dict[str, Any] = json.loads(self.result.read_text())
        except FileNotFoundError:
            return {}
        return found

    def reasons(self, gpu: int | None = None) -> list[str]:
        health = self.told().get("health") or {}
        devices = health.get("devices", [])
        part = health if gpu is None else devices[gpu] if gpu < len(devices) else {}
        return [row["code"] for row in part.get("reasons", ())]

    def verdicts(self) -> list[str]:
        return [row["verdict"] for row in (self.told().get("health") or {}).get("devices", ())]

    def until(self, wanted: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait for what must come. Meanwhile the agent never has a second child."""
        end = time.monotonic() + seconds
        while not (found := wanted()):
            assert self.process.poll() is None, f"the agent ended with {self.process.returncode}"
            assert len(self.children()) <= 1
            assert time.monotonic() < end, json.dumps(self.told(), indent=1)
            time.sleep(0.02)
        return found

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        living = []
        for word in path.read_text().split():
            try:
                state = Path(f"/proc/{word}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z":
                living.append(int(word))
        return living

    def looks(self) -> float:
        return float((self.told().get("agent") or {}).get("probe_time") or 0.0)

    def after_looks(self, number: int = 3) -> None:
        for _look in range(number):
            before = self.looks()
            self.until(lambda before=before: self.looks() > before)

    def fault(self, **parts: Any) -> None:
        self.host.scenario["faults"] = [parts] if parts else []
        self.host.save()

    def write(self, line: str) -> None:
        self.sequence += 1
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(self.writer, f"4,{self.sequence},{int(uptime * 1e6)},-;{line}\n".encode())

    def ask(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(str(self.directory / "agent.sock"))
            to.sendall(json.dumps(request).encode())
            answer: dict[str, Any] = json.loads(to.makefile().readline())
        return answer


@pytest.fixture
def agent(tmp_path: Path, nvml_library: Path) -> Iterator[Callable[..., Running]]:
    """Starts an agent on a host with two GPUs that are well."""
    made: list[Running] = []

    def start(library: Path = nvml_library, name: str = "busy", **settings: Any) -> Running:
        host = SimulatedHost(tmp_path / "root", Looker(library, tmp_path))
        host.take(name)
        made.append(Running(host, tmp_path, library, **settings))
        made[-1].until(lambda: made[-1].verdicts() == ["ok", "ok"])
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_call_that_hangs_for_ever_is_a_finding_on_one_gpu(agent):
    one = agent()
    begun, spent = time.monotonic(), cpu_seconds(one.process.pid)
    one.fault(call="nvmlDeviceGetPowerUsage", device=1, hang=True)
    one.until(lambda: one.reasons(1) == ["gpu_hang"])
    # It sleeps while it waits for an answer, although the next look is due long before it gives the answer up.
    assert cpu_seconds(one.process.pid) - spent < 0.25 * (time.monotonic() - begun)
    reason = one.told()["health"]["devices"][1]["reasons"][0]
    assert "asked for power_w of GPU 1" in reason["text"]
    # The other one is looked at again, and stays well.
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    one.after_looks()
    assert one.verdicts() == ["ok", "fatal"]
    assert one.reasons() == []
    # What was mended is found well as soon as somebody asks.
    one.fault()
    one.ask(do="look")
    one.until(lambda: one.verdicts() == ["ok", "ok"])


def test_a_driver_that_hangs_altogether_is_a_finding_on_the_host(agent):
    one = agent()
    one.fault(call="*", hang=True)
    one.until(lambda: one.told()["health"]["verdict"] == "fatal")
    assert set(one.reasons()) | set(one.reasons(0)) | set(one.reasons(1)) <= {"nvml_hang", "gpu_hang"}
    one.fault()
    one.ask(do="look")
    one.until(lambda: one.verdicts() == ["ok", "ok"])


def test_a_call_that_crashes_the_process_is_a_finding_and_leaves_the_agent_alone(agent):
    one = agent()
    pid = one.process.pid
    one.fault(call="nvmlDeviceGetTemperature", device=1, crash=True)
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    assert one.reasons(1) == ["gpu_crash"]
    one.fault()
    one.ask(do="look")
    one.until(lambda: one.verdicts() == ["ok", "ok"])
    assert one.process.pid == pid


def test_a_look_that_nvml_refuses_has_not_succeeded_and_says_nothing_of_the_host(agent):
    one = agent()
    one.after_looks(2)
    # The host is short of memory.
    one.fault(call="nvmlInit*", error=20)
    one.ask(do="look")
    one.until(lambda: one.told()["health"]["verdict"] == "unknown")
    succeeded = one.looks()
    one.until(lambda: one.told()["time"] > succeeded + 2)
    assert one.looks() == succeeded
    one.fault()
    one.ask(do="look")
    one.until(lambda: one.verdicts() == ["ok", "ok"])
    assert one.looks() > succeeded


def test_garbage_is_no_verdict_on_the_other_gpu_and_stops_nothing(agent):
    one = agent()
    one.fault(call="nvmlDeviceGet*", device=1, garbage=True)
    one.after_looks(8)
    assert one.verdicts()[0] == "ok"
    assert one.reasons() == []
    (problem,) = one.told()["agent"]["problems"]
    assert problem.startswith("NVML gives impossible answers: GPU 1: ")
    one.fault()
    one.until(lambda: one.verdicts() == ["ok", "ok"] and one.told()["agent"]["problems"] == [])


def test_an_xid_is_fatal_until_it_is_cleared_and_is_not_forgotten_by_a_killed_agent(agent):
    one = agent()
    one.write(XID_79)
    one.until(lambda: one.reasons(1) == ["xid_fatal"])
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    one.start()
    one.after_looks()
    assert one.reasons(1) == ["xid_fatal"]
    assert one.told()["agent"]["xids"][0]["count"] == 1
    one.ask(do="clear")
    one.after_looks()
    assert one.verdicts() == ["ok", "ok"]


def test_what_the_reconciler_says_is_handed_on_by_another_program_too(agent):
    one = agent()
    one.write(XID_79)
    one.until(lambda: one.reasons(1) == ["xid_fatal"])
    order = {"kind": "reset", "agent_id": "", "gpus": ["GPU-1"], "id": "n1-1-1"}
    orders = {"order": order, "clear": {"id": "r-1", "device": None}}
    assert one.ask(do="hear", orders=orders) == {"heard": True}
    one.until(lambda: one.verdicts() == ["ok", "ok"])
    assert json.loads((one.directory / "order.json").read_text())["id"] == "n1-1-1"
    # Once: what fails after it stays.
    one.write(XID_79)
    one.until(lambda: one.reasons(1) == ["xid_fatal"])
    assert one.ask(do="hear", orders=orders) == {"heard": True}
    one.after_looks()
    assert one.reasons(1) == ["xid_fatal"]
    assert "has no id" in one.ask(do="hear", orders={"order": {"kind": "reset", "agent_id": "", "gpus": []}})["error"]


def test_a_log_that_ends_is_told_and_opened_again(agent):
    one = agent()
    os.close(one.writer)
    one.until(lambda: any("it has ended" in problem for problem in one.told()["agent"]["problems"]))
    # It sleeps between two looks, and does not turn in circles.
    spent, began = cpu_seconds(one.process.pid), time.monotonic()
    one.after_looks(10)
    assert cpu_seconds(one.process.pid) - spent < (time.monotonic() - began) / 2
    one.writer = os.open(one.log, os.O_RDWR)
    one.write(XID_79)
    one.until(lambda: one.reasons(1) == ["xid_fatal"])
    one.until(lambda: one.told()["agent"]["problems"] == [])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_driver_that_was_exchanged_ends_the_agent_so_that_it_is_started_with_the_new_one(
    agent, tmp_path, nvml_library
):
    own = tmp_path / "library"
    own.mkdir()
    shutil.copy(nvml_library / "libnvidia-ml.so.1", own)
    one = agent(library=own)
    child = one.children()
    one.after_looks()
    assert one.children() == child
    # As dpkg does it: the new file under another name, and then in the place of the old one.
    shutil.copy(nvml_library / "libnvidia-ml.so.1", own / "new")
    (own / "new").replace(own / "libnvidia-ml.so.1")
    assert one.process.wait(60) == 0
    before = one.looks()
    one.start()
    one.until(lambda: one.looks() > before)
    assert one.verdicts() == ["ok", "ok"]
