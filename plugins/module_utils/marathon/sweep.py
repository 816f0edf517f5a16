# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs apps to their end, a few at a time. Marathon itself knows no end: it starts anew what ends.

An app of a sweep has ended well once its task is healthy, and badly once a task failed. Then it is scaled to nothing
and gets a label with its result, so that Marathon itself keeps what is done: a run that was cut is taken up by the
next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon, Unreachable
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.canonical import canonical
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.deploy import Invalid, Options
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import marathon_flag_table

Row = dict[str, Any]

SWEEP, RESULT = "BAREMETAL_GPU_SWEEP", "BAREMETAL_GPU_RESULT"
WAITING, RUNNING, FINISHED, FAILED = "waiting", "running", "finished", "failed"
ENDED = (FINISHED, FAILED)


class Sweep:
    """The apps of one sweep and what became of them. Raises Invalid for one that Marathon would refuse."""

    def __init__(self, marathon: Marathon, name: str, apps: Iterable[Mapping[str, Any]]) -> None:
        self.marathon, self.name = marathon, name
        given = [{**app, "labels": {**(app.get("labels") or {}), SWEEP: name}, "instances": 1} for app in apps]
        problems = [
            one for app in given for one in marathon_app.problems(app, marathon_flag_table.CHOICES["enable_features"])
        ]
        features = None if problems else marathon.features()
        if features is not None:
            problems = [one for app in given for one in marathon_app.problems(app, features)]
        if problems:
            raise Invalid(problems)
        self.wanted = [canonical(app) for app in given]
        self.sent = False

    def look(self) -> dict[str, Row | None]:
        """What Marathon has of each, by id, in the order of the sweep."""
        there = {app["id"]: app for app in self.marathon.apps(f"{SWEEP}=={self.name}")}
        return {app["id"]: there.get(app["id"]) for app in self.wanted}

    def rows(self, found: Mapping[str, Row | None]) -> list[Row]:
        """id, state, host and message of each."""
        told = []
        for app in self.wanted:
            state, message = judge(app, found[app["id"]])
            tasks = (found[app["id"]] or {}).get("tasks", [])
            host = tasks[0].get("host") if tasks else None
            told.append({"id": app["id"], "state": state, "host": host, "message": message})
        return told

    def run(self, parallel: int, retry: bool, options: Options) -> list[Row]:
        """Until all have ended or the time is over; gives the last rows.

        :param retry: whether those that failed in a run before are run again.
        """
        deadline = options.now() + options.timeout_s
        again: set[str] | None = None
        rows: list[Row] = []
        while True:
            try:
                found = self.look()
                rows = self.rows(found)
                if again is None:
                    again = {row["id"] for row in rows if retry and _is_closed(found[row["id"]], FAILED)}
                if not again and all(_is_closed(found[row["id"]]) and row["state"] in ENDED for row in rows):
                    return rows
                self._step(found, rows, parallel, again)
            except Unreachable:
                if options.now() >= deadline:
                    raise
            if options.now() >= deadline:
                return rows
            options.sleep(options.poll_s)

    def _step(self, found: Mapping[str, Row | None], rows: list[Row], parallel: int, again: set[str]) -> None:
        """Close what has ended, then begin as many as there is room for."""
        busy = 0
        for app, row in zip(self.wanted, rows):
            there = found[app["id"]]
            if there is None or not _is_active(there):
                continue
            busy += 1
            if row["state"] in ENDED and not _is_closed(there):
                # The deployment of one that failed is still under way.
                self._send({**app, "instances": 0, "labels": {**app["labels"], RESULT: row["state"]}}, there)
            elif row["state"] == WAITING and there["instances"]:
                # It runs as it was wanted before, and keeps its place.
                self._send(app, there)
        for app, row in zip(self.wanted, rows):
            there = found[app["id"]]
            if busy >= parallel:
                return
            if (row["state"] == WAITING or app["id"] in again) and not (there and _is_active(there)):
                again.discard(app["id"])
                self._send(app, there)
                busy += 1

    def _send(self, app: Row, there: Row | None) -> None:
        self.sent = True
        if there is None:
            self.marathon.create(app, False)
        else:
            self.marathon.replace(app, True)

    def remove(self, check_mode: bool) -> list[str]:
        """Takes all apps of the sweep away. Gives their ids."""
        ids = [str(app["id"]) for app in self.marathon.apps(f"{SWEEP}=={self.name}")]
        for app_id in ids if not check_mode else []:
            self.marathon.delete(app_id, True)
        return ids


def _is_closed(app: Mapping[str, Any] | None, result: str = "") -> bool:
    """Whether its result is written down."""
    told = ((app or {}).get("labels") or {}).get(RESULT)
    return told == result if result else told is not None


def _is_active(app: Mapping[str, Any]) -> bool:
    """Whether it has tasks, or is to have."""
    return bool(app["instances"] or app.get("tasks"))


def judge(wanted: Mapping[str, Any], app: Mapping[str, Any] | None) -> tuple[str, str]:
    """(state, why it failed). An app that is wanted otherwise by now waits to be run anew."""
    if app is None:
        return WAITING, ""
    labels = dict(app.get("labels") or {})
    result = labels.pop(RESULT, None)
    if marathon_app.differences({**wanted, "instances": app["instances"]}, {**app, "labels": labels}):
        return WAITING, ""
    failure = app.get("lastTaskFailure") or {}
    message = f"{failure.get('message') or failure.get('state')} (on {failure.get('host')})" if failure else ""
    if result is not None:
        return str(result), message if result == FAILED else ""
    # Tasks of a former version are none of what is wanted.
    version = (app.get("versionInfo") or {}).get("lastConfigChangeAt", app.get("version"))
    if any(_is_healthy(task) for task in app.get("tasks", []) if task.get("version") == version):
        return FINISHED, ""
    # A task that was lost or drained has not failed: Marathon starts it elsewhere.
    if failure.get("state") == "TASK_FAILED" and failure.get("version") == version:
        return FAILED, message
    return RUNNING, ""


def _is_healthy(task: Mapping[str, Any]) -> bool:
    # Before the first result there may be a null.
    results = [row for row in task.get("healthCheckResults") or [] if row]
    return bool(results) and all(row.get("alive") for row in results)
