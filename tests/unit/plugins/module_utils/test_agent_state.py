# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's memory over restarts, and its way of reading the kernel's log."""

from __future__ import annotations

import json
import os
import stat

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils import agent_state
from ansible_collections.baremetal.gpu.plugins.module_utils.agent_state import State
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
    agent_state.write_atomically(str(path), "old")

    def cut(*_arguments, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        agent_state.write_atomically(str(path), "new")
    assert path.read_text() == "old"


def test_the_file_says_what_it_is(tmp_path):
    path = tmp_path / "state.json"
    State(str(path)).save({"a": 1})
    assert json.loads(path.read_text()) == {"schema": 1, "history": {"a": 1}}
