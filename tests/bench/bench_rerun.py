# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of site.yml over the finished machines of the lab, stage by stage: how long it takes and what it does.

A stage's wall time is the time from its first task to that of the next stage, for all machines together. Before the
first task is Ansible's start. Executions are commands over SSH of the machine with the most of them; with pipelining a
module is one. Preflight checks that the package sources answer, and verification queries every GPU and copies memory
both ways.

It needs the machines of `make lab-node`, or those of the lab that GPUOPS_LAB_ID names. A run before, which is not
measured, finishes them.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from tests.bench.harness import Figure, NotHere, Row
from tests.bench.lab_run import lab
from tests.bench.site_run import run_site

RUNS = 5
START = "Ansible's start"
TASK_ENDS = ("runner_on_ok", "runner_on_skipped")


class Stages:
    """What one run tells of its stages.

    :ivar wall: seconds, by stage in the order of the run.
    :ivar tasks: how many tasks a machine had, skipped ones included, by stage and machine.
    :ivar executions: how many commands went to a machine, by stage and machine.
    """

    def __init__(self) -> None:
        self.wall: dict[str, float] = {START: 0.0}
        self.tasks: dict[str, Counter[str]] = defaultdict(Counter)
        self.executions: dict[str, Counter[str]] = defaultdict(Counter)
        self.changed = 0
        self._stage, self._mark = START, time.monotonic()
        self._run = progress.Run(self._mark)

    def take(self, event: dict[str, Any]) -> None:
        data = event.get("event_data") or {}
        if event["event"] == "playbook_on_play_start":
            self._run.play_started(data["name"], time.monotonic())
        if event["event"] == "playbook_on_task_start":
            stage = self._run.task_started(data["task"], data.get("role", ""), data["task_action"], time.monotonic())
            self._turn(stage or "sorting and comparing the hosts")
        if event["event"] in TASK_ENDS:
            self.tasks[self._stage][data["host"]] += 1
            self.changed += bool((data.get("res") or {}).get("changed"))
        # A colour may stand before it.
        for host in re.findall(r"<([^<>]+)> SSH: EXEC ", event.get("stdout", "")):
            self.executions[self._stage][host] += 1

    def end(self) -> None:
        self._turn(self._stage)

    def _turn(self, stage: str) -> None:
        now = time.monotonic()
        self.wall[self._stage] = self.wall.get(self._stage, 0.0) + now - self._mark
        self._stage, self._mark = stage, now


def rerun(machines: str, *words: str) -> Stages:
    found = Stages()
    run_site(machines, found.take, *words, toolkits=True)
    found.end()
    return found


def rows(timed: list[Stages], counted: Stages) -> Iterator[Row]:
    for stage in timed[0].wall:
        yield Figure.of(stage, "wall", "s", [run.wall[stage] for run in timed])
        if stage != START:
            yield Figure.of(stage, "tasks of a machine", "", [max(counted.tasks[stage].values())])
            yield Figure.of(stage, "executions on a machine", "", [max(counted.executions[stage].values(), default=0)])
    yield Figure.of("all stages", "wall", "s", [sum(run.wall.values()) for run in timed])
    for what, by_stage in (("tasks of a machine", counted.tasks), ("executions on a machine", counted.executions)):
        each = sum(by_stage.values(), Counter[str]())
        yield Figure.of("all stages", what, "", [max(each.values())])


def run(quick: bool) -> list[Row]:
    machines = sorted(json.loads(lab("inventory"))["_meta"]["hostvars"])
    if not machines:
        raise NotHere("no machine of the lab is up; `make lab-node` makes them")
    limit = ",".join(machines)
    rerun(limit)
    timed = [rerun(limit) for _number in range(1 if quick else RUNS)]
    counted = rerun(limit, "-vvv")
    if any(each.changed for each in (*timed, counted)):
        raise SystemExit(f"{limit}: a run has changed something although the one before had finished them")
    return list(rows(timed, counted))
