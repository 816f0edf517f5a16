# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings an app into Marathon, waits until it runs, and takes it back if it does not.

A deployment that cannot end goes on for ever: Marathon knows none that failed. So failed means here that it was not
over in time, and the reasons are read from the app, its tasks and the queue.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import text as problem_text
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app_schema
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Locked, Marathon, Unreachable
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.canonical import canonical
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import marathon_flag_table
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed

_HIDDEN = "(hidden)"


@dataclass(frozen=True)
class Plan:
    """`before` is the server's app or None, `wanted` what is sent, `changes` field -> (before, after)."""

    before: dict[str, Any] | None
    wanted: dict[str, Any]
    changes: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Options:
    """`rollback` None: only an app that was there before. `now` and `sleep` count in seconds."""

    force: bool = False
    wait: bool = True
    timeout_s: float = 600.0
    poll_s: float = 1.0
    rollback: bool | None = None
    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)


class Unfinished(Failed):
    """The app does not run in time. `reasons` say why, `sent` whether a change was made, `rolled_back` whether the app
    is as before.
    """

    def __init__(self, cause: str, reasons: list[str], sent: bool, rolled_back: bool) -> None:
        super().__init__(cause, "correct what is named, or allow more time")
        self.reasons, self.sent, self.rolled_back = reasons, sent, rolled_back


class Invalid(Failed):
    """Marathon would refuse what it is to be given; `problems` say why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problem_text(problems), code=problems[0].code)
        self.problems = problems


def plan(marathon: Marathon, document: Mapping[str, Any]) -> Plan:
    """What to do for the app of that document. Raises Invalid for one that Marathon would refuse."""
    given = {key: value for key, value in document.items() if value is not None}
    # All but what depends on the features is said before Marathon is asked anything.
    _refuse(given, marathon_flag_table.CHOICES["enable_features"])
    features = marathon.features()
    if features is not None:
        _refuse(given, features)
    wanted = canonical(given)
    before = marathon.app(wanted["id"])
    if before is None:
        return Plan(None, wanted, {key: (None, value) for key, value in wanted.items()})
    # Who leaves the number out leaves it to others.
    wanted.setdefault("instances", before["instances"])
    return Plan(before, wanted, marathon_app.differences(wanted, before))


def _refuse(app: Mapping[str, Any], features: Iterable[str]) -> None:
    found = marathon_app.problems(app, features)
    if found:
        raise Invalid(found)


def bring(marathon: Marathon, todo: Plan, options: Options, check_mode: bool = False) -> dict[str, Any]:
    """Does it. Gives deployment_id, version, instances and tasks; in check mode those of before.

    Raises Locked, Unfinished or Failed.
    """
    app_id = todo.wanted["id"]
    _locked(app_id, todo.before if todo.changes else None, options.force)
    if check_mode:
        return _told(todo.before, None)
    deployment_id = None
    if todo.before is None:
        deployment_id = marathon.create(todo.wanted, options.force)
    elif todo.changes:
        deployment_id = marathon.replace(todo.wanted, options.force)
    if options.wait:
        _watch(marathon, todo, deployment_id, options)
    return _told(marathon.app(app_id), deployment_id)


def remove(marathon: Marathon, app_id: str, options: Options, check_mode: bool = False) -> dict[str, Any] | None:
    """Takes the app away and waits for its tasks to end. Gives what was there. Raises Locked or Failed."""
    app_id = "/" + app_id.strip("/")
    before = marathon.app(app_id)
    _locked(app_id, before, options.force)
    if check_mode:
        return before
    if before is not None:
        marathon.delete(app_id, options.force)
    if options.wait and not _gone(marathon, _affecting(app_id), options):
        raise Failed(
            f"app {app_id} is removed, but its tasks have not ended after {options.timeout_s:g} s",
            "look at the agents that run them, and run it again",
        )
    return before


def _locked(app_id: str, before: Mapping[str, Any] | None, force: bool) -> None:
    busy = [str(row["id"]) for row in (before or {}).get("deployments", [])]
    if busy and not force:
        raise Locked(app_id, busy)


def _told(app: Mapping[str, Any] | None, deployment_id: str | None) -> dict[str, Any]:
    tasks = (app or {}).get("tasks", [])
    return {
        "deployment_id": deployment_id,
        "version": (app or {}).get("version"),
        "instances": (app or {}).get("instances", 0),
        "tasks": [{key: task.get(key) for key in ("id", "host", "state", "ports")} for task in tasks],
    }


# Waiting.


def _affecting(app_id: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: app_id in row.get("affectedApps", [])


def _until(done: Callable[[], bool], options: Options, deadline: float) -> bool:
    """Whether it came about before the deadline. An election in between is waited out."""
    while True:
        try:
            if done():
                return True
        except Unreachable:
            if options.now() >= deadline:
                raise
        if options.now() >= deadline:
            return False
        options.sleep(options.poll_s)


def _gone(
    marathon: Marathon, which: Callable[[Mapping[str, Any]], bool], options: Options, deadline: float | None = None
) -> bool:
    end = options.now() + options.timeout_s if deadline is None else deadline
    return _until(lambda: not any(which(row) for row in marathon.deployments()), options, end)


def _watch(marathon: Marathon, todo: Plan, deployment_id: str | None, options: Options) -> None:
    """Returns once the app runs as wanted. Where nothing was sent, a deployment that is under way is waited for."""
    app_id, deadline = todo.wanted["id"], options.now() + options.timeout_s
    which = _affecting(app_id) if deployment_id is None else (lambda row: row["id"] == deployment_id)
    over = _gone(marathon, which, options, deadline)
    if over and _until(lambda: _runs(marathon, todo.wanted), options, deadline):
        return
    what = f"app {app_id} does not run as wanted after {options.timeout_s:g} s"
    if not over:
        what += f", deployment {deployment_id} is still under way" if deployment_id else ", a deployment is under way"
    try:
        reasons = _reasons(marathon, app_id)
    except Failed as why:
        # What is to be rolled back is rolled back all the same.
        reasons = [f"the reasons cannot be read: {why}"]
    cause = f"{what}: {'; '.join(reasons)}."
    wish = todo.before is not None if options.rollback is None else options.rollback
    rolled_back = False
    if deployment_id and wish:
        rolled_back, told = _roll_back(marathon, todo, None if over else deployment_id, options)
        cause += f" {told}"
    elif deployment_id:
        cause += " It was left as it is."
    raise Unfinished(cause, reasons, deployment_id is not None, rolled_back)


def _runs(marathon: Marathon, wanted: Mapping[str, Any]) -> bool:
    """Whether all instances run and are healthy. Raises Failed where somebody else has changed the app."""
    app = marathon.app(wanted["id"])
    if app is None:
        raise Failed(f"app {wanted['id']} was removed by another client meanwhile", "run it again if it is to stay")
    changed = marathon_app.differences(wanted, app)
    if changed:
        raise Failed(
            f"app {wanted['id']} was changed by another client meanwhile: {', '.join(changed)}",
            "find out who, and run it again",
        )
    instances = app["instances"]
    healthy = app.get("tasksHealthy", 0) >= instances if app.get("healthChecks") else True
    return bool(app.get("tasksRunning", 0) >= instances and healthy)


def _roll_back(marathon: Marathon, todo: Plan, deployment_id: str | None, options: Options) -> tuple[bool, str]:
    """(whether the app is as before, that in words)."""
    app_id = todo.wanted["id"]
    goal = "removed again" if todo.before is None else f"rolled back to version {todo.before['version']}"
    try:
        if deployment_id is not None:
            undo = marathon.roll_back(deployment_id)
        elif todo.before is None:
            undo = marathon.delete(app_id, True)
        else:
            undo = marathon.revert(app_id, todo.before["version"])
        if _gone(marathon, lambda row: row["id"] == undo, options):
            return True, f"It was {goal}."
    except Failed as why:
        return False, f"It could not be {goal}: {why}."
    return False, f"It is being {goal} by deployment {undo}, which is not over after {options.timeout_s:g} s."


def _reasons(marathon: Marathon, app_id: str) -> list[str]:
    """Why an app does not run, one phrase each."""
    found = []
    app = marathon.app(app_id) or {}
    failure = app.get("lastTaskFailure") or {}
    if failure and str(failure.get("timestamp", "")) >= str(app.get("version", "")):
        found.append(
            f"task {failure.get('taskId')} on {failure.get('host')} ended as {failure.get('state')}: "
            f"{failure.get('message') or 'no message'}"
        )
    for task in app.get("tasks", []):
        # Before the first result there may be a null.
        for row in filter(None, task.get("healthCheckResults") or []):
            if not row.get("alive"):
                cause = row.get("lastFailureCause") or "no answer yet"
                found.append(f"task {task['id']} on {task.get('host')} is not healthy: {cause}")
        if task.get("state") not in (None, "TASK_RUNNING"):
            found.append(f"task {task['id']} on {task.get('host')} is {task['state']}")
    queued = marathon.queued(app_id)
    if queued:
        summary = queued.get("processedOffersSummary", {})
        refused = [row for row in summary.get("rejectSummaryLastOffers", []) if row.get("declined")]
        found += [f"{row['declined']} of {row['processed']} offers do not fit: {row['reason']}" for row in refused]
        if not summary.get("processedOffersCount"):
            found.append("no agent has made an offer")
        left = queued.get("delay", {}).get("timeLeftSeconds", 0)
        if left:
            found.append(f"the next start is put off for {left} s because tasks failed")
    return found or ["Marathon names no reason"]


# What is shown.


def shown(before: Mapping[str, Any], after: Mapping[str, Any], hidden: Iterable[str] = ()) -> dict[str, str]:
    """The diff of two apps, or parts of them, as JSON. Of `hidden` variables it tells only whether they change."""
    sides = [_own(before), _own(after)]
    envs = [dict(side["env"]) if isinstance(side.get("env"), Mapping) else None for side in sides]
    for name in hidden:
        values = [(env or {}).get(name) for env in envs]
        for env, mark in zip(envs, (_HIDDEN, _HIDDEN if values[0] == values[1] else "(hidden, changed)")):
            if env and name in env:
                env[name] = mark
    for side, env in zip(sides, envs):
        if env is not None:
            side["env"] = env
    texts = [json.dumps(side, indent=1, sort_keys=True) + "\n" if side else "" for side in sides]
    return {"before": texts[0], "after": texts[1]}


def _own(app: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the server adds."""
    return {key: value for key, value in app.items() if key not in app_schema.OF_SERVER and value is not None}
