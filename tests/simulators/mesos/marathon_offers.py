# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in: whether an offer fits an app, and what is launched with it. Follows mesos/Constraints.scala and matcher."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

Row = dict[str, Any]
NEEDS = (
    ("cpus", "InsufficientCpus"),
    ("mem", "InsufficientMemory"),
    ("disk", "InsufficientDisk"),
    ("gpus", "InsufficientGpus"),
)


def field(name: str, where: Row) -> str | None:
    """What an offer or a running instance has for the field of a constraint; None if nothing."""
    if name in ("hostname", "@hostname"):
        return str(where["hostname"])
    value = where["attributes"].get(name)
    if value is None:
        return None
    # A scalar is compared by up to three of its decimals.
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def constraint(row: list[str], offer: Row, placed: list[Row]) -> bool:
    """`placed` are the instances of the same app that stay."""
    name, operator, value = row[0], row[1], row[2] if len(row) == 3 else ""
    own = field(name, offer)
    if own is None:
        return operator == "UNLIKE"
    counts = Counter(field(name, one) for one in placed)
    if operator == "UNIQUE":
        return counts[own] == 0
    if operator == "MAX_PER":
        return counts[own] < int(value)
    if operator == "CLUSTER":
        return value in ("", own) and set(counts) <= {own}
    if operator == "GROUP_BY":
        least = int(value or 0)
        return counts[own] == 0 or (len(counts) >= least and counts[own] == min(counts.values()))
    if operator == "IS":
        return own == value
    return bool(re.fullmatch(value, own)) == (operator == "LIKE")


def wanted_ports(app: Row) -> list[int]:
    """A host port for each, 0 for any."""
    modes = {row["mode"] for row in app.get("networks", [])}
    if modes <= {"host"}:
        rows = app.get("portDefinitions", [])
        return [row["port"] if app.get("requirePorts") else 0 for row in rows]
    mapped = (app.get("container") or {}).get("portMappings") or []
    return [row["hostPort"] for row in mapped if row.get("hostPort") is not None]


def refused(app: Row, offer: Row, placed: list[Row], behaviour: str, maintenance: bool) -> str:
    """Why an offer does not fit, in the words of /v2/queue; empty if it does."""
    behaviour = app.get("labels", {}).get("GPU_SCHEDULING_BEHAVIOR", behaviour)
    if maintenance and offer["unavailable"]:
        return "AgentMaintenance"
    if behaviour == "restricted" and not app.get("gpus") and offer["resources"]["gpus"] > 0:
        return "DeclinedScarceResources"
    for name, reason in NEEDS:
        if app.get(name, 0) > offer["resources"].get(name, 0.0) + 1e-9:
            return reason
    ports = wanted_ports(app)
    if len(ports) > len(offer["ports"]) or not {port for port in ports if port} <= set(offer["ports"]):
        return "InsufficientPorts"
    if not all(constraint(row, offer, placed) for row in app.get("constraints", [])):
        return "UnfulfilledConstraint"
    return ""


def take(app: Row, offer: Row) -> list[int]:
    """Takes what the app needs out of the offer, and gives its ports."""
    asked = wanted_ports(app)
    free = [port for port in offer["ports"] if port not in asked]
    given = [port or free.pop(0) for port in asked]
    offer["ports"] = [port for port in offer["ports"] if port not in given]
    for name, _ in NEEDS:
        offer["resources"][name] = round(offer["resources"].get(name, 0.0) - app.get(name, 0), 3)
    return given


def environment(app: Row, task: Row) -> dict[str, str]:
    """What Marathon tells a task, and what the app says itself."""
    names = [row.get("name") for row in app.get("portDefinitions", [])]
    ports = {f"PORT{number}": str(port) for number, port in enumerate(task["ports"])}
    named = {
        f"PORT_{name.upper().replace('-', '_')}": ports[f"PORT{number}"]
        for number, name in enumerate(names)
        if name and f"PORT{number}" in ports
    }
    return {
        "MARATHON_APP_ID": app["id"],
        "MARATHON_APP_VERSION": task["version"],
        **{f"MARATHON_APP_RESOURCE_{key.upper()}": str(float(app.get(key, 0))) for key, _ in NEEDS},
        "MARATHON_APP_LABELS": " ".join(sorted(key.upper() for key in app.get("labels", {}))),
        "HOST": task["host"],
        **ports,
        **named,
        **({"PORT": ports["PORT0"], "PORTS": ",".join(map(str, task["ports"]))} if ports else {}),
        **{key: value for key, value in app.get("env", {}).items() if isinstance(value, str)},
    }


def health_port(check: Row, task: Row) -> int:
    if "port" in check:
        return int(check["port"])
    return int(task["ports"][check.get("portIndex", 0)])


def mesos_check(app: Row, task: Row) -> Row | None:
    """The one check that the agent does, if there is one."""
    for check in app.get("healthChecks", []):
        kind = check["protocol"]
        if kind != "COMMAND" and not kind.startswith("MESOS_"):
            continue
        told = {
            "kind": kind.replace("MESOS_", ""),
            "grace_s": check["gracePeriodSeconds"],
            "interval_s": check["intervalSeconds"],
            "timeout_s": check["timeoutSeconds"],
            "delay_s": check.get("delaySeconds", 15),
            "failures": check["maxConsecutiveFailures"],
        }
        if kind == "COMMAND":
            return {**told, "command": check["command"]["value"]}
        return {**told, "host": task["ip"], "port": health_port(check, task), "path": check.get("path", "/")}
    return None


def info(app: Row, task: Row) -> Row:
    """The task as the master takes it."""
    container = app.get("container")
    return {
        "id": task["id"],
        "name": ".".join(reversed(app["id"].strip("/").split("/"))),
        "cmd": app.get("cmd", ""),
        "args": app.get("args", []),
        "user": app.get("user", ""),
        "env": environment(app, task),
        "resources": {name: float(app.get(name, 0)) for name, _ in NEEDS},
        "ports": task["ports"],
        "container": {key: container[key] for key in ("type", "docker", "volumes") if key in container}
        if container
        else None,
        "check": mesos_check(app, task),
    }
