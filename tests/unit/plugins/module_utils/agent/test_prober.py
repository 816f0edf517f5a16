# SPDX-License-Identifier: GPL-3.0-or-later
"""The child that talks to NVML, with readers that hang, crash and lie. The readers are hand-made."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import prober as agent_prober
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.prober import Prober
from tests.unit.plugins.health_host import Host, address, uuid

EVENT = {
    "kind": "nvml_xid",
    "uuid": uuid(0),
    "pci_address": address(0),
    "xid": 79,
    "text": "NVML reports Xid 79",
    "sequence": None,
    "uptime": 12.5,
    "boot_id": None,
    "detail": {},
}


class Reader:
    """Answers with what its class says. The prober sets what is to be told of the questions, and whom not to ask."""

    trace: Any
    avoid: dict[int, dict[str, Any]]

    def read(self, slow: bool = False) -> dict[str, Any]:
        return {**Host(0).snapshot(), "slow": slow, "process": os.getpid()}

    def events(self, _wait_ms: int) -> Iterator[dict[str, Any]]:
        return iter(())

    def close(self) -> None:
        """There is nothing to let go of."""


class Hanging(Reader):
    def read(self, slow: bool = False) -> dict[str, Any]:
        time.sleep(3600)
        return {}


class Crashing(Reader):
    def read(self, slow: bool = False) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


class GoingSilent(Reader):
    """A process that ends closes its pipes before the driver's device nodes, and may hang over these."""

    def read(self, slow: bool = False) -> dict[str, Any]:
        os.closerange(3, 1024)
        time.sleep(3600)
        return {}


class HangingOver(Reader):
    """Two GPUs, of which the second hangs as long as the file is there."""

    sick = Path()

    def read(self, slow: bool = False) -> dict[str, Any]:
        for gpu in (0, 1):
            if gpu not in self.avoid:
                self.trace.note(gpu, "power_w")
                if gpu == 1 and self.sick.exists():
                    time.sleep(3600)
        return {**Host(0).snapshot(), "avoided": sorted(self.avoid)}


class Watching(Reader):
    def read(self, slow: bool = False) -> dict[str, Any]:
        return Host().snapshot()

    def events(self, _wait_ms: int) -> Iterator[dict[str, Any]]:
        yield EVENT


@pytest.fixture
def prober() -> Iterator[Callable[..., Prober]]:
    made = []

    def make(reader: type[Reader], deadline_s: float = 30.0) -> Prober:
        made.append(Prober(reader, deadline_s, deadline_s))
        return made[-1]

    yield make
    for one in made:
        one.kill()
        one.reap(5)


def hear(prober: Prober, wanted: int = 1) -> list[dict[str, Any]]:
    """What the child says, until it has said enough or ended."""
    messages: list[dict[str, Any]] = []
    end = time.monotonic() + 30
    while len(messages) < wanted and prober.descriptor is not None and time.monotonic() < end:
        select.select([prober.descriptor], [], [], 1)
        messages += prober.receive()
    return messages


def test_one_child_answers_every_question(prober):
    one = prober(Reader)
    assert one.ask(slow=False)
    first = hear(one)[0]["snapshot"]
    assert one.ask(slow=True)
    second = hear(one)[0]["snapshot"]
    assert (first["slow"], second["slow"]) == (False, True)
    assert first["process"] == second["process"] != os.getpid()
    assert one.deadline is None


def test_a_child_that_hangs_is_killed_and_said_to_hang(prober):
    one = prober(Hanging, deadline_s=0.2)
    one.ask(slow=False)
    assert one.overdue() is None
    process = one.process
    time.sleep(0.25)
    error = one.overdue()
    assert error is not None
    assert error["name"] == "timeout"
    assert "drain the host and reboot" in error["remedy"]
    one.reap(5)
    assert one.stuck == []
    assert not Path(f"/proc/{process}").exists()
    assert one.ask(slow=False), "the next look starts a new child"


def look(prober: Prober) -> dict[str, Any]:
    """What comes of a look: its snapshot, or its error."""
    assert prober.ask(slow=False)
    (said,) = _until_answer(prober)
    return said


def _until_answer(prober: Prober) -> list[dict[str, Any]]:
    end = time.monotonic() + 30
    while time.monotonic() < end and prober.descriptor is not None:
        select.select([prober.descriptor], [], [], 0.05)
        said = prober.receive()
        if said:
            return said
        error = prober.overdue()
        if error:
            prober.reap(5)
            return [{"error": error}]
    raise AssertionError("no answer")


def test_a_gpu_that_hangs_twice_is_named_and_left_out_until_it_is_tried_again(prober, monkeypatch, tmp_path):
    sick = tmp_path / "sick"
    sick.touch()
    monkeypatch.setattr(HangingOver, "sick", sick)
    one = prober(HangingOver, deadline_s=0.3)
    for _look in range(2):
        error = look(one)["error"]
        assert (error["name"], error["device"], error["asked"]) == ("timeout", 1, "power_w")
        assert "asked for power_w of GPU 1" in error["text"]
    assert look(one)["snapshot"]["avoided"] == [1]
    assert look(one)["snapshot"]["avoided"] == [1]
    one.retry()
    assert look(one)["error"]["device"] == 1
    assert look(one)["snapshot"]["avoided"] == [1], "one look was enough to know it again"
    sick.unlink()
    one.retry()
    assert look(one)["snapshot"]["avoided"] == []
    assert look(one)["snapshot"]["avoided"] == []
    assert one.avoid == {}


def test_a_gpu_that_is_left_out_is_tried_again_after_ever_longer_times(prober, monkeypatch, tmp_path):
    sick = tmp_path / "sick"
    sick.touch()
    monkeypatch.setattr(HangingOver, "sick", sick)
    clock = [0.0]
    one = prober(HangingOver, deadline_s=0.3)
    look(one)
    look(one)
    monkeypatch.setattr(agent_prober.time, "monotonic", lambda real=time.monotonic: real() + clock[0])
    tried = []
    for _minute in range(8):
        clock[0] += 61
        tried.append("error" in look(one))
    assert tried == [True, False, True, False, False, False, True, False]


def test_no_second_child_is_started_while_one_is_stuck(prober, monkeypatch):
    """A process in an uninterruptible call cannot be made here, so one that outlives its kill stands in for it."""
    one = prober(Hanging, deadline_s=0.1)
    monkeypatch.setattr(agent_prober.os, "kill", lambda *_arguments: None)
    one.ask(slow=False)
    process = one.process
    time.sleep(0.15)
    assert one.overdue()
    assert one.stuck == [process]
    assert not one.ask(slow=False)
    assert one.process is None
    assert "hangs in the kernel" in one.still_stuck()["text"]
    monkeypatch.undo()
    os.kill(process, signal.SIGKILL)
    one.reap(5)
    assert one.ask(slow=False)


def test_a_child_that_crashes_is_said_to_have_crashed(prober):
    one = prober(Crashing)
    one.ask(slow=False)
    (message,) = hear(one)
    assert message["error"]["name"] == "crashed"
    assert "by signal 9" in message["error"]["text"]
    assert one.stuck == []


def test_a_child_that_closed_its_pipe_and_does_not_end_is_not_waited_for(prober, monkeypatch):
    one = prober(GoingSilent)
    monkeypatch.setattr(agent_prober.os, "kill", lambda *_arguments: None)
    one.ask(slow=False)
    process = one.process
    (message,) = hear(one)
    assert (message["error"]["name"], one.stuck) == ("timeout", [process])
    assert "does not come to its end" in message["error"]["text"]
    assert "drain the host and reboot" in message["error"]["remedy"]
    assert not one.ask(slow=False)
    monkeypatch.undo()
    os.kill(process, signal.SIGKILL)
    one.reap(5)
    assert one.ask(slow=False)


@pytest.mark.parametrize("said", [b"not json\n", b"[1]\n", b"\xff\xfe\n", b"[" * 20_000 + b"\n"])
def test_garbage_is_said_to_be_garbage(prober, monkeypatch, said):
    monkeypatch.setattr(agent_prober.Child, "_send", lambda child, _message: os.write(child.answers, said))
    one = prober(Reader)
    one.ask(slow=False)
    (message,) = hear(one)
    assert message["error"]["name"] == "garbage"
    assert one.process is None


def test_events_of_nvml_come_by_themselves(prober):
    one = prober(Watching)
    one.ask(slow=False)
    messages = hear(one, wanted=2)
    assert [message for message in messages if "event" in message] == [{"event": EVENT}]


def test_another_library_at_the_same_path_is_noticed(tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("old")
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 fe:01 {library.stat().st_ino}                  {library}\n")
    mapped = agent_prober.mapped_library(str(maps), ())
    assert mapped == (str(library), library.stat().st_ino)
    assert not agent_prober.library_has_changed(mapped)
    new = tmp_path / "new"
    new.write_text("new")
    new.replace(library)
    assert agent_prober.library_has_changed(mapped)
    library.unlink()
    assert agent_prober.library_has_changed(mapped)


def test_a_link_that_leads_to_another_library_is_noticed(tmp_path):
    """As when update-alternatives turns Debian's links to another branch and the old one stays."""
    old, new, link = (
        tmp_path / "libnvidia-ml.so.535.1",
        tmp_path / "libnvidia-ml.so.570.1",
        tmp_path / "libnvidia-ml.so.1",
    )
    old.write_text("old")
    new.write_text("new")
    link.symlink_to(old)
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 fe:01 {old.stat().st_ino}                  {old}\n")
    mapped = agent_prober.mapped_library(str(maps), (f"{tmp_path}*/libnvidia-ml.so.1",))
    assert mapped == (str(link), old.stat().st_ino)
    assert not agent_prober.library_has_changed(mapped)
    link.unlink()
    assert agent_prober.library_has_changed(mapped)
    link.symlink_to(new)
    assert agent_prober.library_has_changed(mapped)


def test_a_child_with_an_old_library_ends_and_says_why(prober, monkeypatch):
    monkeypatch.setattr(agent_prober, "library_has_changed", lambda mapped: mapped is not None)
    monkeypatch.setattr(agent_prober, "mapped_library", lambda: ("/usr/lib/libnvidia-ml.so.1", 1))
    one = prober(Reader)
    one.ask(slow=False)
    assert "snapshot" in hear(one)[0]
    one.ask(slow=False)
    assert hear(one) == [{"library_changed": True}]
