# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process of its own on full, broken and vanished disks, with corrupt state, and with a jumping clock.

Every verdict that it publishes is written down, so that a single good word for a broken GPU would be seen.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.module_utils.agent.test_agent import XID_79, Running
from tests.unit.plugins.module_utils.agent.test_state import CORRUPT
from tests.unit.plugins.service_account import needs_root
from tests.unit.plugins.simulated_host import ROOT, Looker, SimulatedHost

# Each verdict on GPU 1 goes to a file, whether or not it can be published; the wall clock can be set.
PROGRAM = """
import os, sys, time
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish as agent_publish
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
snapshot.device_nodes.is_right = lambda node, root: True
told, clock = sys.argv[2:4]
def publish(self, result, real=agent_publish.ResultFile.publish):
    rows = (result["health"] or {}).get("devices", ())
    with open(told, "a") as file:
        file.write(" ".join(row["verdict"] for row in rows if row["index"] == 1) + chr(10))
    real(self, result)
agent_publish.ResultFile.publish = publish
def now(real=time.time):
    return real() + (float(open(clock).read() or 0) if os.path.exists(clock) else 0)
time.time = now
sys.exit(agent_command.main(["--config", sys.argv[1], "agent"]))
"""


class Watched(Running):
    def __init__(self, host: SimulatedHost, directory: Path, library: Path, run: Path, **settings: Any) -> None:
        self.told_file, self.clock = directory / "told", directory / "clock"
        self.run = run
        super().__init__(host, directory, library, socket=str(run / "agent.sock"), **settings)

    def start(self) -> None:
        self.result = self.run / "gpu.json"
        config = json.loads(self.config.read_text())
        self.config.write_text(json.dumps({**config, "result": str(self.result)}))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.config, self.told_file, self.clock],
            env=self.environment,
            cwd=ROOT,
            start_new_session=True,
        )

    def told(self) -> dict[str, Any]:
        # On a full disk, what an earlier writer left may be empty.
        with contextlib.suppress(json.JSONDecodeError):
            return super().told()
        return {}

    def published(self) -> list[str]:
        """The verdicts on GPU 1, in their order."""
        return self.told_file.read_text().splitlines() if self.told_file.exists() else []

    def after(self, number: int = 3) -> list[str]:
        """So many verdicts later; these."""
        before = len(self.published())
        self.until(lambda: len(self.published()) >= before + number)
        return self.published()[before:]

    def ask(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(str(self.run / "agent.sock"))
            to.sendall(json.dumps(request).encode())
            answer: dict[str, Any] = json.loads(to.makefile().readline())
        return answer

    def problems(self) -> str:
        return "; ".join((self.told().get("agent") or {}).get("problems", ()))

    def killed(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def started_again(self) -> list[str]:
        """What the next agent says first. The log was read by the one before, and has nothing any more."""
        before = len(self.published())
        self.start()
        self.until(lambda: len(self.published()) >= before + 3)
        return self.published()[before:]


@pytest.fixture
def agent(tmp_path: Path, nvml_library: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def start(**settings: Any) -> Watched:
        host = SimulatedHost(tmp_path / "root", Looker(nvml_library, tmp_path))
        host.take("busy")
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "state").mkdir(exist_ok=True)
        settings.setdefault("state_directory", str(tmp_path / "state"))
        made.append(Watched(host, tmp_path, nvml_library, tmp_path / "run", **settings))
        made[-1].until(lambda: made[-1].verdicts() == ["ok", "ok"])
        return made[-1]

    yield start
    for one in made:
        one.close()


class Disk:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        options = ["-o", "size=256k,nr_inodes=40"]
        done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", path], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self.path / "filler", "ab", buffering=0) as file:
            while True:
                file.write(bytes(256))

    def fill_inodes(self) -> None:
        (self.path / "many").mkdir()
        with contextlib.suppress(OSError):
            for number in range(100):
                (self.path / "many" / str(number)).touch()

    def empty(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)
        shutil.rmtree(self.path / "many", ignore_errors=True)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True)

    def gone(self) -> None:
        subprocess.run(["umount", "-l", self.path], check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Disk]]:
    made: list[Disk] = []

    def make(name: str) -> Disk:
        made.append(Disk(tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.gone()


# --- a disk that takes nothing ----------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("how", ["blocks", "inodes", "read-only"])
def test_a_disk_that_takes_no_state_loses_no_verdict(agent, disk, how):
    place = disk("state")
    one = agent()
    one.until(lambda: (place.path / "state.json").exists())
    {"blocks": place.fill, "inodes": place.fill_inodes, "read-only": lambda: place.remount("ro")}[how]()
    one.write(XID_79)
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    why = "Read-only file system" if how == "read-only" else "No space left on device"
    assert f"the state cannot be saved ({why})" in one.problems()
    # It goes on, and so does the next one, which finds neither the state nor the record in the log.
    assert set(one.after(3)) == {"fatal"}
    one.killed()
    kept = json.loads((place.path / "state.json").read_text())["history"]["devices"]
    assert [row["faults"] for row in kept.values()] == [{}, {}]
    assert set(one.started_again()) == {"fatal"}
    assert one.reasons(1) == ["xid_fatal"]
    # When there is room again, it is saved, and the result is not needed any more.
    if how == "read-only":
        place.remount("rw")
    place.empty()
    one.until(lambda: "cannot be saved" not in one.problems())
    one.killed()
    one.result.unlink()
    assert set(one.started_again()) == {"fatal"}
    # What an operator lifts is lifted.
    one.ask(do="clear")
    one.until(lambda: one.verdicts() == ["ok", "ok"])
    one.killed()
    assert one.started_again()[-1] == "ok"
    assert [path.name for path in place.path.iterdir()] == ["state.json"]


@needs_root
def test_a_full_run_stops_no_agent_and_loses_nothing(agent, disk):
    place = disk("run")
    one = agent()
    place.fill()
    one.write(XID_79)
    one.until(lambda: "fatal" in one.published())
    # What stands there is still the old one, whole.
    assert one.told()["health"]["verdict"] == "ok"
    one.killed()
    assert set(one.started_again()) == {"fatal"}
    place.empty()
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    one.until(lambda: one.problems() == "")
    assert {path.name for path in place.path.iterdir()} == {"gpu.json", "agent.sock"}


@needs_root
def test_an_agent_that_finds_no_room_at_all_goes_on_and_is_heard_when_there_is_some(agent, disk):
    places = disk("run"), disk("state")
    one = agent()
    for place in places:
        place.fill()
        place.fill_inodes()
    one.write(XID_79)
    one.until(lambda: "fatal" in one.published())
    assert set(one.after(5)) == {"fatal"}
    for place in places:
        place.empty()
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    one.killed()
    one.result.unlink()
    assert set(one.started_again()) == {"fatal"}
    # Also one that is started on full disks is there, although nobody can ask it.
    one.killed()
    for place in places:
        place.fill()
        (place.path / "agent.sock").unlink(missing_ok=True)
        place.fill_inodes()
    assert set(one.started_again()) == {"fatal"}
    for place in places:
        place.empty()
    # The result from before the disks were full had no problems either.
    one.until(lambda: (one.run / "agent.sock").exists())
    one.after(3)
    one.until(lambda: one.problems() == "" and one.verdicts() == ["ok", "fatal"])
    assert one.ask(do="look") == {"asked": True}


def test_a_state_directory_that_is_removed_is_made_again(agent):
    one = agent()
    (one.directory / "state").rename(one.directory / "gone")
    one.write(XID_79)
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    one.killed()
    one.result.unlink()
    assert set(one.started_again()) == {"fatal"}


def test_an_error_of_the_disk_is_told_and_stops_nothing(agent):
    """A directory in the place of the state can neither be read nor replaced."""
    one = agent()
    one.killed()
    path = one.directory / "state" / "state.json"
    path.unlink()
    (path / "inside").mkdir(parents=True)
    assert one.started_again()[-1] == "ok"
    one.until(lambda: "state.json cannot be used" in one.problems())
    one.write(XID_79)
    one.until(lambda: one.verdicts() == ["ok", "fatal"])


# --- a state that was changed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cut", "a list for the history", "deep", "faults without their parts"])
def test_a_corrupt_state_ends_no_agent_and_makes_no_fatal_gpu_well(agent, name):
    one = agent()
    one.write(XID_79)
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    one.killed()
    path = one.directory / "state" / "state.json"
    before = path.read_bytes()
    after = CORRUPT[name](before)
    assert after != before
    path.write_bytes(after)
    assert set(one.started_again()) == {"fatal"}
    assert one.reasons(1) == ["xid_fatal"]
    assert "state.json cannot be used (" in one.problems()
    assert "state.json.unreadable" in one.problems()
    assert path.with_name("state.json.unreadable").read_bytes() == after
    # And the state is a good one again.
    one.killed()
    one.result.unlink()
    assert set(one.started_again()) == {"fatal"}
    assert one.problems() == ""


def test_a_result_of_another_boot_or_that_is_broken_is_not_taken_over(agent):
    one = agent()
    one.killed()
    whole = json.loads(one.result.read_text())
    whole["health"]["devices"][1]["reasons"] = [{"code": "xid_fatal", "verdict": "fatal"}]
    for text in (json.dumps({**whole, "boot_id": "another"}), "{", "[" * 100000, json.dumps({**whole, "health": 3})):
        (one.directory / "state" / "state.json").unlink()
        one.result.write_text(text)
        assert one.started_again()[-1] == "ok"
        one.killed()
    # Of this boot, also one that has little in it counts.
    (one.directory / "state" / "state.json").unlink()
    one.result.write_text(json.dumps(whole))
    assert set(one.started_again()) == {"fatal"}


# --- clocks and logs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-400 * 86400.0, 400 * 86400.0])
def test_a_clock_that_jumps_sets_and_lifts_nothing(agent, jump):
    one = agent()
    one.write(XID_79)
    one.until(lambda: one.verdicts() == ["ok", "fatal"])
    since = one.told()["health"]["devices"][1]["since"]
    one.clock.write_text(str(jump))
    assert set(one.after(5)) == {"fatal"}
    assert one.verdicts() == ["ok", "fatal"]
    assert one.told()["health"]["devices"][1]["since"] == since
    one.killed()
    one.clock.write_text(str(-jump))
    assert set(one.started_again()) == {"fatal"}
    one.ask(do="clear")
    one.until(lambda: one.verdicts() == ["ok", "ok"])


@pytest.mark.parametrize("turned", [False, True])
def test_a_plain_file_in_the_logs_place_is_read_as_it_grows(agent, turned):
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"agent-log-{os.getpid()}"
    log.write_text("")
    try:
        one = agent(kernel_log=str(log))
        one.after(3)
        assert one.problems() == ""
        if turned:
            log.unlink()
        with open(log, "a") as file:
            file.write(f"4,7,1000000,-;{XID_79}\n")
        one.until(lambda: one.verdicts() == ["ok", "fatal"])
        assert one.told()["agent"]["xids"][0]["count"] == 1
        one.after(5)
        assert one.told()["agent"]["xids"][0]["count"] == 1
    finally:
        log.unlink()


@pytest.mark.parametrize("path", ["/dev/null", "/", "/nowhere/kmsg"])
def test_what_is_no_log_is_told_and_ends_no_agent(agent, path):
    one = agent(kernel_log=path)
    one.after(3)
    if path != "/dev/null":
        assert f"{path} cannot be read" in one.problems()
    assert one.verdicts() == ["ok", "ok"]


def test_an_agent_without_room_for_a_process_tells_it():
    from ansible_collections.baremetal.gpu.plugins.module_utils.agent import prober as agent_prober

    prober = agent_prober.Prober(lambda: None, 1.0, 1.0)

    def no_process() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    open_before = len(os.listdir("/proc/self/fd"))
    fork, agent_prober.os.fork = agent_prober.os.fork, no_process
    try:
        with pytest.raises(OSError, match="temporarily"):
            prober.ask(slow=False)
        prober.kill()
    finally:
        agent_prober.os.fork = fork
    assert len(os.listdir("/proc/self/fd")) == open_before
