# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of a training as processes with a directory that they share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.roles.training_programs import PROGRAMS

# It meets the others as the training does, and then computes until it is told what to do.
PROCESS = """
import os, pathlib, signal, sys, time
rank, count = os.environ["SLURM_PROCID"], int(os.environ["SLURM_NTASKS"])
signal.signal(signal.SIGTERM, lambda *_words: sys.exit(119))
meeting = pathlib.Path(os.environ["MEETING"])
with meeting.open("a") as file:
    file.write(rank + "\\n")
def wait(for_what):
    while not for_what():
        time.sleep(0.02)
wait(lambda: len(meeting.read_text().split()) == count)
pathlib.Path("met").open("a").write(os.environ["SLURM_RESTART_COUNT"] + " " + rank + "\\n")
orders = pathlib.Path("orders-" + rank)
wait(orders.exists)
status = int(orders.read_text())
if status:
    orders.unlink()
sys.exit(status)
"""


class Pods:
    def __init__(self, base: Path) -> None:
        self.base, self.running = base, []
        (base / "process.py").write_text(PROCESS)

    def start(self, index: int, job: str = "job1") -> subprocess.Popen[bytes]:
        words = [sys.executable, str(PROGRAMS / "pods.py"), "2", "2", sys.executable, "process.py"]
        environment = {**os.environ, "JOB": job, "JOB_COMPLETION_INDEX": str(index)}
        made = subprocess.Popen(words, cwd=self.base, env=environment, start_new_session=True)
        self.running.append(made)
        return made

    def rounds(self) -> list[list[int]]:
        """The ranks of each round in which all have met."""
        found: dict[str, list[int]] = {}
        path = self.base / "met"
        for line in path.read_text().splitlines() if path.exists() else []:
            name, rank = line.split()
            found.setdefault(name, []).append(int(rank))
        return [sorted(ranks) for ranks in found.values() if len(ranks) == 4]

    def order(self, rank: int, status: int) -> None:
        new = self.base / "new"
        new.write_text(str(status))
        new.rename(self.base / f"orders-{rank}")

    def finish(self) -> None:
        for rank in range(4):
            self.order(rank, 0)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path)
    yield made
    for one in made.running:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def until(wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not wanted():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_all_processes_of_all_pods_meet_and_end_well(pods: Pods) -> None:
    both = [pods.start(0), pods.start(1)]
    until(lambda: len(pods.rounds()) == 1)
    assert pods.rounds() == [[0, 1, 2, 3]]
    pods.finish()
    assert [one.wait(60) for one in both] == [0, 0]
    # One that ends late, since its node was lost at the end, begins nothing anew.
    assert pods.start(1).wait(60) == 0
    # Of another job nothing counts that is there.
    for rank in range(4):
        (pods.base / f"orders-{rank}").unlink()
    both = [pods.start(1, "job2"), pods.start(0, "job2")]
    until(lambda: len(pods.rounds()) == 2)
    pods.finish()
    assert [one.wait(60) for one in both] == [0, 0]


def test_a_lost_pod_is_replaced_and_the_others_begin_anew_with_it(pods: Pods) -> None:
    first, lost = pods.start(0), pods.start(1)
    until(lambda: len(pods.rounds()) == 1)
    os.killpg(lost.pid, signal.SIGKILL)
    lost.wait()
    later = pods.start(1)
    until(lambda: len(pods.rounds()) == 2)
    pods.finish()
    assert [one.wait(60) for one in (first, later)] == [0, 0]


def test_one_that_another_has_taken_the_place_of_ends(pods: Pods) -> None:
    first, old = pods.start(0), pods.start(1)
    until(lambda: len(pods.rounds()) == 1)
    # The node of the old one was only unreachable.
    new = pods.start(1)
    assert old.wait(60) == 119
    until(lambda: len(pods.rounds()) == 2)
    pods.finish()
    assert [one.wait(60) for one in (first, new)] == [0, 0]


def test_a_pod_that_is_evicted_leaves_and_the_next_one_takes_part(pods: Pods) -> None:
    first, evicted = pods.start(0), pods.start(1)
    until(lambda: len(pods.rounds()) == 1)
    evicted.terminate()
    assert evicted.wait(60) == 119
    assert first.poll() is None
    later = pods.start(1)
    until(lambda: len(pods.rounds()) == 2)
    pods.finish()
    assert [one.wait(60) for one in (first, later)] == [0, 0]


def test_a_failure_begins_all_anew_and_the_third_without_a_checkpoint_is_the_last(pods: Pods) -> None:
    first, second = pods.start(0), pods.start(1)
    for number in (1, 2, 3):
        until(lambda number=number: len(pods.rounds()) == number)
        pods.order(3, 1)
    assert second.wait(60) == 3
    assert len(pods.rounds()) == 3
    assert first.poll() is None
    # The pod that the Job begins in its place does not try three times more.
    later = pods.start(1)
    until(lambda: len(pods.rounds()) == 4)
    pods.order(3, 1)
    assert later.wait(60) == 3


def test_a_mistake_in_the_arguments_is_not_tried_again(pods: Pods) -> None:
    first, second = pods.start(0), pods.start(1)
    until(lambda: len(pods.rounds()) == 1)
    pods.order(0, 2)
    assert first.wait(60) == 2
    assert second.poll() is None
