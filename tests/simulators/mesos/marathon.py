# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for Marathon: apps, their versions, deployments, tasks and the queue, over HTTP.

With STAND_IN_ALONE (or STAND_IN_LEADER) in the environment it asks no Mesos master and no ZooKeeper. How the next
deployments go is then said by POST /stand-in/next: a list of objects with `polls` (how often /v2/deployments is asked
before the deployment is over; default 1), `health` (pass or fail), `fails` (the message of tasks that fail) and `fits`
(reasons for which offers are refused). Each deployment takes one; those after the last go well.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

import grammar
import marathon_flags
import web
from marathon_apps import Apps, canonical
from marathon_live import Live
from web import Answer, Request

VERSION = "1.10.26"
NOT_IMITATED = re.compile(
    r"/v2/(pods|groups|events|plugins|tasks/delete|queue/.*/delay|apps/.*/restart)(/.*)?|/metrics.*"
)


def _features(flags: dict[str, str]) -> set[str]:
    return set(filter(None, flags.get("enable_features", "").split(",")))


def _must_have_libmesos() -> None:
    """Marathon loads Mesos' library before all else, and ends without it."""
    named = os.environ.get("MESOS_NATIVE_JAVA_LIBRARY") or os.environ.get("MESOS_NATIVE_LIBRARY")
    places = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/usr/lib64", "/lib64", "/lib", "/usr/lib"]
    if named and not os.path.exists(named):
        grammar.die(f"java.lang.UnsatisfiedLinkError: Can't load library: {named}")
    if not named and not any(os.path.exists(os.path.join(place, "libmesos.so")) for place in places if place):
        grammar.die("java.lang.UnsatisfiedLinkError: no mesos in java.library.path")


class Http(Apps):
    """What Marathon answers, whatever its apps run on."""

    flags: dict[str, str]
    address: str
    # Who leads, as host:port; empty while nobody does.
    leader: str
    framework: str
    log: list[str]

    def answer(self, request: Request) -> Any:
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
        return self._of_app(request, path[len("/v2/apps/") :], query, force)

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


class Cluster(Http, Live):
    """On a real ZooKeeper and the stand-ins for Mesos."""

    def __init__(self, flags: dict[str, str]) -> None:
        name = flags.get("hostname") or socket.gethostname()
        super().__init__(flags, _features(flags), f"{name}:{flags['http_port']}")
        self.log = []

    @property
    def leader(self) -> str:
        return self.store.leader

    def handle(self, request: Request) -> Any:
        if self.leader == self.address and not self.ready and request.path != "/ping":
            raise Answer(503, "Could not determine the current leader")
        try:
            return self.answer(request)
        finally:
            # Before the answer goes out, ZooKeeper has what it says.
            if request.method != "GET":
                self.keep()


class Alone(Http):
    """Without a cluster: deployments go as the tests say. See the top of this file."""

    def __init__(self, flags: dict[str, str]) -> None:
        super().__init__(_features(flags), flags.get("mesos_role", "*"))
        self.flags = flags
        self.address = f"{flags.get('http_address', '127.0.0.1')}:{flags['http_port']}"
        # host:port of another one that leads, or nothing at all for an election without an end.
        self.leader = os.environ.get("STAND_IN_LEADER", self.address)
        self.framework = f"{uuid.uuid4()}-0000"
        self.log = []

    def handle(self, request: Request) -> Any:
        if request.path.startswith("/stand-in/"):
            return getattr(self, "in_" + request.path[len("/stand-in/") :])(request)
        return self.answer(request)

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


def main() -> None:
    flags = marathon_flags.load(sys.argv[1:], dict(os.environ))
    flags["http_port"] = flags.get("http_port", "8080")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if {"STAND_IN_ALONE", "STAND_IN_LEADER"} & set(os.environ):
        alone = Alone(flags)
        web.serve(flags.get("http_address", "127.0.0.1"), int(flags["http_port"]), alone.handle, libprocess=False)
    else:
        _must_have_libmesos()
        cluster = Cluster(flags)
        web.serve(flags.get("http_address", "0.0.0.0"), int(flags["http_port"]), cluster.handle, libprocess=False)
        cluster.start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
