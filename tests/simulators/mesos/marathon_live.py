# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for Marathon as a framework of the leading master, with its apps in ZooKeeper."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
from typing import Any

import ensemble
import web
from marathon_plan import Plan
from marathon_store import MESOS_ERROR, Store, crash

Row = dict[str, Any]


class Live(Plan):
    """Apps whose tasks run on a cluster."""

    def __init__(self, flags: dict[str, str], features: set[str], address: str) -> None:
        role, behaviour = flags.get("mesos_role", "*"), flags["gpu_scheduling_behavior"]
        super().__init__(features, role, behaviour, flags.get("maintenance_mode") != "false")
        self.flags, self.address = flags, address
        self.framework = ""
        self.master: str | None = None
        self.subscribed = self.ready = False
        self.store = Store(flags, address, lambda: threading.Thread(target=self._lead, daemon=True).start())

    def start(self) -> None:
        self._find_master()
        self.store.start(int(self.flags["zk_connection_timeout"]) / 1000)

    # The master.

    def _find_master(self) -> None:
        told = self.flags["master"]
        if not told.startswith("zk://"):
            self.master = told.partition("://")[2].rstrip("/")
            return
        where = ensemble.url(told, "Bad arguments for option 'master'")
        refused = "Failed to detect a master"
        ensemble.Group(
            where, "json.info_", 10.0, self._detected, lambda why: crash(MESOS_ERROR, f"{refused}: {why}")
        ).start()

    def _detected(self, members: ensemble.Members | None, _: str | None) -> None:
        first = next(iter(members.values()), None) if members else None
        address = json.loads(first)["address"] if first else None
        master = f"{address['ip']}:{address['port']}" if address else None
        if master != self.master:
            self.master, self.subscribed = master, False
            self.wake.set()

    def _call(self, what: str, body: Row) -> Any:
        return web.call(f"http://{self.master}/stand-in/{what}", {"framework_id": self.framework, **body})

    def _credential(self) -> Row | None:
        principal = self.flags.get("mesos_authentication_principal")
        if self.flags.get("mesos_authentication") != "true" or not principal:
            return None
        secret, file = self.flags.get("mesos_authentication_secret", ""), "mesos_authentication_secret_file"
        if file in self.flags:
            try:
                with open(self.flags[file], encoding="utf-8") as told:
                    # Marathon takes the whole file, a newline at its end included.
                    secret = told.read()
            except OSError as why:
                crash(MESOS_ERROR, f"Error reading authentication secret from file: {why}")
        return {"principal": principal, "secret": secret}

    def _subscribe(self) -> None:
        gpus = ["GPU_RESOURCES"] if "gpu_resources" in self.features else []
        told = {
            "id": self.framework,
            "name": self.flags["framework_name"],
            "roles": [self.role],
            "hostname": self.address.rpartition(":")[0],
            "webui_url": self.flags.get("webui_url", f"http://{self.address}"),
            "failover_timeout": float(self.flags["failover_timeout"]),
            "checkpoint": self.flags["checkpoint"] != "false",
            "capabilities": ["PARTITION_AWARE", *gpus, "REGION_AWARE", "MULTI_ROLE"],
            "credential": self._credential(),
        }
        if told["credential"] is not None and not web.sasl():
            raise OSError("SASL(-4): no mechanism available: No worthy mechs found")
        try:
            self.framework = self._call("framework", told)["id"]
        except urllib.error.HTTPError as why:
            if why.code == 403:
                crash(MESOS_ERROR, f"Error from Mesos: {why.read().decode()}")
            raise
        self.subscribed = True

    # What is kept.

    def documents(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {("framework-id", "id"): self.framework} if self.framework else {}
        for app_id in {*self.apps, *self.tasks, *(row["app"] for row in self.deployments)}:
            tasks = self.tasks.get(app_id, [])
            found["app", app_id] = {
                "app": self.apps.get(app_id),
                "versions": self.versions.get(app_id, [])[-int(self.flags["zk_max_versions"]) :],
                # Of health only the checks know, and they start again with a new leader.
                "tasks": [{key: value for key, value in task.items() if key != "healthCheckResults"} for task in tasks],
                "own": {task["id"]: self._kept(task["id"]) for task in tasks},
                "failure": self.failures.get(app_id),
            }
        found.update({("deployment", row["id"]): row for row in self.deployments})
        return found

    def _kept(self, task_id: str) -> Row:
        names = ("killing", "staged", "attributes", "hostname", "ip", "began")
        return {key: value for key, value in self.own[task_id].items() if key in names}

    def keep(self) -> None:
        if self.ready:
            self.store.save(self.documents())

    def _lead(self) -> None:
        with web.LOCK:
            for (kind, name), value in self.store.load().items():
                if kind == "framework-id":
                    self.framework = value
                elif kind == "deployment":
                    self.deployments.append(value)
                else:
                    self._restore(name, value)
            self.deployments.sort(key=lambda row: str(row["version"]))
            self.ready = True
        while True:
            self.wake.clear()
            try:
                self.step()
            except (urllib.error.URLError, OSError, ValueError) as why:
                # The next leader of the masters is asked anew.
                self.subscribed = False
                print(f"The master {self.master} does not answer: {why}", file=sys.stderr, flush=True)
            self.wake.wait(0.3)

    def _restore(self, app_id: str, value: Row) -> None:
        if value["app"]:
            self.apps[app_id] = value["app"]
        self.versions[app_id] = value["versions"]
        self.tasks[app_id] = value["tasks"]
        self.own.update(value["own"])
        if value["failure"]:
            self.failures[app_id] = value["failure"]

    # What happens again and again.

    def step(self) -> None:
        if self.master is None:
            return
        if not self.subscribed:
            self._subscribe()
        told = self._call("tasks", {})
        with web.LOCK:
            kills = self._hear(told)
            self._start_checks()
            kills += self._too_many()
            wanted = {app_id: self._missing(app_id) for app_id in self.apps}
            self._look_at_deployments()
            self.keep()
        if any(wanted.values()):
            offers = self._call("offers", {})
            with web.LOCK:
                launches = self._match(wanted, offers)
                self.keep()
            for task in launches:
                self._launch(task)
        for task_id, grace_s in kills:
            self._call("kill", {"task_id": task_id, "grace_s": grace_s})

    def _launch(self, told: Row) -> None:
        try:
            self._call("launch", told)
        except urllib.error.HTTPError:
            with web.LOCK:
                self._forget(told["task"]["id"])
