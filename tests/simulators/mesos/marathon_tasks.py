# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of the tasks of the stand-in for Marathon, as the master and its own health checks tell it."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import marathon_offers
import web
from marathon_apps import App, Apps

Row = dict[str, Any]
ENDED = ("TASK_FINISHED", "TASK_FAILED", "TASK_KILLED", "TASK_LOST", "TASK_ERROR", "TASK_DROPPED", "TASK_GONE")
# How long a task may be unknown to the master that was just told to start it.
YOUNG_S = 10.0


class Tasks(Apps):
    """What is private to a task stands in `own`, by the task's id."""

    def __init__(self, features: set[str], role: str) -> None:
        super().__init__(features, role)
        self.own: dict[str, Row] = {}
        # Apps whose next start has to wait: how long the last time, and until when.
        self.delays: dict[str, Row] = {}
        self.wake = threading.Event()

    def _forget(self, task_id: str) -> None:
        self.own.pop(task_id, None)
        for app_id, rows in self.tasks.items():
            self.tasks[app_id] = [task for task in rows if task["id"] != task_id]

    def _hear(self, told: Row) -> list[tuple[str, float]]:
        """Takes over what became of the tasks. Gives those to kill because nobody knows them any more."""
        known = {row["id"]: row for row in told["tasks"]}
        for app_id, rows in list(self.tasks.items()):
            for task in list(rows):
                self._news(app_id, task, known.pop(task["id"], None), told)
        strays = [row["id"] for row in known.values() if row["state"] in ("TASK_STAGING", "TASK_RUNNING")]
        return [(task_id, 3.0) for task_id in strays]

    def _news(self, app_id: str, task: Row, row: Row | None, told: Row) -> None:
        own, now = self.own[task["id"]], time.time()
        if row is None:
            agent = task["slaveId"]
            if agent in told["unreachable"]:
                row = {"state": "TASK_UNREACHABLE", "since": told["unreachable"][agent]}
            elif agent in told["recovered"] or (agent in told["registered"] and now - own["staged"] < YOUNG_S):
                return
        if row is None:
            row = {"state": "TASK_GONE", "message": "The master does not know the task", "healthy": None, "since": now}
        if row["state"] == "TASK_UNREACHABLE":
            strategy = self.apps.get(app_id, {}).get("unreachableStrategy")
            if strategy == "disabled" or now - row["since"] < (strategy or {}).get("inactiveAfterSeconds", 0):
                task["state"] = "TASK_UNREACHABLE"
                return
        elif row["state"] not in ENDED and not row["state"].startswith("TASK_GONE"):
            self._runs(task, row)
            return
        if row["state"] != "TASK_KILLED" and not own.get("killing"):
            self._failed(app_id, task, row)
        self._forget(task["id"])

    def _runs(self, task: Row, row: Row) -> None:
        own = self.own[task["id"]]
        if own.get("killing") or row["state"] == "TASK_KILLING":
            task["state"] = "TASK_KILLING"
            return
        if row["state"] == "TASK_RUNNING" and "startedAt" not in task:
            task["startedAt"], own["began"] = self.now(), time.time()
        task["state"] = row["state"]
        if row["healthy"] is not None and row["healthy"] != own.get("told"):
            own["told"] = row["healthy"]
            self._health_told(task, "mesos", bool(row["healthy"]), row.get("message") or "")

    def _failed(self, app_id: str, task: Row, row: Row) -> None:
        self.failures[app_id] = {
            "appId": app_id,
            "host": task["host"],
            "message": row.get("message") or "",
            "state": row["state"],
            "taskId": task["id"],
            "timestamp": self.now(),
            "version": task["version"],
            "slaveId": task["slaveId"],
        }
        app = self.apps.get(app_id)
        if app and row["state"] not in ("TASK_FINISHED", "TASK_UNREACHABLE"):
            last = self.delays.get(app_id, {}).get("s", 0.0)
            wait = min(last * app["backoffFactor"] or app["backoffSeconds"], app["maxLaunchDelaySeconds"])
            self.delays[app_id] = {"s": wait, "until": time.time() + wait}

    # Health, as far as Marathon checks it itself.

    def _health_told(self, task: Row, check: str, well: bool, why: str) -> None:
        results = self.own[task["id"]].setdefault("results", {})
        row = results.setdefault(check, {"consecutiveFailures": 0, "firstSuccess": None, "lastSuccess": None})
        at = self.now()
        if well:
            row.update(alive=True, consecutiveFailures=0, lastSuccess=at, firstSuccess=row["firstSuccess"] or at)
        else:
            failures = row["consecutiveFailures"] + 1
            row.update(alive=False, consecutiveFailures=failures, lastFailure=at, lastFailureCause=why)
        row.setdefault("lastFailure", None)
        row.setdefault("lastFailureCause", None)
        row["instanceId"] = task["id"].partition("._app")[0]
        task["healthCheckResults"] = list(results.values())

    def _start_checks(self) -> None:
        for app_id, rows in self.tasks.items():
            app = self.apps.get(app_id)
            for task in rows if app else []:
                own = self.own[task["id"]]
                if task["state"] == "TASK_RUNNING" and not own.get("checked"):
                    own["checked"] = True
                    version = self._of_version(app_id, task["version"])
                    for number, check in enumerate(version.get("healthChecks", [])):
                        if check["protocol"] in ("HTTP", "HTTPS", "TCP"):
                            arguments = (task, check, str(number))
                            threading.Thread(target=self._check, args=arguments, daemon=True).start()

    def _of_version(self, app_id: str, version: str) -> App:
        found = [row for row in self.versions[app_id] if row["version"] == version]
        return found[0] if found else self.apps[app_id]

    def _check(self, task: Row, check: Row, name: str) -> None:
        own = self.own[task["id"]]
        while task["id"] in self.own and not own.get("killing"):
            why = self._why_unwell(own["ip"], marathon_offers.health_port(check, task), check)
            with web.LOCK:
                if task["id"] not in self.own:
                    return
                young = time.time() - own["began"] < check["gracePeriodSeconds"]
                before = own.get("results", {}).get(name, {}).get("firstSuccess")
                # Until the first success failures do not count, as long as the grace lasts.
                if not why or before or not young:
                    self._health_told(task, name, not why, why)
                    limit, failures = check["maxConsecutiveFailures"], own["results"][name]["consecutiveFailures"]
                    if 0 < limit <= failures:
                        self._fail_unhealthy(task)
            self.wake.set()
            time.sleep(check["intervalSeconds"])

    def _fail_unhealthy(self, task: Row) -> None:
        row = {"state": "TASK_KILLED", "message": "Health check failed too often"}
        self._failed(task["appId"], task, row)
        self.own[task["id"]]["killing"] = time.time()

    @staticmethod
    def _why_unwell(host: str, port: int, check: Row) -> str:
        try:
            if check["protocol"] == "TCP":
                with socket.create_connection((host, port), check["timeoutSeconds"]):
                    return ""
            url = f"{check['protocol'].lower()}://{host}:{port}{check.get('path', '/')}"
            with urllib.request.urlopen(url, timeout=check["timeoutSeconds"]) as reply:
                return "" if 200 <= int(reply.status) < 400 else f"HTTP status {reply.status}"
        except (OSError, urllib.error.URLError) as why:
            return str(why)
