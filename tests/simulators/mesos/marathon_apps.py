# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The apps of the stand-in for Marathon: what is told of them, how they are changed, and how deployments go."""

from __future__ import annotations

import copy
import datetime
import re
import time
import uuid
from typing import Any

import marathon_rules
from web import Answer

LOCKED = (
    "App is locked by one or more deployments. Override with the option '?force=true'. "
    "View details at '/v2/deployments/<DEPLOYMENT_ID>'."
)
REASONS = (
    "UnfulfilledRole",
    "UnfulfilledConstraint",
    "NoCorrespondingReservationFound",
    "AgentMaintenance",
    "InsufficientCpus",
    "InsufficientMemory",
    "InsufficientDisk",
    "InsufficientGpus",
    "InsufficientPorts",
    "DeclinedScarceResources",
)
App = dict[str, Any]


def canonical(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part)


def slug(app_id: str) -> str:
    return app_id.strip("/").replace("/", "_")


class Apps:
    def __init__(self, features: set[str], role: str) -> None:
        self.features, self.role = features, role
        self.apps: dict[str, App] = {}
        self.versions: dict[str, list[App]] = {}
        self.tasks: dict[str, list[dict[str, Any]]] = {}
        self.failures: dict[str, dict[str, Any]] = {}
        self.deployments: list[dict[str, Any]] = []
        self.next: list[dict[str, Any]] = []
        self._last = 0.0

    def now(self) -> str:
        """A version. No two are the same."""
        self._last = max(time.time(), self._last + 0.001)
        told = datetime.datetime.fromtimestamp(self._last, datetime.timezone.utc)
        return told.strftime("%Y-%m-%dT%H:%M:%S.") + f"{told.microsecond // 1000:03d}Z"

    def _must(self, app_id: str) -> App:
        if app_id not in self.apps:
            raise Answer(404, {"message": f"App '{app_id}' does not exist"})
        return self.apps[app_id]

    def _version(self, app_id: str, version: str) -> App:
        for row in self.versions.get(app_id, []):
            if row["version"] == version:
                return row
        raise Answer(404, {"message": f"App '{app_id}' does not exist in version {version}"})

    # What is told.

    def told(self, app_id: str) -> App:
        tasks = self.tasks.get(app_id, [])
        checks = [result["alive"] for task in tasks for result in task.get("healthCheckResults", [])]
        return {
            **self.apps[app_id],
            "tasksStaged": sum(task["state"] == "TASK_STAGING" for task in tasks),
            "tasksRunning": sum(task["state"] == "TASK_RUNNING" for task in tasks),
            "tasksHealthy": sum(checks),
            "tasksUnhealthy": len(checks) - sum(checks),
            "deployments": [{"id": row["id"]} for row in self.deployments if row["app"] == app_id],
        }

    def _embedded(self, app_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {"tasks": self.tasks.get(app_id, [])}
        if app_id in self.failures:
            found["lastTaskFailure"] = self.failures[app_id]
        return found

    def _selected(self, app_id: str, query: dict[str, str]) -> bool:
        app = self.apps[app_id]
        if query.get("id", "").lower() not in app_id.lower():
            return False
        if query.get("cmd", "").lower() not in app.get("cmd", "").lower():
            return False
        for selector in filter(None, query.get("label", "").split(",")):
            found = re.fullmatch(r"([^=!\s]+)(?:\s*(==|!=)\s*(.+))?", selector.strip())
            if found is None:
                raise Answer(422, {"message": f"Can not parse label selector {selector}"})
            name, operator, value = found.groups()
            have = app["labels"].get(name)
            if (operator == "==" and have != value) or (operator == "!=" and have == value):
                return False
            if operator is None and have is None:
                return False
        return True

    def queue_told(self) -> Any:
        rows = []
        for row in self.deployments:
            if row["app"] in self.apps and ("fits" in row["goes"] or "fails" in row["goes"]):
                declined = dict.fromkeys(row["goes"].get("fits", []), 2)
                steps = [{"reason": key, "declined": declined.get(key, 0), "processed": 2} for key in REASONS]
                rows.append(
                    {
                        "count": self.apps[row["app"]]["instances"],
                        "delay": {"timeLeftSeconds": 0, "overdue": True},
                        "since": row["version"],
                        "processedOffersSummary": {
                            "processedOffersCount": 2,
                            "unusedOffersCount": 2 if declined else 0,
                            "rejectSummaryLastOffers": steps,
                            "rejectSummaryLaunchAttempt": steps,
                        },
                        "app": self.apps[row["app"]],
                    }
                )
        return {"queue": rows}

    def deployments_told(self) -> Any:
        told = []
        for row in list(self.deployments):
            action = {"action": row["action"], "app": row["app"]}
            told.append(
                {
                    "id": row["id"],
                    "version": row["version"],
                    "affectedApps": [row["app"]],
                    "affectedPods": [],
                    "steps": [{"actions": [action]}],
                    "currentActions": [{**action, "readinessCheckResults": []}],
                    "currentStep": 1,
                    "totalSteps": 1,
                }
            )
            row["left"] -= 1
            if row["left"] <= 0 and not row["stuck"]:
                self._over(row)
        return told

    # Changes.

    def create(self, body: Any, force: bool) -> Any:
        app = self._checked(body)
        if app["id"] in self.apps:
            raise Answer(409, {"message": f"An app with id [{app['id']}] already exists."})
        row = self._put(app["id"], app, force)
        told = {**self.told(app["id"]), "deployments": [{"id": row["id"]}]}
        raise Answer(201, told, {"Marathon-Deployment-Id": row["id"], "Location": app["id"]})

    def _checked(self, body: Any) -> App:
        app = marathon_rules.parse(body)
        if "id" not in app:
            marathon_rules.refuse("Invalid JSON", [("/id", "error.path.missing")])
        app["id"] = canonical(app["id"])
        if "dependencies" in app:
            app["dependencies"] = [canonical(one) for one in app["dependencies"]]
        marathon_rules.rules(app, self.features)
        return app

    def update(self, app_id: str, body: Any, partial: bool, force: bool) -> Any:
        before = self.apps.get(app_id)
        if before and partial and isinstance(body, dict) and body.get("version"):
            app = copy.deepcopy(self._version(app_id, body["version"]))
        elif before and partial:
            marathon_rules.parse(body)
            own = {key: value for key, value in before.items() if key not in ("version", "versionInfo")}
            app = self._checked({**own, **body, "id": app_id})
        else:
            if not isinstance(body, dict):
                marathon_rules.refuse("Invalid JSON", [("", "error.expected.jsobject")])
            app = self._checked({**body, "id": app_id})
        row = self._put(app_id, app, force)
        raise self._result(row, 200 if before else 201)

    @staticmethod
    def _result(row: dict[str, Any], status: int = 200) -> Answer:
        told = {"version": row["version"], "deploymentId": row["id"]}
        return Answer(status, told, {"Marathon-Deployment-Id": row["id"]})

    def _put(self, app_id: str, app: App, force: bool) -> dict[str, Any]:
        before = self.apps.get(app_id)
        others = [
            row for other, one in self.apps.items() if other != app_id for row in marathon_rules.service_ports(one)
        ]
        used = {row[key] for row, key in others}
        app = {key: value for key, value in app.items() if key not in ("version", "versionInfo")}
        whole = marathon_rules.complete(app, self.role, used, before)
        bare = {key: value for key, value in (before or {}).items() if key not in ("version", "versionInfo")}
        if bare == whole:
            # A plan without a step is over at once.
            return {"id": str(uuid.uuid4()), "version": self.now()}
        self._unlock(app_id, force)
        version = self.now()
        scaled = before is not None and {**bare, "instances": 0} == {**whole, "instances": 0}
        changed = before["versionInfo"]["lastConfigChangeAt"] if before and scaled else version
        whole["version"] = version
        whole["versionInfo"] = {"lastScalingAt": version, "lastConfigChangeAt": changed}
        self.apps[app_id] = whole
        self.versions.setdefault(app_id, []).append(whole)
        action = "StartApplication" if before is None else "ScaleApplication" if scaled else "RestartApplication"
        return self._deploy(app_id, action, before)

    def remove(self, app_id: str, force: bool) -> Any:
        before = self._must(app_id)
        self._unlock(app_id, force)
        del self.apps[app_id]
        raise self._result(self._deploy(app_id, "StopApplication", before))

    def _unlock(self, app_id: str, force: bool) -> None:
        busy = [row for row in self.deployments if row["app"] == app_id]
        if busy and not force:
            raise Answer(409, {"message": LOCKED, "deployments": [{"id": row["id"]} for row in busy]})
        for row in busy:
            self.deployments.remove(row)

    def cancel(self, deployment_id: str, force: bool) -> Any:
        row = next((row for row in self.deployments if row["id"] == deployment_id), None)
        if row is None:
            raise Answer(404, {"message": f"DeploymentPlan {deployment_id} does not exist"})
        if force:
            self.deployments.remove(row)
            raise Answer(202, "")
        if row["before"] is None:
            self._unlock(row["app"], True)
            before = self.apps.pop(row["app"])
            raise self._result(self._deploy(row["app"], "StopApplication", before))
        raise self._result(self._put(row["app"], row["before"], True))

    # Deployments.

    def _deploy(self, app_id: str, action: str, before: App | None) -> dict[str, Any]:
        goes = self.next.pop(0) if self.next else {}
        row = {
            "id": str(uuid.uuid4()),
            "version": self.apps[app_id]["version"] if app_id in self.apps else self.now(),
            "app": app_id,
            "action": action,
            "before": before,
            "goes": goes,
            "left": goes.get("polls", 1),
            "stuck": goes.get("health") == "fail" or "fails" in goes or "fits" in goes,
        }
        self.deployments.append(row)
        if goes.get("health") == "fail":
            self.tasks.setdefault(app_id, []).append(self._task(app_id, alive=False))
        if "fails" in goes:
            task = self._task(app_id, alive=False)
            self.failures[app_id] = {
                "appId": app_id,
                "host": task["host"],
                "message": goes["fails"],
                "state": "TASK_FAILED",
                "taskId": task["id"],
                "timestamp": self.now(),
                "version": row["version"],
                "slaveId": task["slaveId"],
            }
        return row

    def _task(self, app_id: str, alive: bool = True) -> dict[str, Any]:
        app = self.apps[app_id]
        name, at = f"{slug(app_id)}.instance-{uuid.uuid4()}._app.1", self.now()
        task: dict[str, Any] = {
            "appId": app_id,
            "host": "agent1",
            "id": name,
            "ports": [],
            "servicePorts": [],
            "slaveId": "agent1-S0",
            "stagedAt": at,
            "startedAt": at,
            "state": "TASK_RUNNING",
            "version": app["versionInfo"]["lastConfigChangeAt"],
            "role": app["role"],
        }
        if app.get("healthChecks"):
            task["healthCheckResults"] = [
                {
                    "alive": alive,
                    "consecutiveFailures": 0 if alive else 3,
                    "firstSuccess": at if alive else None,
                    "lastFailure": None if alive else at,
                    "lastFailureCause": None if alive else "ConnectionRefused",
                    "lastSuccess": at if alive else None,
                    "instanceId": name.partition("._app")[0],
                }
            ]
        return task

    def _over(self, row: dict[str, Any]) -> None:
        self.deployments.remove(row)
        app = self.apps.get(row["app"])
        if app is None:
            for what in (self.tasks, self.versions, self.failures):
                what.pop(row["app"], None)
            return
        changed = app["versionInfo"]["lastConfigChangeAt"]
        stay = [task for task in self.tasks.get(row["app"], []) if task["version"] == changed and _alive(task)]
        fresh = [self._task(row["app"]) for _ in range(app["instances"] - len(stay))]
        self.tasks[row["app"]] = (stay + fresh)[: app["instances"]]


def _alive(task: dict[str, Any]) -> bool:
    return all(result["alive"] for result in task.get("healthCheckResults", []))
