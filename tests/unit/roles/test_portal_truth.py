# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses what, as the real hub tells it, against what the stand-in for Slurm knows, while jobs come and go."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import combinations_with_replacement as pairs
from typing import Any

import pytest

from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import Portal

pytestmark = pytest.mark.slow

CHECKS, ANSWERS = 1000, 50
OLD_S = 2.0
NODES = [
    {"name": f"gpu{number}", "address": "127.0.0.1", "gpus": 4, "type": kind, "cpus": 16, "memory": 65536, "up": True}
    for number, kind in enumerate(("a100", "a100", "h100"), 1)
]
SCRIPT = """#!/bin/sh
#SBATCH --job-name=churn
#SBATCH --chdir=/tmp
#SBATCH --gres=gpu:{gpus}
#SBATCH --cpus-per-task=1
#SBATCH --mem=1024M
#SBATCH --time=60
sleep {seconds}
"""


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    with Portal(tmp_path_factory.mktemp("portal"), NODES) as made:
        yield made


class Churn:
    """Jobs of alice and bob that come, wait, end by themselves, and are cancelled."""

    def __init__(self, portal: Portal, seed: int) -> None:
        self._portal, self._random = portal, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.fault: Exception | None = None

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except Exception as why:
            self.fault = why

    def _step(self) -> None:
        live = [job for job in self._portal.jobs() if job["state"] in ("PENDING", "RUNNING")]
        if len(live) > self._random.randint(4, 9):
            self._portal.end(self._random.choice(live)["id"], "CANCELLED")
            return
        name = self._random.choice(["alice", "bob"])
        script = SCRIPT.format(gpus=self._random.randint(1, 4), seconds=self._random.randint(1, 20))
        self._portal.run(name, "sbatch", "--parsable", text=script)

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_given: object) -> None:
        self._stop.set()
        self._thread.join()


class Truth:
    """What was so at a moment, from the times that the stand-in has written down."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        self._jobs = jobs

    def moments(self, since: float, until: float) -> list[float]:
        """When something changed, and the beginning."""
        times = [job[name] for job in self._jobs for name in ("submitted", "started", "ended") if job.get(name)]
        return [since, *(one for one in times if since < one <= until)]

    def _running(self, node: str, at: float) -> list[dict[str, Any]]:
        return [
            job
            for job in self._jobs
            if job["node"] == node and job.get("started", at + 1) <= at < job.get("ended", float("inf"))
        ]

    def leases(self, node: str, at: float) -> set[tuple[str, str, int]]:
        return {(str(job["id"]), job["user"], job["gpus"]) for job in self._running(node, at)}

    def free(self, node: dict[str, Any], at: float) -> int:
        return int(node["gpus"]) - sum(job["gpus"] for job in self._running(node["name"], at))

    def waiting(self, at: float) -> set[tuple[str, str]]:
        return {
            (str(job["id"]), job["user"])
            for job in self._jobs
            if job["submitted"] <= at < min(job.get("started") or float("inf"), job.get("ended") or float("inf"))
        }


def fact(told: dict[str, Any], truth: Truth, moments: list[float], picked: random.Random) -> tuple[object, list[Any]]:
    """Something that the page tells, and all that it may have been."""
    node = picked.choice(NODES)
    row = next(one for one in told["nodes"] if one["name"] == node["name"])
    leases = {(one["job"], one["user"], one["gpus"]) for one in row["leases"]}
    waiting = {(one["job"], one["user"]) for one in told["waiting"]}
    return picked.choice(
        [
            (row["free"], [truth.free(node, at) for at in moments]),
            (leases, [truth.leases(node["name"], at) for at in moments]),
            # Those that waited at one moment are asked for again: a job that started meanwhile is not told.
            (waiting, [truth.waiting(at) & truth.waiting(later) for at, later in pairs(moments, 2)]),
            (told["waiting_total"], [len(truth.waiting(at)) for at in moments]),
        ]
    )


def test_a_thousand_looks_agree_with_the_scheduler(portal: Portal) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    bob, answers = Browser(portal), []
    assert bob.log_in("bob").status == 200
    with Churn(portal, seed) as churn:
        while len(answers) < ANSWERS and churn.fault is None:
            sent = time.time()
            answer = bob.get("/hub/now/data")
            answers.append((sent, time.time(), answer.json()))
            time.sleep(0.5)
    assert churn.fault is None
    truth, picked = Truth(portal.jobs()), random.Random(seed)
    # What is told may be as much older as the scheduler took to tell it.
    slowest = max(received - sent for sent, received, _told in answers)
    seen = set()
    for number in range(CHECKS):
        sent, received, told = answers[number % ANSWERS]
        assert told["failure"] == ""
        assert told["at"] >= sent - OLD_S - slowest
        is_told, was = fact(told, truth, sorted(truth.moments(told["at"], received)), picked)
        assert is_told in was, (number, is_told, was)
        seen.add(str(is_told))
    # They were not all of a cluster on which nothing happens.
    assert len(seen) > 30
