# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of a training: whatever breaks one, the one before is there, and what is broken is named."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tests.unit.roles.training_programs import PROGRAMS, program

checkpoints = program("checkpoints")
Write = Callable[[IO[bytes]], object]


def state(text: str) -> Write:
    return lambda file: file.write(text.encode())


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = checkpoints.Store(tmp_path / "checkpoints", 3, "first")
    made.claim()
    return made


def content(store: Any) -> tuple[int, str]:
    found, torn = store.newest()
    assert torn == []
    return found.step, found.path.read_text()


def files(store: Any) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in store.directory.iterdir() if path.name != "owner")


def test_the_newest_is_found_and_only_so_many_stay(store: Any) -> None:
    assert store.newest() == (None, [])
    for step in (5, 100, 20, 30, 200):
        store.save(step, {"seed": 1}, state(f"state {step}"))
    assert content(store) == (200, "state 200")
    assert store.newest()[0].settings == {"seed": 1}
    # 100 came before 20 and 30: what a run has taken up again is older than what it writes.
    assert files(store) == [f"{step:012d}{end}" for step in (30, 100, 200) for end in ("", ".json")]


def test_a_checkpoint_of_a_step_is_found_where_it_is_whole_and_nowhere_else(store: Any, tmp_path: Path) -> None:
    """As a process does that was told the step by another one."""
    store.save(5, {"seed": 1}, state("state 5"))
    assert store.named(5).path.read_text() == "state 5"
    for elsewhere in (checkpoints.Store(tmp_path / "other host", 3, "first"), store):
        if elsewhere is store:
            store.named(5).path.write_text("state")
        with pytest.raises((OSError, checkpoints.Torn)):
            elsewhere.named(5)


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (lambda path, state: state.write_bytes(state.read_bytes()[:-1]), "has 8 bytes, and 9 were written"),
        (lambda path, state: state.write_bytes(b"x" * 9), "has another SHA-256"),
        (lambda path, state: state.unlink(), "is not there"),
        (lambda path, state: path.write_text(""), "it is not the JSON of a checkpoint"),
        (lambda path, state: path.write_text("[" * 100_000), "it is not the JSON of a checkpoint"),
        (lambda path, state: path.write_text("{}"), "it is not the JSON of a checkpoint"),
        (lambda path, state: path.write_text(path.read_text().replace(state.name, "../x.pt")), "another checkpoint"),
    ],
)
def test_a_torn_one_is_named_and_the_one_before_is_taken(
    store: Any, breaks: Callable[[Path, Path], Any], why: str
) -> None:
    store.save(10, {}, state("state 10"))
    torn_state = store.save(20, {}, state("state 020"))
    breaks(store.directory / "000000000020.json", torn_state)
    found, torn = store.newest()
    assert (found.step, found.path.read_text()) == (10, "state 10")
    assert len(torn) == 1
    assert torn[0].startswith(f"{store.directory}/000000000020.json: ")
    assert why in torn[0]
    # Its steps are done again.
    store.save(20, {}, state("state 20 again"))
    assert content(store) == (20, "state 20 again")
    assert len(list(store.directory.glob("000000000020-*"))) == 1


def test_a_file_system_that_does_not_answer_is_no_torn_checkpoint(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(10, {}, state("state"))

    def broken(_path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoints, "_digest", broken)
    with pytest.raises(OSError, match="Input/output error"):
        store.newest()


def test_a_run_that_was_replaced_writes_nothing_more(store: Any) -> None:
    store.save(10, {}, state("state 10"))
    second = checkpoints.Store(store.directory, 3, "second")
    second.claim()
    with pytest.raises(checkpoints.Taken, match="now belongs to 'second', and this is 'first'"):
        store.save(20, {}, state("old"))
    assert content(second) == (10, "state 10")
    second.save(20, {}, state("state 20"))
    assert content(second) == (20, "state 20")


@pytest.mark.parametrize("claims_after", [False, True])
def test_a_run_that_is_replaced_while_it_writes_leaves_what_is_there(store: Any, claims_after: bool) -> None:
    second = checkpoints.Store(store.directory, 3, "second")

    def late(file: IO[bytes]) -> None:
        if not claims_after:
            second.claim()
        file.write(b"old")
        if claims_after:
            second.claim()

    store.save(10, {}, state("state 10"))
    with pytest.raises(checkpoints.Taken):
        store.save(20, {}, late)
    assert content(second) == (10, "state 10")
    assert files(store) == ["000000000010", "000000000010.json"]


def test_a_full_disk_costs_only_the_checkpoint_that_did_not_fit(store: Any) -> None:
    store.save(10, {}, state("state 10"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.save(20, {}, state("x" * 10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert content(store) == (10, "state 10")
    assert files(store) == ["000000000010", "000000000010.json"]


def test_a_disk_that_is_full_for_the_name_alone_leaves_no_state_behind(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(10, {}, state("state 10"))

    def full(_name: str, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            store.save(20, {}, state("state 20"))
    assert content(store) == (10, "state 10")
    assert files(store) == ["000000000010", "000000000010.json"]


# Ends itself in the middle of a write, as a lost host does.
KILLED = """
import os, signal, sys
from checkpoints import Store
from pathlib import Path
store = Store(Path(sys.argv[1]), 3, "killed")
store.claim()
def write(file):
    file.write(b"x" * 100000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
store.save(30, {}, write)
"""


def test_a_run_that_is_killed_while_it_writes_leaves_the_last_one_and_the_next_run_sweeps(store: Any) -> None:
    store.save(10, {}, state("state 10"))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, store.directory], cwd=PROGRAMS, env=environment, check=False, timeout=60
    )
    assert done.returncode == -9
    assert list(store.directory.glob("*.new"))
    store.claim()
    assert content(store) == (10, "state 10")
    assert files(store) == ["000000000010", "000000000010.json"]


def test_a_start_on_a_disk_that_leftovers_fill_removes_them(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(10, {}, state("state 10"))
    left = [store.directory / name for name in ("000000000020.pt.new", "000000000030.json.4711.new")]
    for path in left:
        path.write_bytes(b"x" * 1000)
    write = store._write

    def full(name: str, text: str) -> None:
        if any(path.exists() for path in left):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(name, text)

    monkeypatch.setattr(store, "_write", full)
    store.claim()
    assert content(store) == (10, "state 10")
    assert files(store) == ["000000000010", "000000000010.json"]


def test_a_state_that_nothing_names_goes_when_it_is_old(store: Any) -> None:
    store.save(10, {}, state("state 10"))
    old, young = (store.directory / f"{step:012d}-{'a' * 16}.pt" for step in (20, 30))
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    store.claim()
    assert files(store) == ["000000000010", "000000000010.json", "000000000030"]
