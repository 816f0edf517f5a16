# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made apps: where Marathon and the masters of the site are, who logs in there, and the apps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import marathon_apps
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.common import MASTERS_PORT
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import HTTP
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members

MARATHON_PORT = 8080
# The device query, which a smoke app brings along.
QUERY = templates.ROLES.parent / "plugins" / "module_utils" / "verify" / "cuda_driver.py"
# What is a number in an app, whatever a command line made of it.
NUMBERS = {"gpus": int, "parallel": int, "cpus": float, "mem": float}


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The apps of one kind, as the part ``apps``; there is no document of a host.

    :param params: beside the variables ``kind`` (smoke, notebook or sweep; empty for the parts alone), ``agents``,
        those of the cluster, ``secrets`` by principal and ``masters_group``.
    :param peers: ``host``, ``groups`` and ``hostvars``; the settings of Marathons and masters are read.
    """
    groups, hostvars = peers["groups"], peers["hostvars"]
    hosts = list(groups.get("marathon", []))
    of_site = not params["urls"]
    http_user = ""
    if of_site and hosts:
        named = hostvars[hosts[0]].get("marathon_http_user")
        http_user = "operator" if named is None else named
    masters = groups.get(params["masters_group"], []) if of_site else []
    parts: dict[str, Any] = {
        "of_site": of_site,
        "hosts": hosts,
        "urls": params["urls"] or [row["url"] for row in members(hosts, hostvars, "marathon", MARATHON_PORT)],
        "masters": [row["url"] for row in members(list(masters), hostvars, "master", MASTERS_PORT)],
        "http_user": http_user,
        "principals": [HTTP + http_user] if http_user else [],
        "login": {
            "user": http_user if of_site else params["user"],
            "password": params["secrets"].get(HTTP + http_user, "") if http_user else params["password"],
        },
        "apps": [],
    }
    if not parts["urls"]:
        nowhere = Problem(
            "unknown_marathon",
            "marathon_apps_urls",
            "marathon_apps_urls is empty, and the group marathon too",
            "",
            "give the URLs of the Marathons",
        )
        return Plan(problems=(nowhere,), parts=parts)
    if not params["kind"] or params["state"] == "absent":
        return Plan(parts=parts)
    made = marathon_apps.KINDS[params["kind"]](_app(params, peers["host"]), params["agents"])
    return Plan(problems=tuple(made["problems"]), parts={**parts, "apps": made["apps"]})


def _app(params: Mapping[str, Any], host: str) -> dict[str, Any]:
    """The variables of one kind, without their beginning."""
    prefix = f"{params['kind']}_"
    own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    own.update({name: number(own[name]) for name, number in NUMBERS.items() if name in own})
    if params["kind"] == "smoke":
        own["program"] = QUERY.read_text(encoding="utf-8")
    return {"host": host, **own}
