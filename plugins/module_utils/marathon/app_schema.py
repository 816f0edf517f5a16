# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON of a Marathon app.

Only data, from mesosphere/marathon v1.10.26: the RAML types in docs/docs/rest-api/public/api/v2/types. A shape is a
dict: `type`, and by type `fields` and `must` (object), `of` (list, map), `low`, `high`, `choices`, `pattern`, `filled`.
What the server fills in where an app says nothing is `default`, None for what it leaves out then. The server keeps a
list that is `unique` in an order of its own, and gives a port that is `assigned` in place of 0.
"""

from __future__ import annotations

from typing import Any

Shape = dict[str, Any]


def _text(**more: Any) -> Shape:
    return {"type": "text", **more}


def _int(low: int | None = 0, high: int | None = None, **more: Any) -> Shape:
    return {"type": "int", "low": low, "high": high, **more}


def _number(low: float | None = 0, high: float | None = None, **more: Any) -> Shape:
    return {"type": "number", "low": low, "high": high, **more}


def _flag(**more: Any) -> Shape:
    return {"type": "flag", **more}


def _object(must: tuple[str, ...] = (), **fields: Shape) -> Shape:
    return {"type": "object", "must": must, "fields": fields}


def _list(of: Shape, **more: Any) -> Shape:
    return {"type": "list", "of": of, **more}


def _map(of: Shape) -> Shape:
    return {"type": "map", "of": of}


PATH = r"^(\/?((\.\.)|(([a-z0-9]|[a-z0-9][a-z0-9\-]*[a-z0-9])\.)*([a-z0-9]|[a-z0-9][a-z0-9\-]*[a-z0-9]))?($|\/))+$"
_NAME = _text(filled=True, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_NETWORK = _text(filled=True, pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$")
_PORT = _int(0, 65535)
# 0 leaves the choice to the server.
_ASSIGNED_PORT = _int(0, 65535, assigned=True)
_LABELS = _map(_text())
_PROTOCOL = _text(choices=("tcp", "udp", "udp,tcp"), default="tcp")
_PORT_MAPPING = _object(
    must=("containerPort",),
    containerPort=_PORT,
    hostPort=_PORT,
    labels=_LABELS,
    name=_NAME,
    protocol=_PROTOCOL,
    servicePort=_ASSIGNED_PORT,
    networkNames=_list(_NAME),
)
_MODE = _text(choices=("RO", "RW"))
_FILLED = _text(filled=True)

CONTAINER = _object(
    type=_text(choices=("MESOS", "DOCKER"), default="DOCKER"),
    docker=_object(
        must=("image",),
        credential=_object(("principal",), principal=_text(), secret=_text()),
        pullConfig=_object(("secret",), secret=_FILLED),
        forcePullImage=_flag(default=False),
        image=_FILLED,
        network=_text(choices=("BRIDGE", "HOST", "NONE", "USER")),
        parameters=_list(_object(("key", "value"), key=_FILLED, value=_text())),
        portMappings=_list(_PORT_MAPPING),
        privileged=_flag(default=False),
    ),
    linuxInfo=_object(
        seccomp=_object(("unconfined",), profileName=_text(), unconfined=_flag()),
        ipcInfo=_object(("mode",), mode=_text(choices=("PRIVATE", "SHARE_PARENT")), shmSize=_number()),
    ),
    volumes=_list(
        _object(
            must=("containerPath",),
            containerPath=_FILLED,
            hostPath=_FILLED,
            mode=_MODE,
            secret=_FILLED,
            persistent=_object(
                must=("size",),
                type=_text(choices=("root", "path", "mount")),
                size=_int(),
                maxSize=_int(),
                profileName=_text(),
                constraints=_list(_list(_text())),
            ),
            external=_object(
                size=_int(), name=_text(), provider=_text(), options=_map(_text()), shared=_flag(default=False)
            ),
        )
    ),
    portMappings=_list(_PORT_MAPPING),
)

APP = _object(
    must=("id",),
    id=_text(filled=True, pattern=PATH),
    acceptedResourceRoles=_list(_text(), unique=True),
    args=_list(_text(), default=None),
    backoffFactor=_number(1, default=1.15),
    backoffSeconds=_int(default=1),
    cmd=_text(filled=True, default=None),
    constraints=_list(_list(_text()), unique=True, default=[]),
    container=CONTAINER,
    cpus=_number(0.001, default=1),
    dependencies=_list(_text(filled=True, pattern=PATH), unique=True, default=[]),
    disk=_number(default=0),
    env={"type": "map", "of": {"type": "text_or_secret"}, "default": {}},
    executor=_text(default=""),
    executorResources=_object(
        cpus=_number(0.1, default=0.1), mem=_number(32, default=32), disk=_number(10, default=10)
    ),
    fetch=_list(
        _object(
            ("uri",),
            uri=_FILLED,
            extract=_flag(default=True),
            executable=_flag(default=False),
            cache=_flag(default=False),
            destPath=_FILLED,
        ),
        default=[],
    ),
    healthChecks=_list(
        _object(
            command=_object(("value",), value=_text()),
            gracePeriodSeconds=_int(default=300),
            ignoreHttp1xx=_flag(),
            intervalSeconds=_int(default=60),
            maxConsecutiveFailures=_int(default=3),
            path=_text(),
            portIndex=_PORT,
            port=_PORT,
            protocol=_text(
                choices=("HTTP", "HTTPS", "TCP", "COMMAND", "MESOS_TCP", "MESOS_HTTP", "MESOS_HTTPS"), default="HTTP"
            ),
            ipProtocol=_text(choices=("IPv4", "IPv6"), default="IPv4"),
            timeoutSeconds=_int(None, default=20),
            delaySeconds=_int(default=15),
        ),
        unique=True,
        default=[],
    ),
    check=_object(
        http=_object(
            portIndex=_PORT, port=_PORT, path=_FILLED, scheme=_text(choices=("HTTP", "HTTPS"), default="HTTP")
        ),
        tcp=_object(portIndex=_PORT, port=_PORT),
        exec=_object(("command",), command=_object(shell=_FILLED, argv=_list(_text()))),
        intervalSeconds=_int(default=60),
        timeoutSeconds=_int(default=20),
        delaySeconds=_int(default=15),
    ),
    instances=_int(default=1),
    labels={**_LABELS, "default": {}},
    maxLaunchDelaySeconds=_int(default=300),
    mem=_number(default=128),
    gpus=_int(default=0),
    ipAddress=_object(
        discovery=_object(
            ports=_list(_object(("name",), number=_PORT, name=_NAME, protocol=_PROTOCOL, labels=_LABELS))
        ),
        groups=_list(_text(), unique=True),
        labels=_LABELS,
        networkName=_FILLED,
    ),
    networks=_list(
        _object(
            name=_NETWORK,
            mode=_text(choices=("container", "container/bridge", "host"), default="container"),
            labels=_LABELS,
        )
    ),
    ports=_list(_PORT),
    portDefinitions=_list(_object(port=_ASSIGNED_PORT, labels=_LABELS, name=_NAME, protocol=_PROTOCOL)),
    readinessChecks=_list(
        _object(
            name=_text(filled=True, default="readinessCheck"),
            protocol=_text(choices=("HTTP", "HTTPS"), default="HTTP"),
            path=_text(filled=True, default="/"),
            portName={**_NAME, "default": "http-api"},
            intervalSeconds=_int(default=30),
            timeoutSeconds=_int(1, default=10),
            httpStatusCodesForReady=_list(_int(100, 999), unique=True),
            preserveLastResponse=_flag(default=False),
        ),
        default=[],
    ),
    residency=_object(
        relaunchEscalationTimeoutSeconds=_int(default=3600),
        taskLostBehavior=_text(choices=("WAIT_FOREVER", "RELAUNCH_AFTER_TIMEOUT"), default="WAIT_FOREVER"),
    ),
    resourceLimits={**_object(cpus={"type": "limit"}, mem={"type": "limit"}), "default": None},
    requirePorts=_flag(default=False),
    secrets={**_map(_object(("source",), source=_FILLED)), "default": {}},
    taskKillGracePeriodSeconds=_int(default=None),
    upgradeStrategy=_object(
        ("maximumOverCapacity", "minimumHealthCapacity"),
        maximumOverCapacity=_number(0, 1),
        minimumHealthCapacity=_number(0, 1),
    ),
    uris=_list(_FILLED),
    user=_text(default=None),
    killSelection=_text(choices=("YOUNGEST_FIRST", "OLDEST_FIRST"), default="YOUNGEST_FIRST"),
    # Without a default: it depends on the app's volumes.
    unreachableStrategy={"type": "unreachable"},
    tty=_flag(default=None),
    role=_FILLED,
)
# What the server adds to an app that it gives back.
OF_SERVER = (
    "version",
    "versionInfo",
    "tasks",
    "tasksStaged",
    "tasksRunning",
    "tasksHealthy",
    "tasksUnhealthy",
    "deployments",
    "lastTaskFailure",
    "taskStats",
    "readinessCheckResults",
)
# Of those Marathon refuses this one; the others it passes over, and they are not sent.
NEVER_SENT = ("version",)
# Names that the last part of an app's id cannot have.
RESERVED = ("restart", "tasks", "versions", ".", "..")
# Operator of a constraint -> whether it wants a value: none, maybe, number, maybe_number, text, regex.
CONSTRAINTS = {
    "UNIQUE": "none",
    "CLUSTER": "maybe",
    "GROUP_BY": "maybe_number",
    "LIKE": "regex",
    "UNLIKE": "regex",
    "MAX_PER": "number",
    "IS": "text",
}
