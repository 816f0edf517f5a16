# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's memory over restarts, and its way of reading the kernel's log."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import state as agent_state
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.state import State
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from tests.unit.plugins.health_host import Host


def test_what_was_saved_is_there_after_a_restart(tmp_path):
    path = str(tmp_path / "state.json")
    host = Host()
    host.xid(79)
    host.look()
    State(path).save(host.history)
    assert State(path).load() == host.history
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_without_a_file_the_history_is_empty(tmp_path):
    state = State(str(tmp_path / "state.json"))
    assert state.load() == {}
    assert state.lost is None


def test_the_same_history_is_not_written_again(tmp_path):
    path = tmp_path / "state.json"
    state = State(str(path))
    state.save({"a": 1})
    before = path.stat().st_ino
    state.save({"a": 1})
    assert path.stat().st_ino == before
    state.save({"a": 2})
    assert path.stat().st_ino != before


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


CORRUPT: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _text: b"",
    "cut": lambda text: text[: len(text) // 2],
    "no UTF-8": lambda text: text[:40] + b"\xff\xfe" + text[40:],
    "zeros, as after a power cut": lambda text: bytes(len(text)),
    "a list": lambda _text: b"[]",
    "a list for the history": lambda _text: b'{"schema": 1, "history": []}',
    "null for the history": lambda _text: b'{"schema": 1, "history": null}',
    "another schema of the history": lambda text: text.replace(b'"schema":1', b'"schema":7', 1),
    "a number for the node": lambda text: text.replace(b'"node":{', b'"node":3,"x":{'),
    "no devices": lambda text: text.replace(b'"devices":', b'"x":'),
    "a bus that is a number": lambda text: text.replace(b'"bus":', b'"bus":7,"x":', 1),
    "a bus without switches": lambda text: text.replace(b'"bus":', b'"bus":{"gpus":[]},"x":', 1),
    "a bus with an address that is a list": lambda text: text.replace(
        b'"bus":', b'"bus":{"gpus":[[1]],"switches":[]},"x":', 1
    ),
    "a recent Xid that is a number": lambda text: text.replace(b'"recent":{', b'"recent":{"79":1},"x":{', 1),
    "null for a list": lambda text: text.replace(b'"boots":[', b'"boots":null,"x":['),
    "deep": lambda text: text.replace(b'"boot":', b'"x":' + nested(100000) + b',"boot":', 1),
    "a huge number": lambda text: text.replace(b'"boot":', b'"missed":1' + b"0" * 400 + b',"boot":', 1),
    "no number": lambda text: text.replace(b'"boot":', b'"sequence":NaN,"boot":', 1),
    "a verdict that is none": lambda text: text.replace(b'"verdict":"fatal"', b'"verdict":"good"'),
    "faults without their parts": lambda text: text.replace(b'"good":', b'"x":'),
}


@pytest.mark.parametrize("name", list(CORRUPT))
def test_a_state_that_was_changed_is_put_aside_and_what_is_wrong_is_said(tmp_path, name):
    host = Host(gpus=2)
    host.xid(79)
    host.look()
    path = tmp_path / "state.json"
    State(str(path)).save(host.history)
    after = CORRUPT[name](path.read_bytes())
    assert after != path.read_bytes()
    path.write_bytes(after)
    state = State(str(path))
    assert state.load() == {}
    assert state.is_new
    assert state.lost.startswith(f"{path} cannot be used (")
    assert (tmp_path / "state.json.unreadable").read_bytes() == after
    assert [one.name for one in tmp_path.iterdir()] == ["state.json.unreadable"]


def test_a_pipe_or_an_endless_file_in_the_states_place_stops_nobody(tmp_path):
    path = tmp_path / "state.json"
    os.mkfifo(path)
    assert State(str(path)).load() == {}
    with open(path, "wb") as file:
        file.truncate(agent_state.SIZE_AT_MOST + 1)
    state = State(str(path))
    assert state.load() == {}
    assert "is larger than" in state.lost
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99, "history": {}}', '{"schema": 1}'])
def test_a_file_that_cannot_be_read_is_kept_aside_and_named(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    state = State(str(path))
    assert state.load() == {}
    assert str(path) in state.lost
    assert (tmp_path / "state.json.unreadable").read_text() == text


def test_a_cut_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    host_files.write(str(path), "old")

    def cut(*_arguments, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        host_files.write(str(path), "new")
    assert path.read_text() == "old"


def test_the_file_says_what_it_is(tmp_path):
    path = tmp_path / "state.json"
    State(str(path)).save({"a": 1})
    assert json.loads(path.read_text()) == {"schema": 1, "history": {"a": 1}}


def test_a_counter_of_64_bits_is_known_after_a_restart(tmp_path):
    path = str(tmp_path / "state.json")
    host = Host()
    host.look()
    memory = {"pcie_replays": {"count": 2**64 - 1, "uptime": 5.0}}
    history = {**host.history, "node": {**host.history["node"], "memory": memory}}
    State(path).save(history)
    state = State(path)
    assert state.load() == history
    assert state.lost is None


def test_the_state_of_the_version_before_is_gone_on_with(tmp_path):
    """It had no `bus`, and `recent` was a list."""
    path = tmp_path / "state.json"
    host = Host()
    host.xid(79)
    host.look()
    old = json.loads(json.dumps(host.history))
    del old["bus"]
    for one in (old["node"], *old["devices"].values()):
        one["recent"] = [{"xid": 79, "uptime": 5.0, "teller": "kernel"}]
    path.write_text(json.dumps({"schema": 1, "history": old}))
    state = State(str(path))
    host.history = state.load()
    assert state.lost is None
    assert host.look()["verdict"] == "fatal"
