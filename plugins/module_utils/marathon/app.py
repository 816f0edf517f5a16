# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Marathon app: checked before it is sent, and compared with what the server has.

The server fills in defaults and adds fields of its own, so two apps are compared by what was asked for, with the
server's defaults where nothing was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app_schema as data

# Cause and remedy.
Wrong = tuple[str, str]

_GPU_BEHAVIOUR = ("restricted", "unrestricted")
# What regular expressions have in Java, Marathon's language, and not here in the same form: Marathon judges those.
_JAVA_ALONE = re.compile(r"\\[pPQEhHRXzGkZ]|\(\?<\w|&&|\(\?[a-zA-Z-]+[:)]|[*+?}]\+|\\x\{")


def problems(app: Mapping[str, Any], features: Iterable[str] = ("gpu_resources",)) -> list[Problem]:
    """What Marathon would refuse, one problem each. Empty if nothing.

    `features` are those of Marathon's --enable_features.
    """
    name = f"app {app.get('id', '(no id)')}"
    said = spoken(app)
    sent = {key: value for key, value in said.items() if key not in data.OF_SERVER}
    found = _shape(sent, data.APP, "")
    found += [(f"{key} is the server's to set", "take it out") for key in data.NEVER_SENT if key in said]
    if not found:
        found = _rules(sent, set(features))
    return [Problem("invalid_app", name, f"{name}: {cause}", remedy=remedy) for cause, remedy in found]


def spoken(app: Mapping[str, Any]) -> dict[str, Any]:
    """The app without fields that are null, wherever Marathon has fields: to it they are fields that are not there, and
    what it exports is full of them. A field that no app has and that says nothing is left out too."""
    found: dict[str, Any] = _spoken(app, data.APP)
    return {key: value for key, value in found.items() if key in _KNOWN or value not in ([], {})}


_KNOWN = {*data.APP["fields"], *data.OF_SERVER}


def _spoken(value: Any, shape: Mapping[str, Any]) -> Any:
    if shape["type"] in ("object", "unreachable") and isinstance(value, Mapping):
        fields = shape.get("fields", {})
        return {
            key: _spoken(one, fields[key]) if key in fields else one for key, one in value.items() if one is not None
        }
    if shape["type"] == "list" and isinstance(value, (list, tuple)):
        return [_spoken(one, shape["of"]) for one in value]
    if shape["type"] == "map" and isinstance(value, Mapping):
        return {key: _spoken(one, shape["of"]) for key, one in value.items()}
    return value


def _shape(value: Any, shape: Mapping[str, Any], where: str) -> list[Wrong]:
    kind = shape["type"]
    if kind == "object":
        return _object(value, shape, where)
    if kind == "list":
        return _list(value, shape, where)
    if kind == "map":
        if not isinstance(value, Mapping):
            return [_must(where, value, "a dictionary")]
        return [wrong for key, one in value.items() for wrong in _shape(one, shape["of"], f"{where}.{key}")]
    must = _scalar(value, shape)
    return [_must(where, value, must)] if must else []


def _must(where: str, value: Any, must: str) -> Wrong:
    return (f"{where or 'the app'} is {value!r}", f"give {must}")


def _object(value: Any, shape: Mapping[str, Any], where: str) -> list[Wrong]:
    if not isinstance(value, Mapping):
        return [_must(where, value, "a dictionary")]
    found = []
    for key, one in value.items():
        place = f"{where}.{key}" if where else str(key)
        if key not in shape["fields"]:
            found.append((f"{place} is not a field of an app", "remove it, or check the spelling"))
        else:
            found += _shape(one, shape["fields"][key], place)
    missing = [key for key in shape["must"] if key not in value]
    return found + [(f"{where + '.' if where else ''}{key} is missing", "give it") for key in missing]


def _list(value: Any, shape: Mapping[str, Any], where: str) -> list[Wrong]:
    if not isinstance(value, (list, tuple)):
        return [_must(where, value, "a list")]
    found = [wrong for number, one in enumerate(value) for wrong in _shape(one, shape["of"], f"{where}[{number}]")]
    if shape.get("unique"):
        doubled = [one for number, one in enumerate(value) if one in value[:number]]
        found += [(f"{where} has {one!r} twice", "keep one") for one in doubled]
    return found


def _scalar(value: Any, shape: Mapping[str, Any]) -> str | None:
    """What a plain value must be and is not."""
    kind = shape["type"]
    if kind == "flag":
        return None if isinstance(value, bool) else "true or false"
    if kind in ("int", "number"):
        wanted = "a whole number" if kind == "int" else "a number"
        low, high = shape["low"], shape["high"]
        bounds = (f" of at least {low:g}" if low is not None else "") + (
            f" and at most {high:g}" if high is not None else ""
        )
        right = isinstance(value, (int, float)) and not isinstance(value, bool)
        # To Marathon 2.0 is a whole number.
        right = right and (kind == "number" or isinstance(value, int) or value.is_integer())
        if not right or (low is not None and value < low) or (high is not None and value > high):
            return wanted + bounds
        return None
    if kind == "limit":
        good = value == "unlimited" or (isinstance(value, (int, float)) and not isinstance(value, bool))
        return None if good else "a number or unlimited"
    if kind == "text_or_secret":
        secret = isinstance(value, Mapping) and set(value) == {"secret"} and isinstance(value["secret"], str)
        return None if isinstance(value, str) or secret else 'text, or {"secret": name}; quote numbers'
    if kind == "unreachable":
        keys = {"inactiveAfterSeconds", "expungeAfterSeconds"}
        spans = (
            isinstance(value, Mapping)
            and set(value) <= keys
            and all(isinstance(one, int) and one >= 0 for one in value.values())
        )
        return None if value == "disabled" or spans else "disabled, or inactiveAfterSeconds and expungeAfterSeconds"
    if not isinstance(value, str):
        return "text; quote numbers"
    if shape.get("filled") and not value:
        return "text that is not empty"
    if "choices" in shape and value not in shape["choices"]:
        return "one of " + ", ".join(shape["choices"])
    if "pattern" in shape and not re.match(shape["pattern"], value):
        return "lowercase letters, digits and hyphens"
    return None


def _rules(app: Mapping[str, Any], features: set[str]) -> list[Wrong]:
    """What the shape alone does not say."""
    found = []
    container = app.get("container") or {}
    engine = container.get("type", "DOCKER") if container else "MESOS"
    if app.get("gpus", 0) > 0:
        if engine == "DOCKER":
            found.append(
                (
                    f"gpus is {app['gpus']} with a container of type DOCKER, which is given no GPU",
                    "set container.type to MESOS",
                )
            )
        if "gpu_resources" not in features:
            found.append((f"gpus is {app['gpus']}, but Marathon runs without it", "enable its feature gpu_resources"))
    last = app["id"].rstrip("/").rpartition("/")[2]
    if last in data.RESERVED:
        found.append((f"id ends with {last}, which Marathon keeps for itself", "use another name"))
    if app.get("uris") and app.get("fetch"):
        found.append(("uris and fetch are both given", "keep fetch"))
    old = "ipAddress" if "ipAddress" in app else "container.docker.network"
    if app.get("networks") and ("ipAddress" in app or (container.get("docker") or {}).get("network")):
        found.append((f"networks and {old} are both given", "keep networks"))
    # An empty list of them is none, as Marathon exports it beside a cmd.
    if "cmd" in app and app.get("args"):
        found.append(("cmd and args are both given", "keep one"))
    if "cmd" not in app and not app.get("args") and not container:
        found.append(("nothing is there to run", "give cmd, args or container"))
    if engine == "MESOS":
        wrong = [
            key
            for key in ("credential", "network", "parameters", "portMappings")
            if (container.get("docker") or {}).get(key)
        ]
        found += [(f"container.docker.{key} is not for containers of type MESOS", "take it out") for key in wrong]
    for number, constraint in enumerate(app.get("constraints", [])):
        found += [(f"constraints[{number}] {cause}", remedy) for cause, remedy in _constraint(constraint)]
    label = app.get("labels", {}).get("GPU_SCHEDULING_BEHAVIOR")
    if label is not None and label not in _GPU_BEHAVIOUR:
        found.append(_must("labels.GPU_SCHEDULING_BEHAVIOR", label, "one of " + ", ".join(_GPU_BEHAVIOUR)))
    checks = [row.get("protocol", "HTTP") for row in app.get("healthChecks", [])]
    of_mesos = [name for name in checks if name == "COMMAND" or name.startswith("MESOS_")]
    if len(of_mesos) > 1:
        found.append((f"healthChecks has {', '.join(of_mesos)}, and Mesos runs one at most", "keep one"))
    if "env" in app and "secrets" not in features and any(isinstance(one, Mapping) for one in app["env"].values()):
        found.append(("env names secrets, but Marathon runs without them", "enable its feature secrets"))
    host_network = [row for row in app.get("networks", []) if row.get("mode", "container") == "host"]
    if host_network and container.get("portMappings"):
        found.append(("container.portMappings is given with a host network", "use portDefinitions"))
    if app.get("networks") and not host_network and app.get("portDefinitions"):
        found.append(("portDefinitions is given without a host network", "use container.portMappings"))
    strategy = app.get("unreachableStrategy")
    if isinstance(strategy, Mapping) and strategy.get("inactiveAfterSeconds", 0) > strategy.get(
        "expungeAfterSeconds", 0
    ):
        found.append(("unreachableStrategy expunges before it is inactive", "make expungeAfterSeconds the larger one"))
    return found


def _constraint(row: list[str]) -> list[Wrong]:
    if not 2 <= len(row) <= 3:
        return [(f"is {row!r}", "give a field, an operator and, if the operator takes one, a value")]
    operator, value = row[1].upper(), row[2] if len(row) == 3 else None
    wants = data.CONSTRAINTS.get(operator)
    if wants is None:
        return [(f"has the operator {row[1]!r}", f"use one of {', '.join(data.CONSTRAINTS)}")]
    if wants == "none" and value is not None:
        return [(f"gives {operator} the value {value!r}", "take it out")]
    if wants == "number" and not (value and re.fullmatch(r"\+?0*[1-9]\d*", value, re.ASCII)):
        return [(f"gives {operator} {value!r}", "give a number of at least 1, as text")]
    if wants == "maybe_number" and value is not None and not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
        return [(f"gives {operator} {value!r}", "give a whole number, as text, or none")]
    if wants in ("text", "regex") and value is None:
        return [(f"gives {operator} no value", "give one")]
    if wants == "text" and value is not None and not re.fullmatch(r"[A-Za-z0-9_/.-]*", value, re.ASCII):
        return [(f"gives IS the value {value!r}", "use letters, digits and _ / . - only")]
    if wants == "regex" and value is not None:
        try:
            re.compile(value)
        except re.error as error:
            if _JAVA_ALONE.search(value):
                return []
            return [(f"gives {operator} {value!r}, which is not a regular expression: {error}", "correct it")]
    return []


def differences(wanted: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field -> (what the server has, what is wanted), for what a PUT of the app would change. Empty: nothing.

    A field that is not asked for counts if the server holds another value than its default. What has no default is the
    server's choice where nobody asks: networks, ports, strategies.
    """
    found = {}
    for key, shape in data.APP["fields"].items():
        want, have = _full(wanted.get(key), shape), _full(server.get(key), shape)
        if key == "id":
            want, have = (f"/{str(text or '').strip('/')}" for text in (want, have))
        elif key == "constraints":
            want, have = ([[row[0], row[1].upper(), *row[2:]] for row in rows] for rows in (want, have))
        elif key == "dependencies":
            want, have = ([f"/{row.strip('/')}" for row in rows] for rows in (want, have))
        elif key == "container" and key not in wanted and have and (have.get("docker") or have.get("volumes")):
            # An empty one comes with a network, and is the server's.
            found[key] = (have, None)
        if (key in wanted or "default" in shape) and not _equal(want, have, shape):
            found[key] = (have, want)
    return found


def _full(value: Any, shape: Mapping[str, Any]) -> Any:
    """The value with the server's defaults in it."""
    if value is None:
        return shape.get("default")
    if shape["type"] == "object" and isinstance(value, Mapping):
        fields = shape["fields"]
        filled = {key: one["default"] for key, one in fields.items() if "default" in one}
        return {**filled, **{key: _full(one, fields[key]) for key, one in value.items() if key in fields}}
    if shape["type"] == "unreachable" and isinstance(value, Mapping):
        return {"inactiveAfterSeconds": 0, "expungeAfterSeconds": 0, **value}
    if shape["type"] == "list" and isinstance(value, (list, tuple)):
        return [_full(one, shape["of"]) for one in value]
    return value


def _equal(want: Any, have: Any, shape: Mapping[str, Any]) -> bool:
    """Whether the server has what is wanted. Where fields are fixed it may have filled in more; labels are equal."""
    if not have and (want is None or (not want and shape["type"] in ("map", "list", "object"))):
        return True
    if shape.get("assigned") and not want:
        return True
    if shape["type"] == "object" and isinstance(want, Mapping) and isinstance(have, Mapping):
        return all(_equal(one, have.get(key), shape["fields"][key]) for key, one in want.items())
    if shape["type"] == "list" and isinstance(want, list) and isinstance(have, list):
        if len(want) == len(have) and shape.get("unique"):
            left = list(have)
            for one in want:
                match = next((other for other in left if _equal(one, other, shape["of"])), None)
                if match is None:
                    return False
                left.remove(match)
            return True
        same = (_equal(one, other, shape["of"]) for one, other in zip(want, have))
        return len(want) == len(have) and all(same)
    return bool(want == have)
