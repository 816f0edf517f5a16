# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's journal: bounded, and whatever is cut, every other line is still to be read."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import journal as reconciler_journal
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.journal import Journal
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.settings import settings_of


def names(path: Path) -> list[Path]:
    """The files that are there, the oldest first."""
    return sorted(path.parent.iterdir(), key=lambda name: int(name.suffix[1:] if name != path else 0), reverse=True)


def numbers(path: Path) -> list[int]:
    """What a reader finds who skips what is no line of JSON."""
    found = []
    for name in names(path):
        for line in name.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line)["number"])
            except ValueError:
                continue
    return found


@pytest.fixture(autouse=True)
def no_journal_of_systemd(monkeypatch):
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)


def journal(path: Path, out: io.StringIO | None = None, **more: Any) -> Journal:
    return Journal(path, out or io.StringIO(), **{"file_bytes": 300, "files": 3, **more})


def test_files_are_bounded_and_the_newest_lines_are_kept(tmp_path):
    path = tmp_path / "journal.jsonl"
    one = journal(path)
    for number in range(100):
        one.write("n1", "end", number=number)
        assert len(names(path)) <= 3
        assert all(name.stat().st_size <= 300 for name in names(path))
    found = numbers(path)
    assert found == list(range(found[0], 100))
    assert len(found) >= 2 * (300 // 70)
    assert {name.stat().st_mode & 0o777 for name in names(path)} <= {0o640, 0o600}


def test_a_line_that_is_longer_than_a_file_is_kept_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    one = journal(path)
    for number in range(3):
        one.write("n1", "end", number=number, why="x" * 1000)
    assert numbers(path) == [0, 1, 2]


def test_fewer_files_than_before_are_kept_from_then_on(tmp_path):
    path = tmp_path / "journal.jsonl"
    for number in range(60):
        journal(path, files=6).write("n1", "end", number=number)
    assert len(names(path)) == 6
    for number in range(60, 70):
        journal(path, files=2).write("n1", "end", number=number)
    assert len(names(path)) == 2
    assert numbers(path)[-1] == 69


def test_a_line_that_was_cut_takes_no_other_with_it(tmp_path):
    path = tmp_path / "journal.jsonl"
    one = journal(path, file_bytes=4096)
    one.write("n1", "begin", number=1)
    with path.open("a") as file:
        file.write('{"time":1.0,"host":"n1","wh')
    one.write("n1", "end", number=2)
    one.write("n1", "end", number=3)
    assert numbers(path) == [1, 2, 3]
    assert path.read_text().count("\n") == 4


class Cut(Exception):
    """The process is killed here."""


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_turn_that_was_cut_loses_nothing_and_is_taken_up(tmp_path, monkeypatch, step):
    path = tmp_path / "journal.jsonl"
    number = 0
    while not names(path) or len(names(path)) < 3 or path.stat().st_size < 240:
        number += 1
        journal(path, files=4).write("n1", "end", number=number)
    before = numbers(path)
    assert before == list(range(1, number + 1))
    real, calls = os.replace, 0

    def replace(*given: Any) -> None:
        nonlocal calls
        if calls == step:
            raise Cut
        calls += 1
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(reconciler_journal.os, "replace", replace)
        with pytest.raises(Cut):
            journal(path, files=4).write("n1", "end", number=98)
    assert numbers(path) == before
    journal(path, files=4).write("n1", "end", number=99)
    assert numbers(path) == [*before, 99]
    assert len(names(path)) == 4


def test_a_full_disk_leaves_no_half_of_a_line_and_is_told_once(tmp_path, monkeypatch):
    path, out = tmp_path / "journal.jsonl", io.StringIO()
    one = journal(path, out, file_bytes=4096)
    one.write("n1", "begin", number=1)
    before, real, room = path.read_bytes(), os.write, 10

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(descriptor, data[:room])
        room -= count
        return count

    with monkeypatch.context() as patched:
        patched.setattr(reconciler_journal.os, "write", write)
        one.write("n1", "end", number=2)
        one.write("n1", "begin", number=3)
    assert path.read_bytes() == before
    told = out.getvalue().splitlines()
    assert [line for line in told if "problem" not in line] == ["n1: begin 1", "n1: end 2", "n1: begin 3"]
    assert told[2].startswith("problem: ")
    assert "No space left" in told[2]
    one.write("n1", "end", number=4)
    assert numbers(path) == [1, 4]


def _write_many(path: Path, first: int) -> None:
    one = journal(path, file_bytes=2000, files=50)
    for number in range(first, first + 100):
        one.write("n1", "wait", number=number)


def test_two_that_write_at_once_lose_no_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    processes = [multiprocessing.Process(target=_write_many, args=(path, first)) for first in (0, 100, 200)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(numbers(path)) == list(range(300))
    assert len(names(path)) > 5


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("journal_files", 1, 2), ("journal_files", "5", 2), ("journal_bytes", 0, 4096), ("journal_bytes", True, 4096)],
)
def test_a_journal_that_keeps_nothing_is_refused(name, value, least):
    told = {"zookeeper": "z:2181", "masters": ["http://m:5050"], name: value}
    with pytest.raises(Wrong, match=f"{name} is {value!r}. To do: give {least} or more"):
        settings_of(told, "reconciler.json")


class FullOutput(io.StringIO):
    def write(self, text: str, /) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_output_that_takes_nothing_stops_nobody_and_the_file_has_the_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal(path, FullOutput()).write("n1", "end", number=1)
    assert numbers(path) == [1]


def test_a_pipe_in_the_place_of_the_file_is_not_written_to(tmp_path):
    path = tmp_path / "journal.jsonl"
    os.mkfifo(path)
    out = io.StringIO()
    one = journal(path, out)
    # More than a pipe takes that nobody reads.
    for number in range(20):
        one.write("n1", "end", number=number, why="x" * 10000)
    assert "not a regular file" in one.problem
    assert out.getvalue().count("n1: end") == 20


def test_in_the_journal_of_systemd_are_words_and_in_the_file_is_all_of_it(tmp_path, monkeypatch):
    path, out = tmp_path / "journal.jsonl", io.StringIO()
    one = journal(path, out, file_bytes=4096)
    step = {"kind": "deactivate", "why": "fatal: GPU-8f6c (gpu_lost)", "evidence": {"deep": [1, 2]}}
    one.write("gpu1", "begin", number=3, **step)
    one.write("gpu1", "end", number=3, kind="deactivate", result="done", why="", seconds=0.17)
    one.write("gpu2", "would", why="would drain: fatal", step=step)
    one.write("*", "breaker", why="3 of 20 hosts", waiting=["gpu3", "gpu4"])
    one.write("*", "lead", by="head1", mode="act", nodes=20)
    assert out.getvalue().splitlines() == [
        "gpu1: begin 3: deactivate: fatal: GPU-8f6c (gpu_lost)",
        "gpu1: end 3: deactivate: done (seconds 0.17)",
        "gpu2: would drain: fatal",
        "breaker: 3 of 20 hosts (waiting gpu3, gpu4)",
        "lead (by head1; mode act; nodes 20)",
    ]
    assert json.loads(path.read_text().splitlines()[0])["evidence"] == {"deep": [1, 2]}
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    out.truncate(0)
    out.seek(0)
    one.write("gpu1", "problem", why="a\x1b[31m\nb")
    assert out.getvalue() == "<4>gpu1: problem: a\ufffd[31m b\n"
