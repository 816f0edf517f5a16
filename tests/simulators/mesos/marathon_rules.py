# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the stand-in for Marathon reads an app: what it refuses, and what it fills in.

The shapes are in marathon_app.json. As the real one it passes over fields that it does not know. What is filled in
follows AppNormalization.scala and AppConversion.scala of mesosphere/marathon 1.10.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

from web import Answer

SHAPES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "marathon_app.json").read_text(encoding="utf-8")
)["app"]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
RESERVED = ("restart", "tasks", "versions", ".", "..")
# Scala keeps these as sets, so their order is not what was sent.
SETS = ("acceptedResourceRoles", "constraints", "dependencies", "healthChecks")
Details = list[tuple[str, str]]


def refuse(message: str, found: Details) -> None:
    """422 in the shape that Marathon gives, if anything was found."""
    if found:
        rows: dict[str, list[str]] = {}
        for path, error in found:
            rows.setdefault(path, []).append(error)
        details = [{"path": path, "errors": errors} for path, errors in rows.items()]
        raise Answer(422, {"message": message, "details": details})


def shape(value: Any, rule: dict[str, Any], path: str = "") -> Details:
    """What is wrong with a value, as (path, error)."""
    if "anyOf" in rule:
        tried = [shape(value, one, path) for one in rule["anyOf"]]
        return [] if [] in tried else tried[-1]
    kind = TYPES[rule["type"]]
    if not isinstance(value, kind) or (isinstance(value, bool) and rule["type"] != "boolean"):
        return [(path or "/", f"error.expected.js{rule['type']}")]
    found: Details = []
    if rule["type"] == "object":
        found += [(f"{path}/{key}", "error.path.missing") for key in rule.get("required", ()) if value.get(key) is None]
        for key, one in value.items():
            of = rule.get("values") or rule["properties"].get(key)
            if of and one is not None:
                found += shape(one, of, f"{path}/{key}")
        return found
    if rule["type"] == "array":
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
            found.append((path, f"error.minLength {rule.get('minItems', 0)}"))
        return found + [
            row for number, one in enumerate(value) for row in shape(one, rule["items"], f"{path}({number})")
        ]
    if "enum" in rule and value not in rule["enum"]:
        found.append((path, f"error.unknown.enum.literal, must be one of {', '.join(rule['enum'])}"))
    if "pattern" in rule and not re.search(rule["pattern"], value):
        found.append((path, f"error.pattern {rule['pattern']}"))
    if isinstance(value, str):
        if not rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value)):
            found.append((path, "error.minLength or error.maxLength"))
    elif not isinstance(value, bool) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        found.append((path, f"error.min {rule.get('minimum')} or error.max {rule.get('maximum')}"))
    return found


def filled(value: Any, rule: dict[str, Any]) -> Any:
    """The known fields of a value, with the defaults of those that are not there."""
    if rule.get("type") == "object" and "properties" in rule and isinstance(value, dict):
        known = {key: one["default"] for key, one in rule["properties"].items() if "default" in one}
        given = {key: one for key, one in value.items() if key in rule["properties"] and one is not None}
        return {**known, **{key: filled(one, rule["properties"][key]) for key, one in given.items()}}
    if rule.get("type") == "array":
        return [filled(one, rule["items"]) for one in value]
    if "anyOf" in rule:
        fits = [one for one in rule["anyOf"] if not shape(value, one)]
        return filled(value, fits[0])
    return value


def parse(body: Any) -> dict[str, Any]:
    """The app with canonical fields, without defaults of the app itself. Raises Answer."""
    if not isinstance(body, dict):
        refuse("Invalid JSON", [("", "error.expected.jsobject")])
    # null is as good as nothing.
    app = {key: value for key, value in body.items() if key in SHAPES and value is not None}
    refuse("Invalid JSON", [row for key, value in app.items() for row in shape(value, SHAPES[key], f"/{key}")])
    app = {key: filled(copy.deepcopy(value), SHAPES[key]) for key, value in app.items()}
    _deprecated(app)
    return app


def _deprecated(app: dict[str, Any]) -> None:
    uris = app.pop("uris", None)
    if uris and app.get("fetch"):
        refuse("Object is not valid", [("/", "cannot specify both uris and fetch fields")])
    if uris:
        packed = (".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz", ".zip")
        row = SHAPES["fetch"]["items"]
        app["fetch"] = [filled({"uri": uri, "extract": uri.endswith(packed)}, row) for uri in uris]
    ports = app.pop("ports", None)
    if ports is not None and "portDefinitions" not in app:
        app["portDefinitions"] = [filled({"port": port}, SHAPES["portDefinitions"]["items"]) for port in ports]
    docker = (app.get("container") or {}).get("docker") or {}
    kind, address = docker.pop("network", None), app.pop("ipAddress", None)
    if (kind or address) and app.get("networks"):
        refuse("Object is not valid", [("/", "cannot mix deprecated and canonical network APIs")])
    if kind == "NONE":
        refuse("Object is not valid", [("/", "unsupported docker network type NONE")])
    if kind or address:
        mode = {"HOST": "host", "BRIDGE": "container/bridge"}.get(kind, "container")
        row = {"mode": mode, "labels": (address or {}).get("labels", {})}
        if mode == "container" and (address or {}).get("networkName"):
            row["name"] = address["networkName"]
        app["networks"] = [row]
    mappings = docker.pop("portMappings", None)
    if mappings:
        app["container"]["portMappings"] = mappings


def rules(app: dict[str, Any], features: set[str]) -> None:
    """What Marathon refuses beyond the shape. Raises Answer."""
    found: Details = []
    container = app.get("container")
    engine = container["type"] if container else "MESOS"
    docker, volumes = (container or {}).get("docker") or {}, (container or {}).get("volumes") or []
    if app["id"].rstrip("/").rpartition("/")[2] in RESERVED:
        keywords = ", ".join(RESERVED)
        found.append(("/id", f"must not end with any of the following reserved keywords: {keywords}"))
    if "cmd" in app and "args" in app:
        found.append(("/", "AppDefinition must either contain a 'cmd' or 'args', but not both"))
    if not {"cmd", "args"} & set(app) and not container:
        found.append(("/", "AppDefinition must either contain one of 'cmd' or 'args', and/or a 'container'."))
    if app.get("gpus", 0) > 0 and engine == "DOCKER":
        found.append(("/", "GPU resources only work with the Mesos containerizer"))
    if app.get("gpus", 0) > 0 and "gpu_resources" not in features:
        found.append(("/gpus", "Feature gpu_resources is not enabled. Enable with --enable_features gpu_resources)"))
    if any(isinstance(value, dict) for value in app.get("env", {}).values()) and "secrets" not in features:
        found.append(("/env", "Feature secrets is not enabled. Enable with --enable_features secrets)"))
    if any("external" in row for row in volumes) and "external_volumes" not in features:
        found.append(("/container/volumes", "Feature external_volumes is not enabled."))
    if container and engine == "DOCKER" and not docker:
        found.append(("/container/docker", "not defined"))
    if engine == "MESOS":
        found += [
            (f"/container/docker/{key}", "must be empty") for key in ("credential", "parameters") if docker.get(key)
        ]
    found += [row for number, one in enumerate(app.get("constraints", [])) for row in _constraint(number, one)]
    mesos = [row for row in app.get("healthChecks", []) if row["protocol"].startswith(("COMMAND", "MESOS_"))]
    if len(mesos) > 1:
        found.append(("/healthChecks", "AppDefinition can contain at most one Mesos health check"))
    modes = {row["mode"] for row in app.get("networks", [])} or {"host"}
    if modes == {"host"} and (container or {}).get("portMappings"):
        found.append(("/container/portMappings", "must be empty for host networking"))
    if modes != {"host"} and app.get("portDefinitions"):
        found.append(("/portDefinitions", "must be empty for container networking"))
    strategy = app.get("unreachableStrategy")
    if isinstance(strategy, dict) and strategy["inactiveAfterSeconds"] > strategy["expungeAfterSeconds"]:
        found.append(("/unreachableStrategy/inactiveAfterSeconds", "must be less or equal than expungeAfterSeconds"))
    if len(app.get("readinessChecks", [])) > 1:
        found.append(("/readinessChecks", "must have at most 1 readiness check"))
    behaviour = app.get("labels", {}).get("GPU_SCHEDULING_BEHAVIOR")
    if behaviour not in (None, "restricted", "unrestricted"):
        found.append(("/labels", f"{behaviour} is no GPU scheduling behavior"))
    refuse("Object is not valid", found)


def _constraint(number: int, row: list[str]) -> Details:
    path, operator, value = f"/constraints({number})", row[1].upper(), row[2] if len(row) == 3 else None
    if operator not in ("UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS"):
        return [(path, "operator must be one of the following UNIQUE, CLUSTER, GROUP_BY, LIKE, MAX_PER, UNLIKE or IS")]
    if operator == "UNIQUE" and value is not None:
        return [(path, "Value specified but not used")]
    if operator == "MAX_PER" and not re.fullmatch(r"-?\d+", value or "", re.ASCII):
        return [(path, "Value was specified but is not a number")]
    if operator == "GROUP_BY" and value is not None and not re.fullmatch(r"-?\d+", value, re.ASCII):
        return [(path, "Value was specified but is not a number")]
    if operator in ("LIKE", "UNLIKE"):
        try:
            re.compile(value or "(")
        except re.error as why:
            return [(path, f"'{value}' is not a valid regular expression: {why}")]
    if operator == "IS" and not re.fullmatch(r"[a-zA-Z0-9_/.-]*", value if value is not None else "?", re.ASCII):
        return [(path, "IS operator needs a value of letters, digits and _ / . -")]
    return []


def complete(app: dict[str, Any], role: str, used: set[int], before: dict[str, Any] | None) -> dict[str, Any]:
    """The app as Marathon keeps it. `used` ports are not given out; those of `before` are given again."""
    defaults = {key: rule["default"] for key, rule in SHAPES.items() if "default" in rule}
    resident = any("persistent" in row for row in (app.get("container") or {}).get("volumes", []))
    single = app.get("labels", {}).get("MARATHON_SINGLE_INSTANCE_APP") == "true"
    over, least = (0, 0) if single else (0, 0.5) if resident else (1, 1)
    whole: dict[str, Any] = {
        "labels": {},
        "networks": [{"mode": "host"}],
        "role": role,
        "unreachableStrategy": "disabled" if resident else {"inactiveAfterSeconds": 0, "expungeAfterSeconds": 0},
        "upgradeStrategy": {"maximumOverCapacity": over, "minimumHealthCapacity": least},
        **defaults,
        **copy.deepcopy(app),
    }
    host = all(row["mode"] == "host" for row in whole["networks"])
    whole["constraints"] = [[row[0], row[1].upper(), *row[2:]] for row in whole.get("constraints", [])]
    if host:
        whole.setdefault("portDefinitions", [{"port": 0, "protocol": "tcp", "name": "default", "labels": {}}])
        if "container" in whole:
            whole["container"].pop("portMappings", None)
    else:
        whole.pop("portDefinitions", None)
        whole["requirePorts"] = False
        box = whole.setdefault("container", {"type": "MESOS", "volumes": []})
        fallback = {"containerPort": 0, "name": "default", "protocol": "tcp", "servicePort": 0, "labels": {}}
        rows = box.setdefault("portMappings", [fallback])
        for row in rows:
            row.setdefault("labels", {})
            if any(one["mode"] == "container/bridge" for one in whole["networks"]):
                row.setdefault("hostPort", 0)
    if "container" in whole:
        whole["container"].setdefault("volumes", [])
        if whole["container"]["type"] == "DOCKER":
            whole["container"].get("docker", {}).setdefault("parameters", [])
    for row in whole.get("healthChecks", []):
        if row["protocol"] != "COMMAND" and not {"port", "portIndex"} & set(row):
            row["portIndex"] = 0
    for row in whole.get("readinessChecks", []):
        row["httpStatusCodesForReady"] = row.get("httpStatusCodesForReady") or [200]
    _assign(whole, used, before)
    # Empty collections are not written, and sets come in an order of their own.
    for key in SETS:
        if whole.get(key):
            whole[key] = sorted(whole[key], key=lambda row: json.dumps(row, sort_keys=True), reverse=True)
    return {key: value for key, value in whole.items() if value != [] or key == "portDefinitions"}


def service_ports(app: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    mapped = (app.get("container") or {}).get("portMappings") or []
    return [(row, "port") for row in app.get("portDefinitions", [])] + [(row, "servicePort") for row in mapped]


def _assign(app: dict[str, Any], used: set[int], before: dict[str, Any] | None) -> None:
    """Service ports for those that ask for none."""
    asked = {row[key] for row, key in service_ports(app)}
    own = [row[key] for row, key in service_ports(before or {}) if row[key] not in asked]
    free = (port for port in range(10000, 20000) if port not in used and port not in asked)
    for row, key in service_ports(app):
        if row[key] == 0:
            row[key] = own.pop(0) if own else next(free)
