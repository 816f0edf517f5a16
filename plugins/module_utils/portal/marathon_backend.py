# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marathon as the portal's scheduler: a session is an app with one task.

Whoever has Marathon's login can run what they like as root on every agent. So the hub does not have it: the program
that works as root asks Marathon and the masters, and gives the hub the rows of `rows`. The hub's token for a session is
in a script in its user's home, and nowhere in Marathon.

Marathon starts anew what ends, and a session must not begin again: the script can be started once, and what comes after
its first task has ended.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN, Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    list_of,
    object_of,
    text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.leases import mesos as mesos_leases
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import Lease
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Operator
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form, home_script, session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.backend import Found
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import ENDED, RUNS, WAITS, Job, Session
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Wanted

PATH = "/etc/baremetal-gpu/portal/marathon.json"
# Below it are the apps of sessions.
GROUP = "/portal"
APP = re.compile(rf"{GROUP}/[a-z0-9][a-z0-9-]{{0,90}}", re.ASCII)
# Labels of an app: that it is a session, with its server's name behind an equals sign, and its hours.
SESSION, HOURS = "BAREMETAL_GPU_PORTAL_SESSION", "BAREMETAL_GPU_PORTAL_HOURS"
MODEL = "gpu_model"
# Exit statuses of the task: its program ended well, which Marathon would start anew at once; it had run before.
WELL, AGAIN = 75, 76
# Longer than the portal needs to take away what has ended.
BACKOFF_S = 3600
TIMEOUT_S = 10.0
_WORD = text(at_most=300)
SHAPE = object_of(
    {"urls": list_of(_WORD), "masters": list_of(_WORD)},
    dict.fromkeys(("user", "password", "principal", "secret", "ca_file"), _WORD),
)


# --- what is done as root --------------------------------------------------------------------------------------------


class MarathonOrders:
    """See `Orders`."""

    gives_port = True

    def __init__(self, marathon: Marathon, operator: Operator, run: Run = host_run.run) -> None:
        self._marathon, self._operator, self._run = marathon, operator, run

    def look(self) -> Mapping[str, Any]:
        try:
            return rows(self._marathon.apps(), self._marathon.get("/v2/queue"), self._operator.get("/state"))
        except MISSHAPEN as why:
            raise _unreadable("what Marathon and the masters answer", why) from why

    def submit(self, wanted: Wanted, server: str, variables: Mapping[str, str], image: str = "") -> Job:
        name = secrets.token_hex(6)
        made = app(wanted, server, name)
        home_script.keep(wanted, f"script-{name}", script(wanted, variables), self._run)
        self._marathon.create(made, False)
        return str(made["id"])

    def cancel(self, user: str, job: Job) -> None:
        there = self._marathon.app(str(job))
        if there is None:
            return
        if SESSION not in (there.get("labels") or {}) or there.get("user") != user:
            raise Refused(
                f"{one_line(job, 100)} is not a session of {user}", code="not_yours", subject=one_line(job, 100)
            )
        self._marathon.delete(str(job), True)


def orders(path: str = PATH, run: Run = host_run.run) -> MarathonOrders:
    """Raises Refused where the file is not as the role writes it."""
    try:
        with open(path, "rb") as file:
            row = SHAPE(json_object(file.read()), "it")
    except (OSError, Malformed) as why:
        raise Refused(
            f"{path} cannot be read: {why}", "the operators run `gpuops up --tags portal`", code="no_settings"
        ) from why
    marathon = Marathon(
        row["urls"], mesos_operator.http_transport(TIMEOUT_S), row.get("user") or None, row.get("password")
    )
    transport = mesos_operator.http_transport(TIMEOUT_S, row.get("ca_file") or None)
    return MarathonOrders(
        marathon, Operator(row["masters"], transport, row.get("principal") or None, row.get("secret")), run
    )


def app(wanted: Wanted, server: str, name: str) -> dict[str, Any]:
    """The app of a session; nothing in it is secret."""
    known = re.sub(r"[^a-z0-9]+", "-", f"{wanted.user}-{server}".lower()).strip("-")
    environment = (
        f"export HOME={shlex.quote(home_script.home(wanted))} USER={wanted.user} LOGNAME={wanted.user} SHELL=/bin/bash"
    )
    made: dict[str, Any] = {
        "id": f"{GROUP}/{known}-{name}".replace("/-", "/"),
        "user": wanted.user,
        "cmd": f"umask 077; {environment}; cd {shlex.quote(wanted.directory)} && mv script-{name} script || exit "
        f"{AGAIN}; exec /bin/bash -l script >output.log 2>&1",
        "cpus": wanted.cpus,
        "mem": wanted.memory_mib,
        "instances": 1,
        "portDefinitions": [{"port": 0, "protocol": "tcp", "name": "session"}],
        "labels": {SESSION: server, HOURS: str(wanted.minutes // 60)},
        # What is there is one task: it is not replaced where its agent is lost, nor begun anew where it ends.
        "unreachableStrategy": "disabled",
        "backoffSeconds": BACKOFF_S,
        "backoffFactor": 1,
        "maxLaunchDelaySeconds": BACKOFF_S,
    }
    if wanted.gpus:
        made.update(gpus=wanted.gpus, container={"type": "MESOS"})
    else:
        # It may go to a node with GPUs, as with Slurm.
        made["labels"]["GPU_SCHEDULING_BEHAVIOR"] = "unrestricted"
    if wanted.gpu_type:
        made["constraints"] = [[MODEL, "IS", wanted.gpu_type]]
    return made


def script(wanted: Wanted, variables: Mapping[str, str]) -> str:
    """What the task runs. Marathon gives the port."""
    return "\n".join(
        [
            *home_script.head(wanted, variables, "$PORT0"),
            "(",
            wanted.command.rstrip("\n"),
            ")",
            "status=$?",
            f"test $status != 0 || status={WELL}",
            "exit $status",
            "",
        ]
    )


# --- what the hub is given -------------------------------------------------------------------------------------------


def rows(apps: Iterable[Mapping[str, Any]], queue: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Of what Marathon and the masters tell, what the hub needs. Variables of apps are not in it."""
    return {
        "apps": _readable(_app_row, apps),
        "queue": _readable(_queue_row, queue.get("queue", [])),
        "agents": _readable(mesos_operator.agent_of, state.get("slaves", [])),
        "tasks": mesos_operator.tasks_of(state),
    }


def _readable(read: Callable[[Any], Any], given: Iterable[Any]) -> list[Any]:
    """Those that can be read: what an agent says of itself must not hide the others."""

    def one(row: Any) -> Any:
        try:
            return read(row)
        except MISSHAPEN:
            return None

    return [row for row in map(one, given) if row is not None]


def _app_row(row: Mapping[str, Any]) -> dict[str, Any]:
    labels, failure = row.get("labels") or {}, row.get("lastTaskFailure") or {}
    return {
        "id": row["id"],
        "user": row.get("user") or "",
        "gpus": row.get("gpus") or 0,
        "labels": {name: labels[name] for name in (SESSION, HOURS) if name in labels},
        "tasks": [
            {name: task.get(name) for name in ("id", "host", "slaveId", "state", "ports", "startedAt")}
            for task in row.get("tasks") or []
        ],
        "failure": {name: failure.get(name) or "" for name in ("state", "message", "host")} if failure else None,
    }


def _queue_row(row: Mapping[str, Any]) -> dict[str, Any]:
    offers = row.get("processedOffersSummary") or {}
    return {
        "app": row["app"]["id"],
        "since": row.get("since") or "",
        "left_s": (row.get("delay") or {}).get("timeLeftSeconds") or 0,
        "declined": {
            one["reason"]: int(one["declined"])
            for one in offers.get("rejectSummaryLastOffers") or []
            if one.get("declined")
        },
    }


# --- what the hub makes of it ----------------------------------------------------------------------------------------


class MarathonBackend:
    """See `Backend`."""

    gives_port = True
    keeps_ended = True
    has_queue = True
    submit_s = 60

    def __init__(self, ask: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.time) -> None:
        self._ask, self._clock = ask, clock

    def look(self) -> tuple[Found, Mapping[Job, Session]]:
        told = self._ask()
        try:
            return document(told), sessions(told, self._clock())
        except MISSHAPEN as why:
            raise _unreadable("what Marathon and the masters tell", why) from why

    def address(self, one: Session) -> str:
        return one.address or one.node


def _unreadable(what: str, why: BaseException) -> CallFailed:
    return CallFailed(f"{what} cannot be read: {type(why).__name__} {one_line(why, 200)}")


@dataclass(frozen=True)
class _Task:
    """Of the app of a task: whose it is, and since when and until when it runs."""

    app: str
    name: str
    user: str
    started: float | None
    ends: float | None


def document(told: Mapping[str, Any]) -> Found:
    known = {
        str(task["id"]): _Task(app["id"], _name(app), app["user"], _at(task["startedAt"]), _ends(app, task))
        for app in told["apps"]
        for task in app["tasks"]
    }
    hosts = {row["id"]: one_line(row["hostname"], 100) for row in told["agents"]}
    leases = [_lease(one, known.get(one.job)) for one in mesos_leases.leases(told["tasks"], hosts)]
    apps = {app["id"]: app for app in told["apps"]}
    waiting = _readable(lambda row: _waits(row, apps[row["app"]]), [row for row in told["queue"] if row["app"] in apps])
    return {
        "nodes": sorted(_readable(_node, told["agents"]), key=lambda node: str(node["name"])),
        "jobs": [*map(_runs, leases), *waiting],
        "leases": leases,
        "waiting_total": len(waiting),
    }


def _name(app: Mapping[str, Any]) -> str:
    return session.JOB if SESSION in app["labels"] else one_line(app["id"], 200)


def _lease(lease: Lease, task: _Task | None) -> Lease:
    """A task of another framework than Marathon, or that Marathon does not know yet, stays as the master tells it."""
    if task is None:
        return lease
    return lease._replace(
        job=task.app, name=task.name, user=task.user or None, started=task.started, expected_end=task.ends
    )


def _node(agent: Mapping[str, Any]) -> dict[str, Any]:
    there, used = agent["resources"], agent["used_resources"]
    gpus = int(there.get("gpus") or 0)
    model = str(agent["attributes"].get(MODEL, ""))
    state = str(agent["state"])
    return {
        "name": one_line(agent["hostname"], 100),
        "models": {model if form.MODEL.fullmatch(model) else "": gpus} if gpus else {},
        "gpus": gpus,
        "gpus_used": int(used.get("gpus") or 0),
        "cpus": int(there.get("cpus") or 0),
        "free_cpus": int((there.get("cpus") or 0) - (used.get("cpus") or 0)),
        "memory_mib": int(there.get("mem") or 0),
        "free_memory_mib": int((there.get("mem") or 0) - (used.get("mem") or 0)),
        "partitions": [""],
        "takes_jobs": state == "active",
        "problem": "" if state == "active" else f"its agent is {one_line(state, 40)}",
    }


def _runs(lease: Lease) -> dict[str, Any]:
    return {
        **_row(lease.job, lease.name, lease.user or "", len(lease.gpus)),
        "started": lease.started,
        "ends": lease.expected_end,
        "nodes": [{"name": lease.host, "minors": list(lease.gpus)}],
    }


def _waits(row: Mapping[str, Any], app: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_row(app["id"], _name(app), app["user"], int(app["gpus"])),
        "submitted": _at(row["since"]),
        "waits": True,
        "waits_for": why(row),
    }


def _row(job: str, name: str, user: str, gpus: int) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "submitted": None,
        "started": None,
        "ends": None,
        "waits": False,
        "waits_for": "",
        "nodes": [],
    }
    # Marathon has no line: whoever fits an offer gets it.
    more = {"in_line": False, "partition": "", "holder": False}
    return {"id": one_line(job, 200), "name": name, "user": one_line(user, 100), "gpus": gpus, **empty, **more}


# Marathon's word for why an offer was of no use -> ours.
DECLINED = {
    "InsufficientGpus": "too few free GPUs",
    "InsufficientCpus": "too few free cores",
    "InsufficientMemory": "too little free memory",
    "InsufficientDisk": "too little free disk",
    "InsufficientPorts": "no free port",
    "UnfulfilledConstraint": "GPUs of another model",
    "DeclinedScarceResources": "GPUs, and is kept for those who need them",
    "AgentMaintenance": "a maintenance soon",
}


def why(row: Mapping[str, Any] | None) -> str:
    """Why an app waits, from its row of the queue."""
    if row is None:
        return "Marathon is about to start it"
    if row["left_s"]:
        return f"Marathon starts it in {int(row['left_s'])} s at the earliest, because it failed"
    declined = [f"{count} with {DECLINED.get(name, one_line(name, 40))}" for name, count in row["declined"].items()]
    return (
        f"no node has room for it; of those with anything free there are {', '.join(declined)}"
        if declined
        else ("no node has anything free, or none has offered it yet")
    )


def sessions(told: Mapping[str, Any], now: float) -> dict[Job, Session]:
    """The sessions of everybody, by the id of their app."""
    queue = {row["app"]: row for row in told["queue"]}
    addresses = {row["id"]: one_line(row["ip"], 100) for row in told["agents"]}
    apps = [app for app in told["apps"] if SESSION in app["labels"]]
    found = _readable(lambda app: _session(app, queue.get(app["id"]), addresses, now), apps)
    return {one.job: one for one in found}


def _session(
    app: Mapping[str, Any], row: Mapping[str, Any] | None, addresses: Mapping[str, str], now: float
) -> Session:
    job, user, server = str(app["id"]), str(app["user"]), str(app["labels"][SESSION])
    if app["failure"]:
        return Session(job, user, ENDED, ended=ended(job, app["failure"]), server=server)
    task = next(iter(app["tasks"]), None)
    if task is None:
        return Session(job, user, WAITS, why(row), server=server)
    node = one_line(task["host"], 100)
    if task["state"] in ("TASK_STAGING", "TASK_STARTING"):
        return Session(job, user, WAITS, f"its task is being started on {node}", server=server)
    ends = _ends(app, task)
    if ends is not None and ends <= now:
        code, cause, remedy = session.ENDS["TIMEOUT"]
        return Session(job, user, ENDED, ended=Problem(code, job, cause, "", remedy), server=server)
    port = next(iter(task["ports"] or []), 0)
    # An agent may say that it has the name of another one.
    address = addresses.get(task["slaveId"], "")
    return Session(job, user, RUNS, node=node, ends=ends, server=server, port=int(port), address=address)


def _at(told: Any) -> float | None:
    """A time as Marathon writes it, in Unix seconds."""
    try:
        return datetime.fromisoformat(str(told).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _ends(app: Mapping[str, Any], task: Mapping[str, Any]) -> float | None:
    started, hours = _at(task["startedAt"]), str(app["labels"].get(HOURS, ""))
    return started + int(hours) * 3600 if started is not None and re.fullmatch("[0-9]{1,6}", hours) else None


_LOST = ("TASK_LOST", "TASK_GONE", "TASK_GONE_BY_OPERATOR", "TASK_DROPPED", "TASK_UNREACHABLE", "TASK_UNKNOWN")


def ended(job: str, failure: Mapping[str, Any]) -> Problem:
    """Why the task of a session ended, as Marathon tells it of its last failure."""
    message, state = one_line(failure["message"], 400), one_line(failure["state"], 60)
    told = re.search(r"exited with status ([0-9]{1,3})\b", message)
    status = int(told[1]) if told else None
    kind = (
        "OUT_OF_MEMORY"
        if re.search(r"\bmemory limit exceeded\b", message, re.IGNORECASE)
        else "COMPLETED"
        if status == WELL
        else ""
    )
    if kind:
        code, cause, remedy = session.ENDS[kind]
        return Problem(code, job, cause, message, remedy)
    if status == AGAIN:
        return session.TAKEN
    if state in _LOST:
        code, cause, remedy = session.ENDS["NODE_FAIL"]
        return Problem(code, job, cause, f"{state} {message}", remedy)
    if status == 127:
        cause = "its environment has no jupyterhub-singleuser"
    else:
        cause = f"its program ended with status {status}" if status else f"its task failed: {message or state}"
    return Problem(
        "failed", job, cause, f"{state} {message}", "read the end of its output below, fix the cause and start it again"
    )
