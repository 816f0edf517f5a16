# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made apps: where Marathon and the masters of the site are, who logs in there, and the apps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue, marathon_apps
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

    The part ``look`` has the hosts whose driver an image of the catalogue depends on and nobody knows yet.

    :param params: beside the variables ``kind`` (smoke, notebook or sweep; empty for the parts alone), ``agents``,
        those of the cluster, ``secrets`` by principal, ``masters_group`` and ``image_catalogue``.
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
        "look": [],
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
    app = _app(params, peers["host"])
    hosts, image = _hosts(app, params["agents"]), str(app["image"] or "")
    parts["look"] = image_catalogue.to_look_at(image, params["image_catalogue"], hosts, hostvars)
    app["image"], unmet = image_catalogue.resolve(
        image, params["image_catalogue"], image_catalogue.facts_of(hosts, hostvars)
    )
    app["of_catalogue"] = image_catalogue.find(params["image_catalogue"], image) is not None
    made = marathon_apps.KINDS[params["kind"]](app, params["agents"])
    problems = (*made["problems"], *unmet)
    return Plan(problems=problems, parts={**parts, "apps": [] if problems else made["apps"]})


def _hosts(app: Mapping[str, Any], agents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The hosts to which an app with GPUs may come."""
    models = set(app.get("models") or filter(None, [app.get("model")]))
    return [
        str(row.get("hostname"))
        for row in agents
        if app["gpus"] and row["resources"].get("gpus", 0) > 0
        if not models or row["attributes"].get("gpu_model") in models
    ]


def _app(params: Mapping[str, Any], host: str) -> dict[str, Any]:
    """The variables of one kind, without their beginning."""
    prefix = f"{params['kind']}_"
    own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    own.update({name: number(own[name]) for name, number in NUMBERS.items() if name in own})
    if params["kind"] == "smoke":
        own["program"] = QUERY.read_text(encoding="utf-8")
    return {"host": host, **own}
