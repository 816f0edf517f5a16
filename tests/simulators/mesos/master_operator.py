# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators tell the stand-in for mesos-master: drains, agents that are gone, and maintenance."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from master_members import Members
from web import Answer, Request

MISSING = "Failed to convert JSON into Call protobuf: Missing required fields: "


SCHEDULE = "Failed to convert JSON into Schedule protobuf: "


def _json(row: dict[str, str]) -> str:
    return json.dumps(row, separators=(",", ":"))


def _duration_ns(told: Any) -> int:
    """A google.protobuf.Duration. Of {"nanoseconds":N} nothing is read, which is no grace at all."""
    if not isinstance(told, dict):
        raise Answer(400, "Failed to convert JSON into Call protobuf: Not expecting a JSON string or number")
    whole = int(told.get("seconds", 0)) * 10**9 + int(told.get("nanos", 0))
    # 64 bits with a sign, and nobody looks whether they are enough.
    return (whole + 2**63) % 2**64 - 2**63


# Calls that the real master knows and this one does not.
_NOT_IMITATED = (
    "GET_FLAGS GET_VERSION GET_METRICS GET_LOGGING_LEVEL SET_LOGGING_LEVEL LIST_FILES READ_FILE GET_STATE "
    "GET_AGENTS GET_FRAMEWORKS GET_EXECUTORS GET_OPERATIONS GET_TASKS GET_ROLES GET_WEIGHTS UPDATE_WEIGHTS "
    "GET_MASTER SUBSCRIBE RESERVE_RESOURCES UNRESERVE_RESOURCES CREATE_VOLUMES DESTROY_VOLUMES GROW_VOLUME "
    "SHRINK_VOLUME GET_MAINTENANCE_STATUS GET_MAINTENANCE_SCHEDULE UPDATE_MAINTENANCE_SCHEDULE START_MAINTENANCE "
    "STOP_MAINTENANCE GET_QUOTA UPDATE_QUOTA SET_QUOTA REMOVE_QUOTA TEARDOWN"
)
NOT_IMITATED = frozenset(_NOT_IMITATED.split())


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
            raise Answer(415, "Expecting 'Content-Type' of application/json or application/x-protobuf")
        told = request.json()
        if not isinstance(told, dict) or told.get("type") is None:
            raise Answer(400, f"{MISSING}type")
        kind = told["type"]
        known = {
            "DRAIN_AGENT": "drain_agents",
            "DEACTIVATE_AGENT": "deactivate_agents",
            "REACTIVATE_AGENT": "reactivate_agents",
            "MARK_AGENT_GONE": "mark_agents_gone",
        }
        if kind == "GET_HEALTH":
            return {"type": kind, "get_health": {"healthy": True}}
        if kind in NOT_IMITATED:
            raise Answer(501, f"this stand-in has no {kind}")
        if kind not in known:
            raise Answer(400, f"Failed to convert JSON into Call protobuf: Failed to find enum for '{kind}'")
        self.must_be_let(known[kind])
        body = told.get(kind.lower())
        if not isinstance(body, dict):
            raise Answer(400, f"Failed to validate master::Call: Expecting '{kind.lower()}' to be present")
        named = body.get("agent_id")
        if not isinstance(named, dict) or not isinstance(named.get("value"), str):
            raise Answer(400, f"{MISSING}{kind.lower()}.agent_id.value")
        raise Answer(200, getattr(self, kind.lower())(named["value"], body) or "")

    def _must_know(self, agent_id: str) -> None:
        if agent_id not in self.registry["agents"]:
            raise Answer(400, "Unknown agent")

    def drain_agent(self, agent_id: str, body: dict[str, Any]) -> None:
        told = body.get("max_grace_period")
        grace = None if told is None else _duration_ns(told)
        self._must_know(agent_id)
        if agent_id in self.agents and self.machine(self.agents[agent_id]) in self._scheduled():
            info = self.agents[agent_id]["info"]
            machine = f"Machine {info['hostname']} ({info['ip']})"
            raise Answer(400, f"Agent {agent_id} is part of a maintenance schedule under {machine}")
        config: dict[str, Any] = {"mark_gone": bool(body.get("mark_gone", False))}
        if grace is not None:
            config["max_grace_period"] = {"nanoseconds": grace}
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
        if body.get("agent_id") is not None and not re.fullmatch(r".+-S\d+", agent_id):
            # Only what an id looks like is looked up.
            raise Answer(400, "Unknown agent")
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
        return {self.key(row) for window in windows for row in window["machine_ids"]}

    def set_schedule(self, told: Any) -> str:
        self.must_be_let("update_maintenance_schedules")
        if not isinstance(told, dict):
            raise Answer(400, f"{SCHEDULE}Expecting a JSON object")
        seen = set()
        for number, window in enumerate(told.get("windows", [])):
            duration = self._unavailable(window, f"windows[{number}]")
            if not window.get("machine_ids"):
                raise Answer(400, "List of machines in the maintenance window is empty")
            if duration < 0:
                raise Answer(400, "Unavailability 'duration' is negative")
            for row in window["machine_ids"]:
                machine = self.key(row)
                if machine == ("", ""):
                    raise Answer(400, "Both 'hostname' and 'ip' for a machine are empty")
                if machine in seen:
                    raise Answer(400, f"Machine '{_json(row)}' appears more than once in the schedule")
                seen.add(machine)
        missing = [row for row in self.registry["down"] if self.key(row) not in seen]
        if missing:
            raise Answer(400, f"Machine '{_json(missing[0])}' is deactivated and cannot be removed from the schedule")
        self.registry["schedule"] = told
        self.save()
        return ""

    @staticmethod
    def _unavailable(window: Any, where: str) -> int:
        """The duration of a window, which has to say when it begins, in nanoseconds."""
        lacking = f"{SCHEDULE}Missing required fields: "
        told = window.get("unavailability") if isinstance(window, dict) else None
        if not isinstance(told, dict):
            raise Answer(400, f"{lacking}{where}.unavailability")
        for name in ("start", "duration"):
            if name in told and not (isinstance(told[name], dict) and isinstance(told[name].get("nanoseconds"), int)):
                raise Answer(400, f"{lacking}{where}.unavailability.{name}.nanoseconds")
        if "start" not in told:
            raise Answer(400, f"{lacking}{where}.unavailability.start")
        return int(told.get("duration", {}).get("nanoseconds", 0))

    def schedule_told(self) -> dict[str, Any]:
        # Who may not see it sees an empty one.
        return dict(self.registry["schedule"]) if self.may(self.principal, "get_maintenance_schedules") else {}

    def maintenance_status(self) -> dict[str, Any]:
        down = self.registry["down"]
        keys = {self.key(row) for row in down}
        windows = self.registry["schedule"].get("windows", [])
        draining = [row for window in windows for row in window["machine_ids"] if self.key(row) not in keys]
        if not self.may(self.principal, "get_maintenance_statuses"):
            return {}
        told = {"draining_machines": [{"id": row} for row in draining], "down_machines": list(down)}
        # What is empty is left out.
        return {name: rows for name, rows in told.items() if rows}

    def machines(self, way: str, rows: list[dict[str, str]]) -> str:
        self.must_be_let("start_maintenances" if way == "down" else "stop_maintenances")
        for row in rows:
            machine = self.key(row)
            if machine not in self._scheduled():
                raise Answer(400, f"Machine '{_json(row)}' is not part of a maintenance schedule")
            is_down = machine in [self.key(one) for one in self.registry["down"]]
            if way == "down":
                if is_down:
                    raise Answer(400, f"Machine '{_json(row)}' is not in DRAINING mode and cannot be brought down")
                self.registry["down"].append(row)
                for agent_id in [key for key, agent in self.agents.items() if self.machine(agent) == machine]:
                    self.remove(agent_id, "TASK_LOST")
            else:
                if not is_down:
                    raise Answer(400, f"Machine '{_json(row)}' is not in DOWN mode and cannot be brought up")
                self.registry["down"] = [one for one in self.registry["down"] if self.key(one) != machine]
                windows = self.registry["schedule"].get("windows", [])
                for window in windows:
                    window["machine_ids"] = [one for one in window["machine_ids"] if self.key(one) != machine]
                self.registry["schedule"] = {"windows": [window for window in windows if window["machine_ids"]]}
        self.save()
        return ""
