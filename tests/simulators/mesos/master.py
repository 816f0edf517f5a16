# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for mesos-master: the election, HTTP, and what is told of everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import ensemble
import grammar
import web
from master_members import blank
from master_operator import Operator
from replicated_log import PATH as LOG
from replicated_log import Log
from web import Answer, Request

VERSION = "1.11.0"
ELECTED = "Elected as the leading master!"
LOST = "Lost leadership... committing suicide!"


def full(resources: dict[str, Any]) -> list[dict[str, Any]]:
    """Resources as a list of protobufs, without those of which there are none."""
    found: list[dict[str, Any]] = []
    for name, value in resources.items():
        if isinstance(value, float):
            part: dict[str, Any] = {"type": "SCALAR", "scalar": {"value": value}}
        elif grammar.is_ranges(value):
            spans = [{"begin": low, "end": high} for low, high in grammar.spans(value)]
            part = {"type": "RANGES", "ranges": {"range": spans}}
        else:
            part = {"type": "SET", "set": {"item": value.strip("{}").split(", ")}}
        found += [{"name": name, "role": "*", **part}] if value else []
    return found


class Master(Operator):
    def __init__(self, flags: grammar.Flags) -> None:
        super().__init__(flags)
        self.bind, self.ip, self.hostname = web.addresses(flags)
        self.port = int(flags["port"])
        self.address = f"{self.ip}:{self.port}"
        self.log = Log(flags, self.address)
        # Who leads: host:port, or None while nobody does. Without ZooKeeper it is this one, or what the variable says.
        self.leader: str | None = os.environ.get("STAND_IN_LEADER") or f"{self.hostname}:{self.port}"
        self.leads = "STAND_IN_LEADER" not in os.environ
        # Whether it has what those before it wrote down.
        self.ready = False

    def save(self) -> None:
        if self.flags["registry"] == "replicated_log":
            self.log.store(self.registry)

    # The election.

    def info(self) -> dict[str, Any]:
        """MasterInfo, as it stands in ZooKeeper."""
        whole = int.from_bytes(socket.inet_aton(self.ip), "little")
        return {
            "address": {"hostname": self.hostname, "ip": self.ip, "port": self.port},
            "capabilities": [{"type": name} for name in ("AGENT_UPDATE", "AGENT_DRAINING", "QUOTA_V2")],
            "hostname": self.hostname,
            "id": self.id,
            "ip": whole,
            "pid": f"master@{self.address}",
            "port": self.port,
            "version": VERSION,
        }

    def contend(self, where: ensemble.Url) -> None:
        self.leads, self.leader = False, None
        if self.flags["registry"] == "replicated_log":
            self.log.meet(self.flags, where)
        ensemble.Group(
            where,
            "json.info_",
            grammar.seconds(self.flags["zk_session_timeout"]),
            self._detected,
            lambda why: grammar.end(f"Failed to contend: {why}"),
            json.dumps(self.info()).encode(),
        ).start()

    def _detected(self, members: ensemble.Members | None, own: str | None) -> None:
        first = next(iter(members), None) if members else None
        leads = first is not None and first == own
        if self.leads and not leads:
            # Without the lock: who waits for a quorum holds it.
            grammar.end(LOST)
        info = json.loads(members[first]) if members and first else None
        self.leader = f"{info['address']['hostname']}:{info['address']['port']}" if info else None
        if leads and not self.leads:
            self.leads, self.elected_time = True, time.time()
            print(ELECTED, flush=True)
            threading.Thread(target=self.recover, daemon=True).start()

    def recover(self) -> None:
        if self.flags["registry"] == "replicated_log":
            told = self.log.fetch()
            with web.LOCK:
                self.registry = {**blank(), **(told or {})}
                # So that a quorum has what this one begins with.
                self.save()
        self.ready = True

    # Requests.

    def handle(self, request: Request) -> Any:
        path = request.path
        path = path[len("/master") :] or "/" if path.startswith("/master") else path
        if path == "/health":
            return ""
        if path == "/version":
            return {"version": VERSION}
        if path == "/redirect":
            self._must_have_leader()
            raise Answer(307, "", {"Location": f"//{self.leader}"})
        self._authenticate(request, path)
        if path == "/metrics/snapshot":
            self.must_be_let("get_endpoints")
            return self.metrics()
        if path == "/flags":
            self.must_be_let("view_flags")
            return {"flags": self.flags.shown()}
        if not self.leads:
            self._must_have_leader()
            # The name by which the leader knows the path, whatever it was asked by.
            inner = path if path == "/api/v1" or path.startswith("/stand-in/") else f"/master{path}"
            raise Answer(307, "", {"Location": f"//{self.leader}{inner}"})
        if not self.ready:
            raise Answer(503, "Master has not finished recovery")
        routes = {
            "/state": self.state,
            "/slaves": lambda: self.slaves_told(urllib.parse.unquote(request.query.get("slave_id", ""))),
            "/frameworks": lambda: self.frameworks_told(urllib.parse.unquote(request.query.get("framework_id", ""))),
            "/tasks": lambda: {"tasks": [self.task(row) for row in self.visible()]},
            "/maintenance/status": self.maintenance_status,
        }
        if path in routes:
            if request.method != "GET":
                raise Answer(405)
            return routes[path]()
        if path == "/maintenance/schedule":
            return self.set_schedule(request.json()) if request.method == "POST" else self.schedule_told()
        if path in ("/machine/down", "/machine/up"):
            return self.machines(path.rpartition("/")[2], request.json())
        if path == "/api/v1":
            return self.operator(request)
        if path.startswith("/stand-in/"):
            return getattr(self, "in_" + path[len("/stand-in/") :])(request.json())
        raise Answer(404)

    def _must_have_leader(self) -> None:
        if self.leader is None:
            raise Answer(503, "No leader elected")

    def _authenticate(self, request: Request, path: str) -> None:
        self.principal = None
        # What becomes of machines may be read; the schedule may not, not even read.
        guarded = ("/api/v1", "/maintenance/schedule", "/machine/down", "/machine/up")
        realm = "readwrite" if path in guarded else "readonly"
        if path.startswith("/stand-in/") or self.flags.get(f"authenticate_http_{realm}") not in ("true", "1"):
            return
        login = request.login()
        if not login or not login[1] or self.credentials.get(login[0]) != login[1]:
            raise Answer(401, "", {"WWW-Authenticate": f'Basic realm="mesos-master-{realm}"'})
        self.principal = login[0]

    # What is told.

    def shown(self, row: dict[str, Any]) -> dict[str, Any]:
        info = row["info"]
        scalars = {name: info["resources"].get(name, 0.0) for name in ("cpus", "mem", "disk", "gpus")}
        total = {**scalars, "ports": "[31000-32000]", **info["resources"]}
        shown = {
            "id": row["id"],
            "hostname": info["hostname"],
            "port": info["port"],
            "attributes": info["attributes"],
            "pid": f"slave(1)@{info['ip']}:{info['port']}",
            "registered_time": row["registered"],
            **({"reregistered_time": row["reregistered"]} if "reregistered" in row else {}),
            "resources": total,
            "used_resources": self.used(row["id"]),
            "offered_resources": {"cpus": 0.0, "mem": 0.0, "disk": 0.0, "gpus": 0.0},
            "reserved_resources": {},
            "unreserved_resources": total,
            "active": self.active(row),
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

    def visible(self) -> list[dict[str, Any]]:
        """The tasks that the one who asks may see."""
        return list(self.tasks.values()) if self.may(self.principal, "view_tasks") else []

    def slaves(self, only: str = "") -> dict[str, Any]:
        recovered = [
            {"id": key, **{name: info[name] for name in ("hostname", "port", "attributes")}}
            for key, info in self.recovered().items()
            if only in ("", key)
        ]
        rows = [self.shown(row) for row in self.agents.values() if only in ("", row["id"])]
        return {"slaves": rows, "recovered_slaves": recovered}

    def slaves_told(self, only: str) -> dict[str, Any]:
        """What /slaves has, which tells more of resources than /state."""
        told = self.slaves(only)
        for row in told["slaves"]:
            for name in ("unreserved_resources", "used_resources", "offered_resources"):
                row[f"{name}_full"] = full(row[name])
            row["reserved_resources_full"] = {}
        return told

    def shown_frameworks(self) -> list[dict[str, Any]]:
        found = []
        for framework in self.frameworks.values() if self.may(self.principal, "view_frameworks") else ():
            mine = [row for row in self.visible() if row["framework_id"] == framework["id"]]
            away = [row for row in mine if row["state"] == "TASK_UNREACHABLE"]
            found.append(
                {
                    **framework,
                    "active": framework["connected"],
                    "tasks": [self.task(row) for row in mine if not row["done"] and row not in away],
                    "completed_tasks": [self.task(row) for row in mine if row["done"]],
                    "unreachable_tasks": [self.task(row) for row in away],
                }
            )
        return found

    def frameworks_told(self, only: str) -> dict[str, Any]:
        rows = [row for row in self.shown_frameworks() if only in ("", row["id"])]
        return {"frameworks": rows, "completed_frameworks": []}

    def state(self) -> dict[str, Any]:
        slaves = self.slaves()
        active = sum(row["active"] for row in slaves["slaves"])
        return {
            "version": VERSION,
            "start_time": self.start,
            "elected_time": self.elected_time,
            "id": self.id,
            "pid": f"master@{self.address}",
            "hostname": self.hostname,
            **({"cluster": self.flags["cluster"]} if "cluster" in self.flags else {}),
            "leader": f"master@{self.address}",
            "leader_info": {key: self.info()[key] for key in ("id", "pid", "port", "hostname")},
            "activated_slaves": float(active),
            "deactivated_slaves": float(len(slaves["slaves"]) - active),
            "unreachable_slaves": float(len(self.registry["unreachable"])),
            "flags": self.flags.shown(),
            **slaves,
            "frameworks": self.shown_frameworks(),
            "completed_frameworks": list(self.completed.values()),
            "orphan_tasks": [],
            "unregistered_frameworks": [],
        }

    def metrics(self) -> dict[str, float]:
        running = [row for row in self.tasks.values() if not row["done"]]
        active = sum(self.active(row) for row in self.agents.values())
        connected = sum(row["connected"] for row in self.agents.values())
        return {
            "master/elected": float(self.leads),
            "master/uptime_secs": time.time() - self.start,
            "registrar/log/recovered": float(self.log.voting),
            "registrar/log/ensemble_size": float(len(self.log.members)),
            "master/slaves_active": float(active),
            "master/slaves_inactive": float(len(self.agents) - active),
            "master/slaves_connected": float(connected),
            "master/slaves_disconnected": float(len(self.agents) - connected),
            "master/slaves_unreachable": float(len(self.registry["unreachable"])),
            "master/frameworks_connected": float(sum(row["connected"] for row in self.frameworks.values())),
            "master/gpus_total": sum(row["info"]["resources"].get("gpus", 0.0) for row in self.agents.values()),
            "master/gpus_used": sum(row["resources"].get("gpus", 0.0) for row in running),
            "master/tasks_running": float(len(running)),
        }


def main() -> None:
    flags = grammar.load("master", sys.argv[1:], dict(os.environ))
    grammar.domain(flags)
    if "work_dir" not in flags:
        grammar.die("--work_dir needed for replicated log based registry")
    if "zk" in flags and "quorum" not in flags and flags["registry"] == "replicated_log":
        grammar.die("Need to specify --quorum for replicated log based registry when using ZooKeeper")
    where = ensemble.url(flags["zk"], "Failed to create a master contender") if "zk" in flags else None
    Path(flags["work_dir"]).mkdir(parents=True, exist_ok=True)
    master = Master(flags)
    if where is None:
        master.log.alone()
        master.recover()
    web.serve(master.bind, master.port, master.handle, {LOG: master.log.handle})
    # A master that is told to stop leaves its node in ZooKeeper to the end of the session.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if where is not None:
        master.contend(where)
    while True:
        time.sleep(1)
        with web.LOCK:
            if master.leads and master.ready:
                master.tick()


if __name__ == "__main__":
    main()
