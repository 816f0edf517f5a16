# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for Marathon: apps, their versions, deployments, tasks and the queue, over HTTP.

It asks no Mesos master. How the next deployments go is said by POST /stand-in/next: a list of objects with `polls`
(how often /v2/deployments is asked before the deployment is over; default 1), `health` (pass or fail), `fails` (the
message of tasks that fail) and `fits` (reasons for which offers are refused). Each deployment takes one; those after
the last go well.
"""

from __future__ import annotations

import copy
import datetime
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

import marathon_flags
import marathon_rules
import web
from web import Answer, Request

VERSION = "1.10.26"
LOCKED = (
    "App is locked by one or more deployments. Override with the option '?force=true'. "
    "View details at '/v2/deployments/<DEPLOYMENT_ID>'."
)
NOT_IMITATED = re.compile(
    r"/v2/(pods|groups|events|plugins|tasks/delete|queue/.*/delay|apps/.*/restart)(/.*)?|/metrics.*"
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


class Marathon:
    def __init__(self, flags: dict[str, str]) -> None:
        self.flags = flags
        self.features = set(filter(None, flags.get("enable_features", "").split(",")))
        self.address = f"{flags.get('http_address', '127.0.0.1')}:{flags['http_port']}"
        # host:port of another one that leads, or nothing at all for an election without an end.
        self.leader = os.environ.get("STAND_IN_LEADER", self.address)
        self.framework = f"{uuid.uuid4()}-0000"
        self.apps: dict[str, App] = {}
        self.versions: dict[str, list[App]] = {}
        self.tasks: dict[str, list[dict[str, Any]]] = {}
        self.failures: dict[str, dict[str, Any]] = {}
        self.deployments: list[dict[str, Any]] = []
        self.next: list[dict[str, Any]] = []
        self.log: list[str] = []
        self._last = 0.0

    def now(self) -> str:
        """A version. No two are the same."""
        self._last = max(time.time(), self._last + 0.001)
        told = datetime.datetime.fromtimestamp(self._last, datetime.UTC)
        return told.strftime("%Y-%m-%dT%H:%M:%S.") + f"{told.microsecond // 1000:03d}Z"

    # Requests.

    def handle(self, request: Request) -> Any:
        if request.path.startswith("/stand-in/"):
            return getattr(self, "in_" + request.path.removeprefix("/stand-in/"))(request)
        self._authenticate(request)
        if request.path == "/ping":
            return "pong"
        if not self.leader:
            raise Answer(503, "Could not determine the current leader")
        if self.leader != self.address:
            return self._forward(request)
        query = {key: urllib.parse.unquote_plus(value) for key, value in request.query.items()}
        if request.method != "GET":
            self.log.append(f"{request.method} {request.path}{''.join(f' {k}={v}' for k, v in sorted(query.items()))}")
        return self._route(request, urllib.parse.unquote(request.path), query)

    def _authenticate(self, request: Request) -> None:
        # The security of the web server covers every path, /ping too.
        user, colon, password = self.flags.get("http_credentials", "").partition(":")
        if colon and user and password and request.login() != (user, password):
            raise Answer(401, "", {"WWW-Authenticate": f'basic realm="{self.flags["http_realm"]}"'})

    def _forward(self, request: Request) -> Any:
        query = "&".join(f"{key}={value}" for key, value in request.query.items())
        target = f"http://{self.leader}{request.path}{'?' if query else ''}{query}"
        passed = {key: value for key, value in request.headers.items() if key.lower() not in ("host", "connection")}
        asked = urllib.request.Request(target, request.body or None, passed, method=request.method)
        via = {"X-Marathon-Via": f"1.1 {self.address}"}
        try:
            with urllib.request.urlopen(asked, timeout=10) as reply:
                raise Answer(reply.status, reply.read().decode(), via)
        except urllib.error.HTTPError as told:
            raise Answer(told.code, told.read().decode(), via) from told
        except OSError as why:
            raise Answer(502, "Connection to leader refused.") from why

    def _route(self, request: Request, path: str, query: dict[str, str]) -> Any:
        force = query.get("force", "false") == "true"
        if path in ("/v2/info", "/v2/leader", "/v2/tasks", "/v2/queue", "/v2/deployments"):
            if request.method != "GET":
                raise Answer(405, {"message": "Method Not Allowed"})
            return getattr(self, path.rpartition("/")[2] + "_told")()
        if path.startswith("/v2/deployments/") and request.method == "DELETE":
            return self.cancel(path.rpartition("/")[2], force)
        if NOT_IMITATED.fullmatch(path):
            raise Answer(501, "the stand-in does not do this")
        if path != "/v2/apps" and not path.startswith("/v2/apps/"):
            raise Answer(404, {"message": f"URI not found: {path}"})
        kind = request.headers.get("Content-Type", "").partition(";")[0]
        if request.method in ("POST", "PUT", "PATCH") and kind != "application/json":
            raise Answer(415, {"message": "Unsupported Media Type"})
        if path == "/v2/apps":
            if request.method == "GET":
                chosen = [app_id for app_id in sorted(self.apps) if self._selected(app_id, query)]
                more = query.get("embed") == "apps.failures"
                return {"apps": [{**self.told(one), **(self._embedded(one) if more else {})} for one in chosen]}
            if request.method == "POST":
                return self.create(self._json(request), force)
            raise Answer(501, "the stand-in takes one app at a time")
        return self._of_app(request, path.removeprefix("/v2/apps/"), query, force)

    def _of_app(self, request: Request, rest: str, query: dict[str, str], force: bool) -> Any:
        found = re.fullmatch(r"(.+?)/(tasks|versions)(?:/+([^/]+))?", rest)
        if found and request.method == "GET":
            app_id, what, version = canonical(found.group(1)), found.group(2), found.group(3)
            self._must(app_id)
            if what == "tasks":
                return {"tasks": self.tasks.get(app_id, [])}
            if version is None:
                return {"versions": [row["version"] for row in reversed(self.versions[app_id])]}
            return self._version(app_id, version)
        app_id = canonical(rest)
        if request.method == "GET":
            self._must(app_id)
            return {"app": {**self.told(app_id), **self._embedded(app_id)}}
        if request.method == "DELETE":
            # The only call that forces where nobody asks for it.
            return self.remove(app_id, query.get("force", "true") == "true")
        if request.method in ("PUT", "PATCH"):
            partial = request.method == "PATCH" or query.get("partialUpdate", "true") == "true"
            if request.method == "PATCH":
                self._must(app_id)
            return self.update(app_id, self._json(request), partial, force)
        raise Answer(405, {"message": "Method Not Allowed"})

    @staticmethod
    def _json(request: Request) -> Any:
        try:
            return request.json()
        except Answer as told:
            raise Answer(400, {"message": "Invalid JSON", "details": told.body}) from told

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

    def info_told(self) -> Any:
        return {
            "name": "marathon",
            "version": VERSION,
            "elected": True,
            "leader": self.leader,
            "frameworkId": self.framework,
            "marathon_config": {
                "master": self.flags["master"],
                "features": sorted(self.features),
                "gpu_scheduling_behavior": self.flags["gpu_scheduling_behavior"],
                "mesos_role": self.flags.get("mesos_role"),
            },
            "http_config": {"http_port": int(self.flags["http_port"])},
        }

    def leader_told(self) -> Any:
        return {"leader": self.leader}

    def tasks_told(self) -> Any:
        return {"tasks": [task for app_id in sorted(self.tasks) for task in self.tasks[app_id]]}

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
        whole = marathon_rules.complete(app, self.flags.get("mesos_role", "*"), used, before)
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

    # What the tests say and ask.

    def in_next(self, request: Request) -> Any:
        self.next = request.json()
        return {}

    def in_unhealthy(self, request: Request) -> Any:
        """The tasks of {"app": id} stop to be healthy, without a deployment."""
        for task in self.tasks[request.json()["app"]]:
            for result in task.get("healthCheckResults", []):
                result["alive"] = False
        return {}

    def in_leader(self, request: Request) -> Any:
        """{"leader": host:port}, "" while none is elected, or null for this one."""
        told = request.json()["leader"]
        self.leader = self.address if told is None else told
        return {}

    def in_log(self, request: Request) -> Any:
        """The calls so far that were no GET."""
        return self.log


def _alive(task: dict[str, Any]) -> bool:
    return all(result["alive"] for result in task.get("healthCheckResults", []))


def main() -> None:
    flags = marathon_flags.load(sys.argv[1:], dict(os.environ))
    flags["http_port"] = flags.get("http_port", "8080")
    marathon = Marathon(flags)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    web.serve(flags.get("http_address", "127.0.0.1"), int(flags["http_port"]), marathon.handle)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
