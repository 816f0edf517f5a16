# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Marathon app (Marathon 1.10): what it asks for, and the constraints that pin it to the nodes chosen for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import GPU
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.place import Request

# What Marathon takes for an app that says nothing.
DEFAULTS = {"cpus": 1, "mem": 128, "gpus": 0, "instances": 1}
HOSTNAME = ("@hostname", "hostname")
# Constraints on the host name that pinned() writes, so it replaces those that it finds.
OWN = ("IS", "LIKE", "MAX_PER")
# What Marathon takes as a value of IS.
VALUE = re.compile(r"[a-zA-Z0-9_/.-]*")


class BrokenApp(ValueError):
    """The app cannot be placed; the message says why."""


def _number(app: dict[str, Any], key: str) -> float:
    value = DEFAULTS[key] if app.get(key) is None else app[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise BrokenApp(f"{key} is {value!r}, which is not a number of 0 or more")
    return value


def request(app: Any) -> tuple[Request, int]:
    """(what an instance of the app needs, how many instances). Raises BrokenApp."""
    if not isinstance(app, dict) or not isinstance(app.get("id"), str):
        raise BrokenApp("it is not an app: a JSON object with an id is expected")
    gpus, instances = _number(app, "gpus"), _number(app, "instances")
    for key, value in (("gpus", gpus), ("instances", instances)):
        if value != int(value):
            raise BrokenApp(f"{key} is {value}; Marathon takes whole numbers")
    if instances < 1:
        raise BrokenApp("it has 0 instances, so there is nothing to place")
    container = app.get("container")
    if gpus and isinstance(container, dict) and container.get("type") == "DOCKER":
        raise BrokenApp(
            "it has gpus and a container of type DOCKER, which Marathon refuses (422); use the type MESOS, which runs"
            " Docker images too"
        )
    return Request(int(gpus), GPU, round(_number(app, "cpus") * GPU), int(-(-_number(app, "mem") // 1))), int(instances)


def _on_hostname(app: dict[str, Any]) -> list[list[Any]]:
    constraints = app.get("constraints") or []
    if not isinstance(constraints, list) or not all(
        isinstance(row, list) and len(row) > 1 and all(isinstance(part, str) for part in row) for row in constraints
    ):
        raise BrokenApp(f"constraints are {constraints!r}, which is not a list of [field, operator, value]")
    return [row for row in constraints if row[0] in HOSTNAME]


def apart(app: dict[str, Any]) -> bool:
    """Whether the app wants each instance on a host of its own. Raises BrokenApp for what cannot be planned."""
    for row in _on_hostname(app):
        if row[1].upper() not in (*OWN, "UNIQUE"):
            raise BrokenApp(f"it has the constraint {row}, which says otherwise where it is to run: take it out")
    return any(row[1].upper() == "UNIQUE" for row in _on_hostname(app))


def pinned(app: dict[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """The app with constraints that let it run on the given hosts only; `hosts` has one entry per instance.

    One host: IS, which compares exactly. Several: LIKE, a regular expression for the whole name, and MAX_PER with the
    most instances that a host was chosen for. Constraints on anything else stay, and so does UNIQUE. Raises BrokenApp
    for a host whose name Marathon does not take.
    """
    for host in hosts:
        if not VALUE.fullmatch(host) or not host:
            raise BrokenApp(f"the host {host!r} has a character that Marathon does not take in a constraint")
    counts, own = Counter(hosts), _on_hostname(app)
    unique = [row for row in own if row[1].upper() == "UNIQUE"]
    if len(counts) == 1:
        added = [["@hostname", "IS", hosts[0]]]
    else:
        added = [["@hostname", "LIKE", "|".join(host.replace(".", r"\.") for host in sorted(counts))]]
        if not unique:
            added.append(["@hostname", "MAX_PER", str(max(counts.values()))])
    kept = [row for row in app.get("constraints") or [] if row not in own]
    return {**app, "constraints": [*kept, *unique, *added]}
