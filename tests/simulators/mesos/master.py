# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for mesos-master: one leader, agents, frameworks, drains and maintenance."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import grammar
import web
from web import Answer, Request

VERSION = "1.11.0"


def _duration_ns(told: Any) -> int:
    """A google.protobuf.Duration. Of {"nanoseconds":N} nothing is read, which is no grace at all."""
    if not isinstance(told, dict):
        raise Answer(400, "Failed to convert JSON into Call protobuf: Not expecting a JSON string or number")
    return int(told.get("seconds", 0)) * 10**9 + int(told.get("nanos", 0))


class Master:
    def __init__(self, flags: dict[str, str]) -> None:
        self.flags = flags
        self.id, self.start = str(uuid.uuid4()), time.time()
        self.ip, self.port = flags.get("ip", "127.0.0.1"), int(flags["port"])
        # Who else leads, as host:port; then this one only redirects.
        self.leader = os.environ.get("STAND_IN_LEADER")
        self.credentials = self._credentials()
        self.registry_file = Path(flags["work_dir"]) / "registry.json"
        self.agents: dict[str, dict[str, Any]] = {}
        self.frameworks: dict[str, dict[str, Any]] = {}
        self.tasks: dict[str, dict[str, Any]] = {}
        # What outlives the program: drains by agent id, agents that are gone, the schedule, machines that are down.
        self.registry: dict[str, Any] = {"drains": {}, "deactivated": [], "gone": [], "schedule": {}, "down": []}
        if self.registry_file.exists():
            self.registry = json.loads(self.registry_file.read_text(encoding="utf-8"))

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

    def save(self) -> None:
        part = self.registry_file.with_suffix(".part")
        part.write_text(json.dumps(self.registry), encoding="utf-8")
        part.replace(self.registry_file)

    # Requests.

    def handle(self, request: Request) -> Any:
        path = request.path.removeprefix("/master") or "/"
        if path == "/health":
            return ""
        if path == "/version":
            return {"version": VERSION}
        if path == "/redirect":
            raise Answer(307, "", {"Location": f"//{self.leader or f'{self.ip}:{self.port}'}"})
        self._authenticate(request, path)
        if path == "/metrics/snapshot":
            return self.metrics()
        if path == "/flags":
            return {"flags": self.flags}
        if self.leader:
            raise Answer(307, "", {"Location": f"//{self.leader}{request.path}"})
        routes = {
            "/state": self.state,
            "/slaves": lambda: {"slaves": [self.shown(row) for row in self.agents.values()], "recovered_slaves": []},
            "/tasks": lambda: {"tasks": [self.task(row) for row in self.tasks.values()]},
            "/maintenance/status": self.maintenance_status,
        }
        if path in routes:
            if request.method != "GET":
                raise Answer(405)
            return routes[path]()
        if path == "/maintenance/schedule":
            return self.set_schedule(request.json()) if request.method == "POST" else self.registry["schedule"]
        if path in ("/machine/down", "/machine/up"):
            return self.machines(path.rpartition("/")[2], request.json())
        if path == "/api/v1":
            return self.operator(request)
        if path.startswith("/stand-in/"):
            return getattr(self, "in_" + path.removeprefix("/stand-in/"))(request.json())
        raise Answer(404)

    def _authenticate(self, request: Request, path: str) -> None:
        realm = "readwrite" if path == "/api/v1" or path.startswith(("/maintenance", "/machine")) else "readonly"
        if path.startswith("/stand-in/") or self.flags.get(f"authenticate_http_{realm}") not in ("true", "1"):
            return
        login = request.login()
        if not login or not login[1] or self.credentials.get(login[0]) != login[1]:
            raise Answer(401, "", {"WWW-Authenticate": f'Basic realm="mesos-master-{realm}"'})
        acls = json.loads(grammar.read(self.flags["acls"])) if "acls" in self.flags else {}
        self.denied = self._denied(acls, login[0])

    denied: frozenset[str] = frozenset()

    @staticmethod
    def _denied(acls: dict[str, Any], principal: str) -> frozenset[str]:
        found = set()
        for name, entries in acls.items():
            if name == "permissive":
                continue
            for entry in entries:
                who = entry["principals"]
                if who.get("type") == "ANY" or principal in who.get("values", []):
                    what = next(value for key, value in entry.items() if key != "principals")
                    if what.get("type") == "NONE":
                        found.add(name)
                    break
        return frozenset(found)

    # What is told.

    def used(self, agent_id: str) -> dict[str, float]:
        total = {"cpus": 0.0, "mem": 0.0, "disk": 0.0, "gpus": 0.0}
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                for name in total:
                    total[name] += task["resources"].get(name, 0.0)
        return total

    def shown(self, row: dict[str, Any]) -> dict[str, Any]:
        info = row["info"]
        scalars = {name: info["resources"].get(name, 0.0) for name in ("cpus", "mem", "disk", "gpus")}
        total = {**scalars, "ports": info["resources"].get("ports", "[31000-32000]")}
        shown = {
            "id": row["id"],
            "hostname": info["hostname"],
            "port": info["port"],
            "attributes": info["attributes"],
            "pid": f"slave(1)@{info['ip']}:{info['port']}",
            "registered_time": row["registered"],
            "resources": total,
            "used_resources": self.used(row["id"]),
            "offered_resources": {"cpus": 0.0, "mem": 0.0, "disk": 0.0, "gpus": 0.0},
            "reserved_resources": {},
            "unreserved_resources": total,
            "active": row["id"] not in self.registry["deactivated"],
            "deactivated": row["id"] in self.registry["deactivated"],
            "version": VERSION,
            "capabilities": ["MULTI_ROLE", "AGENT_DRAINING"],
        }
        drain = self.registry["drains"].get(row["id"])
        if drain:
            shown["drain_info"] = {key: drain[key] for key in ("state", "config")}
            shown["estimated_drain_start_time_seconds"] = drain["since"]
        return shown

    @staticmethod
    def task(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "name": row["name"],
            "framework_id": row["framework_id"],
            "slave_id": row["agent_id"],
            "executor_id": "",
            "state": row["state"],
            "resources": {"cpus": 0.0, "mem": 0.0, "disk": 0.0, "gpus": 0.0, **row["resources"]},
            "role": "*",
            "statuses": [{"state": row["state"], "timestamp": row["since"]}],
        }

    def state(self) -> dict[str, Any]:
        frameworks = []
        for framework in self.frameworks.values():
            mine = [row for row in self.tasks.values() if row["framework_id"] == framework["id"]]
            frameworks.append(
                {
                    **framework,
                    "active": True,
                    "connected": True,
                    "tasks": [self.task(row) for row in mine if not row["done"]],
                    "completed_tasks": [self.task(row) for row in mine if row["done"]],
                    "unreachable_tasks": [],
                }
            )
        slaves = [self.shown(row) for row in self.agents.values()]
        return {
            "version": VERSION,
            "start_time": self.start,
            "elected_time": self.start,
            "id": self.id,
            "pid": f"master@{self.ip}:{self.port}",
            "hostname": self.flags.get("hostname", self.ip),
            "leader": f"master@{self.ip}:{self.port}",
            "leader_info": {"id": self.id, "hostname": self.ip, "port": self.port, "pid": f"master@{self.ip}"},
            "activated_slaves": float(sum(row["active"] for row in slaves)),
            "deactivated_slaves": float(sum(not row["active"] for row in slaves)),
            "unreachable_slaves": 0.0,
            "flags": self.flags,
            "slaves": slaves,
            "recovered_slaves": [],
            "frameworks": frameworks,
            "completed_frameworks": [],
            "orphan_tasks": [],
            "unregistered_frameworks": [],
        }

    def metrics(self) -> dict[str, float]:
        running = [row for row in self.tasks.values() if not row["done"]]
        off = set(self.registry["deactivated"])
        return {
            "master/elected": 0.0 if self.leader else 1.0,
            "master/uptime_secs": time.time() - self.start,
            "registrar/log/recovered": 1.0,
            "registrar/log/ensemble_size": 1.0,
            "master/slaves_active": float(sum(name not in off for name in self.agents)),
            "master/slaves_inactive": float(sum(name in off for name in self.agents)),
            "master/gpus_total": sum(row["info"]["resources"].get("gpus", 0.0) for row in self.agents.values()),
            "master/gpus_used": sum(row["resources"].get("gpus", 0.0) for row in running),
            "master/tasks_running": float(len(running)),
        }

    # The operator API.

    def operator(self, request: Request) -> Any:
        if request.method != "POST":
            raise Answer(405)
        if request.headers.get("Content-Type") != "application/json":
            raise Answer(415, "Expecting 'Content-Type' of application/json")
        told = request.json()
        if not isinstance(told, dict) or "type" not in told:
            raise Answer(400, "Failed to validate master::Call: Expecting 'type' to be present")
        kind = told["type"]
        known = {
            "DRAIN_AGENT": "drain_agents",
            "DEACTIVATE_AGENT": "deactivate_agents",
            "REACTIVATE_AGENT": "reactivate_agents",
            "MARK_AGENT_GONE": "mark_agents_gone",
        }
        if kind == "GET_HEALTH":
            return {"type": kind, "get_health": {"healthy": True}}
        if kind not in known:
            raise Answer(501 if kind.isupper() else 400, f"Failed to validate master::Call: {kind}")
        if known[kind] in self.denied:
            raise Answer(403)
        body = told.get(kind.lower())
        if not isinstance(body, dict) or "value" not in body.get("agent_id", {}):
            raise Answer(400, f"Failed to validate master::Call: Expecting '{kind.lower()}' with an agent_id")
        raise Answer(200, getattr(self, kind.lower())(body["agent_id"]["value"], body) or "")

    def _must_know(self, agent_id: str) -> dict[str, Any]:
        if agent_id not in self.agents:
            raise Answer(400, f"Agent {agent_id} not found")
        return self.agents[agent_id]

    def drain_agent(self, agent_id: str, body: dict[str, Any]) -> None:
        grace = _duration_ns(body.get("max_grace_period", {"seconds": 0}))
        agent = self._must_know(agent_id)
        if self._machine(agent) in self._scheduled():
            raise Answer(400, f"Agent {agent_id} is part of a maintenance schedule under machine")
        config = {"max_grace_period": {"nanoseconds": grace}, "mark_gone": bool(body.get("mark_gone", False))}
        self.registry["drains"][agent_id] = {"state": "DRAINING", "config": config, "since": time.time()}
        self._deactivate(agent_id)
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                self._kill(task, grace / 10**9)
        self.look_at_drains()

    def _deactivate(self, agent_id: str) -> None:
        if agent_id not in self.registry["deactivated"]:
            self.registry["deactivated"].append(agent_id)
        self.save()

    def deactivate_agent(self, agent_id: str, body: dict[str, Any]) -> None:
        self._must_know(agent_id)
        self._deactivate(agent_id)

    def reactivate_agent(self, agent_id: str, body: dict[str, Any]) -> None:
        if agent_id not in self.registry["deactivated"]:
            raise Answer(400, "Agent is not deactivated")
        if self.registry["drains"].get(agent_id, {}).get("state") == "DRAINING":
            raise Answer(400, f"Agent {agent_id} is still in the DRAINING state")
        self.registry["deactivated"].remove(agent_id)
        self.registry["drains"].pop(agent_id, None)
        self.save()

    def mark_agent_gone(self, agent_id: str, body: dict[str, Any]) -> None:
        if agent_id in self.registry["gone"]:
            return
        if agent_id not in self.agents:
            raise Answer(404, "Agent not found")
        self.registry["gone"].append(agent_id)
        del self.agents[agent_id]
        for task in self.tasks.values():
            if task["agent_id"] == agent_id and not task["done"]:
                task.update(state="TASK_GONE_BY_OPERATOR", done=True, since=time.time())
        self.save()

    def look_at_drains(self) -> None:
        """DRAINING becomes DRAINED when the last task is gone."""
        for agent_id, drain in list(self.registry["drains"].items()):
            busy = any(row["agent_id"] == agent_id and not row["done"] for row in self.tasks.values())
            if drain["state"] == "DRAINING" and agent_id in self.agents and not busy:
                drain["state"] = "DRAINED"
                if drain["config"]["mark_gone"]:
                    self.mark_agent_gone(agent_id, {})
                self.save()

    # Maintenance.

    @staticmethod
    def _machine(agent: dict[str, Any]) -> tuple[str, str]:
        return agent["info"]["hostname"], agent["info"]["ip"]

    def _scheduled(self) -> set[tuple[str, str]]:
        windows = self.registry["schedule"].get("windows", [])
        return {(row.get("hostname", ""), row.get("ip", "")) for window in windows for row in window["machine_ids"]}

    def set_schedule(self, told: Any) -> str:
        if "update_maintenance_schedules" in self.denied:
            raise Answer(403)
        seen = set()
        for window in told.get("windows", []):
            if not window.get("machine_ids"):
                raise Answer(400, "List of machines in the maintenance window is empty")
            duration = int(window["unavailability"].get("duration", {}).get("nanoseconds", 0))
            if duration < 0:
                raise Answer(400, "Unavailability 'duration' is negative")
            for row in window["machine_ids"]:
                machine = (row.get("hostname", ""), row.get("ip", ""))
                if machine == ("", ""):
                    raise Answer(400, "Both 'hostname' and 'ip' for a machine are empty")
                if machine in seen:
                    raise Answer(400, f"Machine '{row}' appears more than once in the schedule")
                seen.add(machine)
        missing = [row for row in self.registry["down"] if tuple(row) not in seen]
        if missing:
            raise Answer(400, f"Machine '{missing[0]}' is deactivated and cannot be removed from the schedule")
        self.registry["schedule"] = told
        self.save()
        return ""

    def maintenance_status(self) -> dict[str, Any]:
        down = [tuple(row) for row in self.registry["down"]]
        draining = sorted(self._scheduled() - set(down))
        return {
            "draining_machines": [{"id": {"hostname": name, "ip": ip}, "statuses": []} for name, ip in draining],
            "down_machines": [{"hostname": name, "ip": ip} for name, ip in down],
        }

    def machines(self, way: str, rows: list[dict[str, str]]) -> str:
        for row in rows:
            machine = [row.get("hostname", ""), row.get("ip", "")]
            if way == "down":
                if tuple(machine) not in self._scheduled() or machine in self.registry["down"]:
                    raise Answer(400, f"Machine '{row}' is not in DRAINING mode and cannot be brought down")
                self.registry["down"].append(machine)
                for agent_id in [key for key, agent in self.agents.items() if list(self._machine(agent)) == machine]:
                    del self.agents[agent_id]
            else:
                if machine not in self.registry["down"]:
                    raise Answer(400, f"Machine '{row}' is not in DOWN mode and cannot be brought up")
                self.registry["down"].remove(machine)
                windows = self.registry["schedule"].get("windows", [])
                for window in windows:
                    window["machine_ids"] = [
                        one for one in window["machine_ids"] if [one.get("hostname", ""), one.get("ip", "")] != machine
                    ]
                self.registry["schedule"] = {"windows": [window for window in windows if window["machine_ids"]]}
        self.save()
        return ""

    # Between the stand-ins only.

    def in_register(self, told: dict[str, Any]) -> dict[str, Any]:
        """Registration and heartbeat of an agent, which also brings the states of its tasks."""
        if self.flags.get("authenticate_agents") in ("true", "1"):
            given = told.get("credential")
            if given is None:
                return {"answer": "unauthenticated"}
            if self.credentials.get(given["principal"]) != given["secret"]:
                return {"answer": "refused"}
        agent_id = (
            told["agent_id"] or f"{self.id}-S{len(self.agents) + len(self.registry['gone'])}-{uuid.uuid4().hex[:6]}"
        )
        machine = [told["info"]["hostname"], told["info"]["ip"]]
        if agent_id in self.registry["gone"] or machine in self.registry["down"]:
            return {"answer": "shutdown"}
        old = [key for key, row in self.agents.items() if key != agent_id and list(self._machine(row)) == machine]
        for key in old:
            if self.agents[key]["info"]["port"] == told["info"]["port"]:
                del self.agents[key]
        row = self.agents.setdefault(agent_id, {"id": agent_id, "registered": time.time()})
        row["info"] = told["info"]
        for task in told["tasks"]:
            mine = self.tasks.setdefault(
                task["id"], {**task, "agent_id": agent_id, "done": False, "since": time.time()}
            )
            if mine["state"] != task["state"] and not mine["done"]:
                ended = task["state"] not in ("TASK_STAGING", "TASK_RUNNING", "TASK_KILLING")
                mine.update(state=task["state"], done=ended, since=time.time())
        self.look_at_drains()
        return {"answer": "registered", "agent_id": agent_id}

    def in_framework(self, told: dict[str, Any]) -> dict[str, Any]:
        framework_id = told.get("id") or f"{self.id}-{len(self.frameworks):04d}"
        self.frameworks[framework_id] = {
            "id": framework_id,
            "name": told["name"],
            "capabilities": told.get("capabilities", []),
        }
        return {"id": framework_id}

    def in_offers(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """What is free on each active agent. One with GPUs is offered only to who can use them, by default."""
        capable = "GPU_RESOURCES" in self.frameworks[told["framework_id"]]["capabilities"]
        offers = []
        for row in self.agents.values():
            total = row["info"]["resources"]
            hidden = (
                total.get("gpus", 0) > 0 and not capable and self.flags["filter_gpu_resources"] not in ("false", "0")
            )
            if row["id"] in self.registry["deactivated"] or hidden:
                continue
            used = self.used(row["id"])
            free = {name: total.get(name, 0.0) - used[name] for name in used}
            info = row["info"]
            offers.append(
                {"agent_id": row["id"], "resources": free, **{k: info[k] for k in ("hostname", "attributes")}}
            )
        return offers

    def in_launch(self, told: dict[str, Any]) -> dict[str, Any]:
        task, agent = told["task"], self.agents.get(told["agent_id"])
        used = self.used(told["agent_id"])
        if agent is None or told["agent_id"] in self.registry["deactivated"]:
            raise Answer(400, "the agent is not active")
        if any(
            agent["info"]["resources"].get(name, 0.0) - used[name] < task["resources"].get(name, 0.0) for name in used
        ):
            raise Answer(400, "not enough is left")
        row = {
            **task,
            "framework_id": told["framework_id"],
            "agent_id": told["agent_id"],
            "state": "TASK_STAGING",
            "done": False,
            "since": time.time(),
        }
        self.tasks[task["id"]] = row
        info = agent["info"]
        # Outside of the lock: the agent tells the state of its tasks in the meantime.
        threading.Thread(target=web.call, args=(f"http://{info['ip']}:{info['port']}/stand-in/run", row)).start()
        return {"id": task["id"]}

    def in_kill(self, told: dict[str, Any]) -> dict[str, Any]:
        self._kill(self.tasks[told["task_id"]], float(told.get("grace_s", 3.0)))
        return {}

    def _kill(self, task: dict[str, Any], grace_s: float) -> None:
        agent = self.agents.get(task["agent_id"])
        if agent:
            info, body = agent["info"], {"task_id": task["id"], "grace_s": grace_s}
            url = f"http://{info['ip']}:{info['port']}/stand-in/kill"
            threading.Thread(target=web.call, args=(url, body)).start()


def main() -> None:
    flags = grammar.load("master", sys.argv[1:], dict(os.environ))
    if "work_dir" not in flags:
        grammar.die("--work_dir needed for replicated log based registry")
    if "zk" in flags:
        if "quorum" not in flags:
            grammar.die("Need to specify --quorum for replicated log based registry when using ZooKeeper")
        grammar.die("this stand-in has no ZooKeeper: start it without --zk")
    Path(flags["work_dir"]).mkdir(parents=True, exist_ok=True)
    master = Master(flags)
    web.serve(master.ip, master.port, master.handle)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.pause()


if __name__ == "__main__":
    main()
