# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom the stand-in for mesos-master knows: agents, frameworks and tasks, and what each is told.

Agents and frameworks talk to it by calls of the stand-ins' own (/stand-in/…), and ask again and again: a silence of
some seconds is what a broken connection is to the real one.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import uuid
from typing import Any

import grammar
import web
from web import Answer

SILENT_S = 3.0
SCALARS = ("cpus", "mem", "disk", "gpus")
Row = dict[str, Any]


def ports(text: str) -> set[int]:
    """[31000-31005,32000-32000] as numbers."""
    spans = re.findall(r"(\d+)-(\d+)", text)
    return {port for low, high in spans for port in range(int(low), int(high) + 1)}


def blank() -> Row:
    """What outlives the program: agents that were admitted, drains by agent id, the schedule and its machines."""
    return {
        "agents": {},
        "unreachable": {},
        "drains": {},
        "deactivated": [],
        "gone": [],
        "schedule": {},
        "down": [],
    }


class Members:
    def __init__(self, flags: grammar.Flags) -> None:
        self.flags = flags
        self.id, self.start = str(uuid.uuid4()), time.time()
        self.registry = blank()
        self.agents: dict[str, Row] = {}
        self.frameworks: dict[str, Row] = {}
        self.completed: dict[str, Row] = {}
        self.tasks: dict[str, Row] = {}
        self.elected_time = self.start
        self.numbers = {"agent": 0, "framework": 0}
        self.credentials, self.acls = self._credentials(), self._acls()
        self.ping_s = grammar.seconds(flags["agent_ping_timeout"]) * int(flags["max_agent_ping_timeouts"])
        self.return_s = grammar.seconds(flags["agent_reregister_timeout"])

    def save(self) -> None:
        raise NotImplementedError

    def look_at_drains(self) -> None:
        raise NotImplementedError

    def _credentials(self) -> dict[str, str]:
        if "credentials" not in self.flags:
            return {}
        try:
            told = json.loads(grammar.read(self.flags["credentials"]))
        except ValueError as why:
            grammar.die(f"Failed to parse credentials file: {why}")
        if not isinstance(told, dict):
            grammar.die("Failed to parse credentials file: not a JSON object")
        return {row["principal"]: row.get("secret", "") for row in told.get("credentials", [])}

    def _acls(self) -> Row:
        acls = json.loads(grammar.read(self.flags["acls"])) if "acls" in self.flags else {}
        for name, entries in acls.items():
            for entry in entries if name != "permissive" else []:
                if "principals" not in entry or len(entry) < 2:
                    grammar.die(f"Failed to load flag 'acls': Missing required fields in {name}: {json.dumps(entry)}")
        return dict(acls)

    def may(self, principal: str | None, action: str) -> bool:
        """Whether the first of the action's ACLs that is about this principal lets it, or else all that is not said."""
        for entry in self.acls.get(action, []):
            who = entry["principals"]
            if who.get("type") == "ANY" or principal in who.get("values", []):
                what = next(value for key, value in entry.items() if key != "principals")
                return bool(what.get("type") != "NONE")
        return bool(self.acls.get("permissive", True))

    def _trusted(self, flag: str, credential: Row | None) -> str:
        """unauthenticated, refused, or nothing if all is well."""
        if self.flags.get(flag) not in ("true", "1"):
            return ""
        if credential is None or not web.sasl():
            return "unauthenticated"
        known = self.credentials.get(credential["principal"])
        return "" if known is not None and known == credential["secret"] else "refused"

    def machine(self, row: Row) -> tuple[str, str]:
        return self.key(row["info"])

    @staticmethod
    def key(row: Row) -> tuple[str, str]:
        """A machine as the master knows it again: names are compared without case."""
        return row.get("hostname", "").lower(), row.get("ip", "")

    def used(self, agent_id: str) -> dict[str, float]:
        total = dict.fromkeys(SCALARS, 0.0)
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                for name in total:
                    total[name] += task["resources"].get(name, 0.0)
        return total

    def active(self, row: Row) -> bool:
        return bool(row["connected"] and row["id"] not in self.registry["deactivated"])

    def recovered(self) -> dict[str, Row]:
        """Agents that the registry knows and that have not come back to this leader."""
        away = set(self.agents) | set(self.registry["unreachable"])
        return {key: info for key, info in self.registry["agents"].items() if key not in away}

    # Agents.

    def in_register(self, told: Row) -> Row:
        """Registration and heartbeat of an agent, which also brings the states of its tasks."""
        wrong = self._trusted("authenticate_agents", told.get("credential"))
        if wrong:
            return {"answer": wrong}
        if told.get("domain") and "domain" not in self.flags:
            print("Dropping registration of agent with a domain: this master has none", flush=True)
            return {"answer": "dropped"}
        principal = (told.get("credential") or {}).get("principal")
        agent_id, info, registry = told["agent_id"], told["info"], self.registry
        machine = self.key(info)
        out = agent_id in registry["gone"] or machine in [self.key(one) for one in registry["down"]]
        if out or not self.may(principal, "register_agents"):
            return {"answer": "shutdown"}
        if not agent_id:
            agent_id = f"{self.id}-S{self.numbers['agent']}"
            self.numbers["agent"] += 1
        for key, row in list(self.agents.items()):
            # Another id at the same place takes the place of the old one.
            if key != agent_id and self.machine(row) == machine and row["info"]["port"] == info["port"]:
                self.remove(key, "TASK_LOST")
        fresh = agent_id not in self.agents
        row = self.agents.setdefault(agent_id, {"id": agent_id, "registered": time.time()})
        # One that comes with an id has registered before, with this leader or another.
        if row.get("run") != told.get("run") and (told["agent_id"] or not fresh):
            row["reregistered"] = time.time()
        row.update(info=info, seen=time.time(), connected=True, run=told.get("run"))
        if registry["agents"].get(agent_id) != info or agent_id in registry["unreachable"]:
            registry["agents"][agent_id] = info
            registry["unreachable"].pop(agent_id, None)
            self.save()
        for task in told["tasks"]:
            self._report(agent_id, task)
        if fresh and agent_id in registry["drains"]:
            # Who led before may have had no time to say so.
            self.kill_all(agent_id)
        self.look_at_drains()
        return {"answer": "registered", "agent_id": agent_id}

    def in_unregister(self, told: Row) -> Row:
        if told["agent_id"] in self.registry["agents"]:
            self.remove(told["agent_id"], "TASK_LOST")
        return {}

    def _report(self, agent_id: str, task: Row) -> None:
        """What an agent says of one of its tasks."""
        start = {**task, "agent_id": agent_id, "done": False, "since": time.time()}
        mine = self.tasks.setdefault(task["id"], start)
        framework = task.get("framework")
        if framework and framework["id"] not in {**self.frameworks, **self.completed}:
            self.frameworks[framework["id"]] = {**framework, "seen": time.time(), "connected": False}
        ended = task["state"] not in ("TASK_STAGING", "TASK_STARTING", "TASK_RUNNING", "TASK_KILLING")
        news = {key: task.get(key) for key in ("state", "healthy", "message", "reason")}
        if mine is start or (not mine["done"] and {key: mine.get(key) for key in news} != news):
            since = mine["since"] if mine["state"] == task["state"] else time.time()
            mine.update(news, done=ended, since=since)

    def remove(self, agent_id: str, state: str) -> None:
        """An agent is no longer known; its tasks end in this state."""
        self.agents.pop(agent_id, None)
        self.registry["agents"].pop(agent_id, None)
        self.registry["unreachable"].pop(agent_id, None)
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                task.update(state=state, done=True, since=time.time())
        self.save()

    def _unreachable(self, agent_id: str) -> None:
        self.agents.pop(agent_id, None)
        self.registry["unreachable"][agent_id] = time.time()
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                task.update(state="TASK_UNREACHABLE", since=time.time())
        self.save()

    # Frameworks.

    def in_framework(self, told: Row) -> Row:
        wrong = self._trusted("authenticate_frameworks", told.get("credential"))
        if wrong == "unauthenticated" and not web.sasl():
            raise Answer(503, "Failed to authenticate: SASL(-4): no mechanism available")
        if wrong:
            raise Answer(403, f"Framework is not authenticated: {wrong}")
        principal = (told.get("credential") or {}).get("principal")
        if not self.may(principal, "register_frameworks"):
            raise Answer(403, "Not authorized to use roles")
        framework_id = told.get("id")
        if framework_id in self.completed:
            raise Answer(403, "Framework has been removed")
        if not framework_id:
            framework_id = f"{self.id}-{self.numbers['framework']:04d}"
            self.numbers["framework"] += 1
        known = ("name", "role", "roles", "user", "hostname", "webui_url", "failover_timeout", "checkpoint")
        self.frameworks[framework_id] = {
            "id": framework_id,
            **{key: told[key] for key in known if key in told},
            "capabilities": told.get("capabilities", []),
            "principal": principal or "",
            "registered_time": self.frameworks.get(framework_id, {}).get("registered_time", time.time()),
            "seen": time.time(),
            "connected": True,
        }
        return {"id": framework_id}

    def _framework(self, told: Row) -> Row:
        row = self.frameworks.get(told["framework_id"])
        if row is None or not row["connected"]:
            raise Answer(400, "Framework is not subscribed")
        row["seen"] = time.time()
        return row

    def teardown(self, framework_id: str) -> None:
        row = self.frameworks.pop(framework_id)
        self.completed[framework_id] = {**row, "connected": False}
        for task in self.tasks.values():
            if task["framework_id"] == framework_id and not task["done"]:
                self.kill(task, 3.0)

    def in_offers(self, told: Row) -> list[Row]:
        """What is free on each active agent. One with GPUs is offered only to who can use them, by default."""
        capable = "GPU_RESOURCES" in self._framework(told)["capabilities"]
        everyone = self.flags["filter_gpu_resources"] in ("false", "0")
        windows = self.registry["schedule"].get("windows", [])
        scheduled = {self.key(one) for row in windows for one in row["machine_ids"]}
        offers = []
        for row in self.agents.values():
            info, total = row["info"], row["info"]["resources"]
            if not self.active(row) or (total.get("gpus", 0) > 0 and not capable and not everyone):
                continue
            used = self.used(row["id"])
            mine = [one for one in self.tasks.values() if one["agent_id"] == row["id"] and not one["done"]]
            taken: set[int] = {port for one in mine for port in one.get("ports", [])}
            offers.append(
                {
                    "agent_id": row["id"],
                    "resources": {name: round(total.get(name, 0.0) - used[name], 3) for name in used},
                    "ports": sorted(ports(total.get("ports", "[31000-32000]")) - taken)[:100],
                    "unavailable": self.machine(row) in scheduled,
                    "total_gpus": total.get("gpus", 0.0),
                    **{key: info[key] for key in ("hostname", "attributes", "ip")},
                }
            )
        return offers

    def in_tasks(self, told: Row) -> Row:
        """What became of a framework's tasks, and where each agent is."""
        self._framework(told)
        keys = ("id", "agent_id", "state", "since", "healthy", "message", "reason")
        mine = [row for row in self.tasks.values() if row["framework_id"] == told["framework_id"]]
        return {
            "tasks": [{key: row.get(key) for key in keys} for row in mine],
            "registered": list(self.agents),
            "recovered": list(self.recovered()),
            "unreachable": self.registry["unreachable"],
        }

    def in_launch(self, told: Row) -> Row:
        task, agent = told["task"], self.agents.get(told["agent_id"])
        if agent is None or not self.active(agent):
            raise Answer(400, "the agent is not active")
        framework = self._framework(told)
        if not self.may(framework["principal"] or None, "run_tasks"):
            raise Answer(403, "Not authorized to launch the task")
        used, total = self.used(told["agent_id"]), agent["info"]["resources"]
        if any(total.get(name, 0.0) - used[name] + 1e-9 < task["resources"].get(name, 0.0) for name in used):
            raise Answer(400, "not enough is left")
        row = {
            **task,
            "framework_id": told["framework_id"],
            "framework": {key: framework[key] for key in ("id", "name", "capabilities")},
            "agent_id": told["agent_id"],
            "state": "TASK_STAGING",
            "done": False,
            "since": time.time(),
        }
        self.tasks[task["id"]] = row
        # Outside of the lock: the agent tells the state of its tasks in the meantime.
        threading.Thread(target=self._send, args=(agent["info"], dict(row)), daemon=True).start()
        return {"id": task["id"]}

    def _send(self, info: Row, row: Row) -> None:
        try:
            web.call(f"http://{info['ip']}:{info['port']}/stand-in/run", row)
        except (urllib.error.URLError, OSError) as why:
            with web.LOCK:
                if self.tasks[row["id"]]["state"] == "TASK_STAGING":
                    told = {"state": "TASK_LOST", "reason": "REASON_SLAVE_DISCONNECTED", "message": str(why)}
                    self.tasks[row["id"]].update(told, done=True, since=time.time())

    def in_kill(self, told: Row) -> Row:
        if told["task_id"] in self.tasks:
            self.kill(self.tasks[told["task_id"]], float(told.get("grace_s", 3.0)))
        return {}

    def kill(self, task: Row, grace_s: float) -> None:
        agent = self.agents.get(task["agent_id"])
        if agent:
            info, body = agent["info"], {"task_id": task["id"], "grace_s": grace_s}
            url = f"http://{info['ip']}:{info['port']}/stand-in/kill"
            threading.Thread(target=self._try, args=(url, body), daemon=True).start()

    @staticmethod
    def _try(url: str, body: Row) -> None:
        try:
            web.call(url, body)
        except (urllib.error.URLError, OSError) as why:
            print(f"{url}: {why}", flush=True)

    def kill_all(self, agent_id: str) -> None:
        """What a drain does to the tasks of an agent."""
        # Without a grace of the drain's own the task's counts.
        told = self.registry["drains"][agent_id]["config"].get("max_grace_period", {"nanoseconds": 3 * 10**9})
        grace = told["nanoseconds"]
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                self.kill(task, max(grace / 10**9, 0.0))

    # Time.

    def tick(self) -> None:
        """What silence does to agents and frameworks."""
        now = time.time()
        for agent_id, row in list(self.agents.items()):
            row["connected"] = now - row["seen"] < SILENT_S
            if now - row["seen"] > self.ping_s:
                self._unreachable(agent_id)
        if now - self.elected_time > self.return_s:
            for agent_id in self.recovered():
                self._unreachable(agent_id)
        for framework_id, framework in list(self.frameworks.items()):
            # One that says no time is one of a test, which is always there.
            if "failover_timeout" in framework:
                framework["connected"] = framework["connected"] and now - framework["seen"] < SILENT_S
                if now - framework["seen"] > SILENT_S + framework["failover_timeout"]:
                    self.teardown(framework_id)
        done = [key for key, task in self.tasks.items() if task["done"]]
        for key in done[: -int(self.flags["max_completed_tasks_per_framework"]) or None]:
            del self.tasks[key]
