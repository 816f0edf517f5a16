# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators tell the stand-in for mesos-master: drains, agents that are gone, and maintenance."""

from __future__ import annotations

import time
from typing import Any

from master_members import Members
from web import Answer, Request


def _duration_ns(told: Any) -> int:
    """A google.protobuf.Duration. Of {"nanoseconds":N} nothing is read, which is no grace at all."""
    if not isinstance(told, dict):
        raise Answer(400, "Failed to convert JSON into Call protobuf: Not expecting a JSON string or number")
    return int(told.get("seconds", 0)) * 10**9 + int(told.get("nanos", 0))


class Operator(Members):
    # Who asks.
    principal: str | None = None

    # The operator API.

    def must_be_let(self, action: str) -> None:
        if not self.may(self.principal, action):
            raise Answer(403)

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
        self.must_be_let(known[kind])
        body = told.get(kind.lower())
        if not isinstance(body, dict) or "value" not in body.get("agent_id", {}):
            raise Answer(400, f"Failed to validate master::Call: Expecting '{kind.lower()}' with an agent_id")
        raise Answer(200, getattr(self, kind.lower())(body["agent_id"]["value"], body) or "")

    def _must_know(self, agent_id: str) -> None:
        if agent_id not in self.registry["agents"]:
            raise Answer(400, f"Agent {agent_id} not found")

    def drain_agent(self, agent_id: str, body: dict[str, Any]) -> None:
        grace = _duration_ns(body.get("max_grace_period", {"seconds": 0}))
        self._must_know(agent_id)
        if agent_id in self.agents and self.machine(self.agents[agent_id]) in self._scheduled():
            raise Answer(400, f"Agent {agent_id} is part of a maintenance schedule under machine")
        config = {"max_grace_period": {"nanoseconds": grace}, "mark_gone": bool(body.get("mark_gone", False))}
        self.registry["drains"][agent_id] = {"state": "DRAINING", "config": config, "since": time.time()}
        self._deactivate(agent_id)
        self.kill_all(agent_id)
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
        if agent_id not in self.registry["agents"]:
            raise Answer(404, "Agent not found")
        self.registry["gone"].append(agent_id)
        self.remove(agent_id, "TASK_GONE_BY_OPERATOR")

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

    def _scheduled(self) -> set[tuple[str, str]]:
        windows = self.registry["schedule"].get("windows", [])
        return {(row.get("hostname", ""), row.get("ip", "")) for window in windows for row in window["machine_ids"]}

    def set_schedule(self, told: Any) -> str:
        self.must_be_let("update_maintenance_schedules")
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

    def schedule_told(self) -> dict[str, Any]:
        # Who may not see it sees an empty one.
        return dict(self.registry["schedule"]) if self.may(self.principal, "get_maintenance_schedules") else {}

    def maintenance_status(self) -> dict[str, Any]:
        down = [tuple(row) for row in self.registry["down"]]
        draining = sorted(self._scheduled() - set(down))
        if not self.may(self.principal, "get_maintenance_statuses"):
            return {}
        return {
            "draining_machines": [{"id": {"hostname": name, "ip": ip}, "statuses": []} for name, ip in draining],
            "down_machines": [{"hostname": name, "ip": ip} for name, ip in down],
        }

    def machines(self, way: str, rows: list[dict[str, str]]) -> str:
        self.must_be_let("start_maintenances" if way == "down" else "stop_maintenances")
        for row in rows:
            machine = [row.get("hostname", ""), row.get("ip", "")]
            if way == "down":
                if tuple(machine) not in self._scheduled() or machine in self.registry["down"]:
                    raise Answer(400, f"Machine '{row}' is not in DRAINING mode and cannot be brought down")
                self.registry["down"].append(machine)
                for agent_id in [key for key, agent in self.agents.items() if list(self.machine(agent)) == machine]:
                    self.remove(agent_id, "TASK_LOST")
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
