# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stand-in for Marathon wants: which tasks to kill, how many to start, and which offers to take."""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from typing import Any

import marathon_offers
from marathon_apps import REASONS, App, slug
from marathon_tasks import Tasks

Row = dict[str, Any]


class Plan(Tasks):
    def __init__(self, features: set[str], role: str, behaviour: str, maintenance: bool) -> None:
        super().__init__(features, role)
        # The cluster's way with offers that have GPUs, and whether machines in the maintenance schedule are avoided.
        self.behaviour, self.maintenance = behaviour, maintenance
        # Why the last offers were of no use, by app.
        self.declined: dict[str, Row] = {}

    # What there should be.

    def _sorted(self, app_id: str) -> tuple[list[Row], list[Row]]:
        """The tasks of today's version, and those of older ones; without what is being killed."""
        rows = [task for task in self.tasks.get(app_id, []) if not self.own[task["id"]].get("killing")]
        app = self.apps.get(app_id)
        now = app["versionInfo"]["lastConfigChangeAt"] if app else ""
        rows = [task for task in rows if task["state"] != "TASK_KILLING"]
        return [task for task in rows if task["version"] == now], [task for task in rows if task["version"] != now]

    def well(self, app_id: str, task: Row) -> bool:
        if task["state"] != "TASK_RUNNING":
            return False
        checks = self._of_version(app_id, task["version"]).get("healthChecks", [])
        results = task.get("healthCheckResults", [])
        return len(results) >= len(checks) and all(row["alive"] for row in results)

    def _room(self, app: App) -> tuple[int, int]:
        """How many must run while instances are replaced, and how many may."""
        strategy, count = app["upgradeStrategy"], app["instances"]
        least = math.ceil(count * strategy["minimumHealthCapacity"])
        most = int(count * (1 + strategy["maximumOverCapacity"]))
        return (least, most + 1) if least == most else (least, most)

    def _missing(self, app_id: str) -> int:
        """How many may be started now."""
        app = self.apps[app_id]
        fresh, old = self._sorted(app_id)
        missing = app["instances"] - len(fresh)
        if old:
            missing = min(missing, self._room(app)[1] - len(fresh) - len(old))
        if self.delays.get(app_id, {}).get("until", 0) > time.time():
            return 0
        return max(0, missing)

    def _too_many(self) -> list[tuple[str, float]]:
        """Marks what must go, and gives what is to be killed, again if it takes long."""
        for app_id in self.tasks:
            app = self.apps.get(app_id)
            fresh, old = self._sorted(app_id)
            doomed: list[Row] = []
            if app is None:
                doomed = [*fresh, *old]
            else:
                spare = len(fresh) - app["instances"]
                if spare > 0:
                    oldest = app["killSelection"] == "OLDEST_FIRST"
                    doomed = sorted(fresh, key=lambda task: str(task["stagedAt"]), reverse=not oldest)[:spare]
                running = sum(self.well(app_id, task) for task in [*fresh, *old])
                sick = [task for task in old if not self.well(app_id, task)]
                able = [task for task in old if task not in sick]
                complete = sum(self.well(app_id, task) for task in fresh) >= app["instances"]
                doomed += old if complete else [*sick, *able[: max(0, running - self._room(app)[0])]]
            for task in doomed:
                self.own[task["id"]]["killing"] = time.time()
        return self._to_kill()

    def _to_kill(self) -> list[tuple[str, float]]:
        found, now = [], time.time()
        for app_id, rows in self.tasks.items():
            grace = (self.apps.get(app_id) or {}).get("taskKillGracePeriodSeconds", 3)
            for task in rows:
                own = self.own[task["id"]]
                if own.get("killing") and now - own.get("asked", 0) > 5:
                    own["asked"], task["state"] = now, "TASK_KILLING"
                    found.append((task["id"], float(grace)))
        return found

    def _look_at_deployments(self) -> None:
        for row in list(self.deployments):
            app_id = row["app"]
            app, tasks = self.apps.get(app_id), self.tasks.get(app_id, [])
            if app is None:
                if not tasks:
                    self._over(row)
                continue
            fresh, _ = self._sorted(app_id)
            if len(tasks) == app["instances"] == sum(self.well(app_id, task) for task in fresh):
                self.deployments.remove(row)

    # Deployments as they are told.

    def _deploy(self, app_id: str, action: str, before: App | None) -> Row:
        row = super()._deploy(app_id, action, before)
        # Not over after so many looks, but when it is done.
        row["stuck"] = True
        self.delays.pop(app_id, None)
        self.declined.pop(app_id, None)
        self.wake.set()
        return row

    def queue_told(self) -> Row:
        rows = []
        for app_id, app in self.apps.items():
            count = app["instances"] - len(self._sorted(app_id)[0])
            if count <= 0:
                continue
            seen = self.declined.get(app_id, {"processed": 0, "reasons": {}})
            left = max(0.0, self.delays.get(app_id, {}).get("until", 0) - time.time())
            steps = [
                {"reason": name, "declined": seen["reasons"].get(name, 0), "processed": seen["processed"]}
                for name in REASONS
            ]
            rows.append(
                {
                    "count": count,
                    "delay": {"timeLeftSeconds": math.ceil(left), "overdue": left == 0},
                    "since": app["version"],
                    "processedOffersSummary": {
                        "processedOffersCount": seen["processed"],
                        "unusedOffersCount": sum(seen["reasons"].values()),
                        "rejectSummaryLastOffers": steps,
                        "rejectSummaryLaunchAttempt": steps,
                    },
                    "app": app,
                }
            )
        return {"queue": rows}

    # Offers.

    def _match(self, wanted: dict[str, int], offers: list[Row]) -> list[Row]:
        """Instances for what fits, and the calls that launch them. Each app counts why an offer was of no use."""
        launches = []
        for app_id, count in wanted.items():
            app, reasons = self.apps.get(app_id), Counter[str]()
            if app is None or not count:
                continue
            for offer in sorted(offers, key=lambda row: -row["resources"]["cpus"]):
                while count:
                    placed = [self.own[task["id"]] for rows in self._sorted(app_id) for task in rows]
                    why = marathon_offers.refused(app, offer, placed, self.behaviour, self.maintenance)
                    if why:
                        reasons[why] += 1
                        break
                    launches.append(self._instance(app_id, app, offer))
                    count -= 1
            self.declined[app_id] = {"processed": len(offers), "reasons": dict(reasons)}
        return launches

    def _instance(self, app_id: str, app: App, offer: Row) -> Row:
        task = {
            "appId": app_id,
            "host": offer["hostname"],
            "id": f"{slug(app_id)}.instance-{uuid.uuid4()}._app.1",
            "ipAddresses": [{"ipAddress": offer["ip"], "protocol": "IPv4"}],
            "ports": marathon_offers.take(app, offer),
            "servicePorts": [],
            "slaveId": offer["agent_id"],
            "stagedAt": self.now(),
            "state": "TASK_STAGING",
            "version": app["versionInfo"]["lastConfigChangeAt"],
            "role": app["role"],
        }
        self.tasks.setdefault(app_id, []).append(task)
        self.own[task["id"]] = {
            "staged": time.time(),
            **{key: offer[key] for key in ("attributes", "hostname", "ip")},
        }
        told = marathon_offers.info(app, {**task, "ip": offer["ip"]})
        return {"agent_id": offer["agent_id"], "task": told}
