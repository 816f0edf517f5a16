# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mesos' operator API: who leads, what the agents do, and how an agent is drained, deactivated, reactivated or gone.

The way to the masters is injected, so that everything here can be asked without a network. A master that does not lead
answers 307 with a Location that has no protocol, and nobody follows that with a POST: the leader is found first.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed

GRACE_MOST_S = 365 * 86400
# States of a task that holds its resources.
LIVE = ("TASK_STAGING", "TASK_STARTING", "TASK_RUNNING", "TASK_KILLING", "TASK_UNREACHABLE")


@dataclass(frozen=True)
class Reply:
    """Status, headers with names in small letters, and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# (method, url, headers, body) -> the answer, of any status. Raises OSError where there is none.
Transport = Callable[[str, str, Mapping[str, str], "bytes | None"], Reply]


class Failed(CallFailed):
    """A call to a master that did not do what it was for."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def http_transport(timeout_s: float = 10.0, ca_file: str | None = None) -> Transport:
    """Over HTTP or HTTPS. `ca_file` is the authority that signed the masters' certificates, if not the system's.

    Raises Failed for a file that cannot be read or has no certificate in it.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Failed(f"ca_file {ca_file}: {error}", "give a file with certificates in PEM") from error
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))

    def send(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        request = urllib.request.Request(url, body, dict(headers), method=method)
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return _reply(answer.status, answer.headers.items(), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error.headers.items(), error.read())
        except http.client.HTTPException as error:
            raise OSError(f"no answer in HTTP: {error!r}") from error

    return send


def tls_first(transport: Transport) -> Transport:
    """Asks http:// URLs by TLS, and as they stand where that fails. For a cluster on its way to TLS or back."""

    def send(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        if not url.startswith("http://"):
            return transport(method, url, headers, body)
        try:
            return transport(method, "https://" + url[len("http://") :], headers, body)
        except urllib.error.URLError as error:
            # A certificate that is not trusted is no reason to do without.
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise
            return transport(method, url, headers, body)

    return send


def _reply(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Reply:
    return Reply(status, {name.lower(): value for name, value in headers}, body)


class Operator:
    """The leading master of `masters` (http://host:port, …), asked as `principal`."""

    def __init__(
        self, masters: Iterable[str], transport: Transport, principal: str | None = None, secret: str | None = None
    ) -> None:
        self.masters = [url.rstrip("/") for url in masters]
        wrong = [url for url in self.masters if not url.startswith(("http://", "https://"))]
        if not self.masters or wrong:
            raise Failed(f"masters {wrong or self.masters} are not URLs", "give each as in http://master1:5050")
        self._send = transport
        self._headers = {"Accept": "application/json"}
        if principal is not None:
            login = base64.b64encode(f"{principal}:{secret or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"
        self._leader: str | None = None

    def leader(self) -> str:
        """URL of the master that leads. Asked once, and again when a call meets another one."""
        if self._leader is None:
            self._leader = self._find()
        return self._leader

    def _find(self) -> str:
        tried = []
        for url in self.masters:
            try:
                answer = self._send("GET", f"{url}/redirect", self._headers, None)
            except OSError as error:
                tried.append(f"{url}: {getattr(error, 'reason', error)}")
                continue
            location = answer.headers.get("location", "")
            if answer.status == 307 and location:
                # Without a protocol it is the one that was asked with.
                told = urllib.parse.urlsplit(urllib.parse.urljoin(url, location))
                return f"{told.scheme}://{told.netloc}"
            tried.append(f"{url}: knows no leader (status {answer.status})")
        raise Failed(f"no master leads: {'; '.join(tried)}", "check that a quorum of masters and ZooKeeper run")

    def _ask(self, method: str, path: str, document: Any = None) -> Reply:
        """The leader's answer. A new leader is looked for once; the calls can be made twice without harm."""
        body = None if document is None else json.dumps(document).encode()
        headers = {**self._headers, **({"Content-Type": "application/json"} if body is not None else {})}
        for last in (False, True):
            url = self.leader()
            try:
                answer = self._send(method, url + path, headers, body)
            except OSError as error:
                if last:
                    why = getattr(error, "reason", error)
                    raise Failed(f"{url}{path} does not answer: {why}", "look at the master's log") from error
            else:
                if answer.status not in (307, 503) or last:
                    return answer
            self._leader = None
        raise AssertionError("the second turn returns or raises")

    def _checked(self, what: str, answer: Reply) -> Any:
        text = answer.body.decode("utf-8", "replace").strip()
        if answer.status == 401:
            raise Failed(f"{what}: the master wants a login, and this one is none", "check principal and secret")
        if answer.status == 403:
            raise Failed(f"{what}: the master's ACLs do not allow it", "give the principal that right in --acls")
        if not 200 <= answer.status < 300:
            raise Failed(f"{what}: {self._leader} answers {answer.status}: {text or 'nothing'}")
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            raise Failed(f"{what}: {self._leader} answers with what is not JSON: {text[:200]}") from error

    def get(self, path: str) -> Any:
        """JSON of a read-only endpoint."""
        return self._checked(f"GET {path}", self._ask("GET", path))

    def call(self, kind: str, body: Mapping[str, Any]) -> Any:
        """A call of /api/v1, such as DEACTIVATE_AGENT."""
        return self._checked(kind, self._ask("POST", "/api/v1", {"type": kind, kind.lower(): dict(body)}))

    # What there is.

    def agents(self) -> list[dict[str, Any]]:
        """The registered agents; see `agent_of`."""
        return sorted((agent_of(row) for row in self.get("/slaves")["slaves"]), key=lambda row: row["hostname"])

    def tasks(self, agent_id: str | None = None) -> list[dict[str, Any]]:
        """Tasks that hold resources, of one agent or all: id, name, framework, agent_id, state, resources."""
        return tasks_of(self.get("/state"), agent_id)

    # Changes.

    def drain(self, agent_id: str, grace_s: int, mark_gone: bool = False) -> None:
        """Kills the agent's tasks within the grace and takes no new ones."""
        if not 0 <= grace_s <= GRACE_MOST_S:
            # More than 64 bits of nanoseconds is taken without a word, and means something else.
            raise Failed(f"grace of {grace_s} s", f"give 0 to {GRACE_MOST_S}, which is a year")
        # An object with seconds: of nanoseconds the master reads nothing and kills at once, text it refuses.
        body = {"agent_id": {"value": agent_id}, "max_grace_period": {"seconds": grace_s}, "mark_gone": mark_gone}
        self.call("DRAIN_AGENT", body)

    def deactivate(self, agent_id: str) -> None:
        """Takes no new tasks; those that run go on."""
        self.call("DEACTIVATE_AGENT", {"agent_id": {"value": agent_id}})

    def reactivate(self, agent_id: str) -> None:
        """Takes tasks again. Refused while the agent drains."""
        self.call("REACTIVATE_AGENT", {"agent_id": {"value": agent_id}})

    def gone(self, agent_id: str) -> None:
        """The agent is told to exit and can never come back under this id."""
        self.call("MARK_AGENT_GONE", {"agent_id": {"value": agent_id}})

    def schedule(self) -> dict[str, Any]:
        """The maintenance schedule: {windows: [{machine_ids, unavailability}]}; {} if nothing is in it."""
        told = self.get("/maintenance/schedule") or {}
        return told if told.get("windows") else {}

    def set_schedule(self, schedule: Mapping[str, Any]) -> None:
        """Puts the whole schedule in place of the one that is there."""
        what = "POST /maintenance/schedule"
        self._checked(what, self._ask("POST", "/maintenance/schedule", dict(schedule)))

    def machines_down(self) -> list[tuple[str, str]]:
        """(hostname, ip) of machines that are down for maintenance."""
        rows = self.get("/maintenance/status").get("down_machines", [])
        return [(row.get("hostname", ""), row.get("ip", "")) for row in rows]

    def set_machines(self, way: str, machines: Iterable[tuple[str, str]]) -> None:
        """`way` is down or up. Down tells the agents to exit; up also takes the machines out of the schedule."""
        body = [{"hostname": name, "ip": ip} for name, ip in machines]
        self._checked(f"POST /machine/{way}", self._ask("POST", f"/machine/{way}", body))


def commanded(row: Mapping[str, Any]) -> str:
    """What operators have made of an agent, whether it is connected or not: active, deactivated, draining, drained."""
    told = (row.get("drain_info") or {}).get("state")
    if told in ("DRAINING", "DRAINED"):
        return str(told).lower()
    return "deactivated" if row.get("deactivated", not row.get("active", True)) else "active"


def agent_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of an agent in /slaves or /state: id, hostname, ip, port, state, grace_s, mark_gone, drain_since,
    resources, used_resources, attributes. `state` is that of `commanded`, and disconnected instead of active for one
    that the master knows and does not reach; `drain_since` is in Unix seconds.
    """
    address, state = str(row.get("pid", "")).partition("@")[2], commanded(row)
    drain = row.get("drain_info") or {}
    config = drain.get("config", {})
    grace = config.get("max_grace_period")
    return {
        "id": row["id"],
        "hostname": row["hostname"],
        "ip": address.rpartition(":")[0],
        "port": row.get("port"),
        "state": "disconnected" if state == "active" and not row.get("active", True) else state,
        "grace_s": int(grace.get("nanoseconds", 0)) // 10**9 if grace else None,
        "mark_gone": bool(config.get("mark_gone")) if drain else None,
        "drain_since": row.get("estimated_drain_start_time_seconds") if drain else None,
        "resources": dict(row.get("resources", {})),
        "used_resources": dict(row.get("used_resources", {})),
        "attributes": dict(row.get("attributes", {})),
    }


def tasks_of(state: Mapping[str, Any], agent_id: str | None = None) -> list[dict[str, Any]]:
    """The tasks in /state that hold resources, by framework and id."""
    found = [
        {
            "id": task["id"],
            "name": task.get("name", ""),
            "framework": framework["name"],
            "agent_id": task["slave_id"],
            "state": task["state"],
            "resources": dict(task.get("resources", {})),
        }
        for framework in state.get("frameworks", [])
        for task in [*framework.get("tasks", []), *framework.get("unreachable_tasks", [])]
        if task["state"] in LIVE and agent_id in (None, task["slave_id"])
    ]
    return sorted(found, key=lambda task: (task["framework"], task["id"]))


def machine_key(hostname: str, ip: str) -> tuple[str, str]:
    """By what the masters know a machine again: the case of its name is nothing to them."""
    return hostname.lower(), ip


def pick(agents: Iterable[Mapping[str, Any]], hostname: str | None, agent_id: str | None) -> dict[str, Any] | None:
    """The agent of that id, or the only one of that hostname; None if there is none.

    One whose name differs by case only is taken where none has just that name.
    """
    rows = list(agents)
    if agent_id:
        found = [row for row in rows if row["id"] == agent_id]
    else:
        wanted = str(hostname)
        found = [row for row in rows if row["hostname"] == wanted]
        found = found or [row for row in rows if row["hostname"].lower() == wanted.lower()]
    if len(found) > 1:
        ids = ", ".join(row["id"] for row in found)
        raise Failed(f"{hostname}: agents {ids} have this hostname", "give agent_id")
    return dict(found[0]) if found else None


def blockers(tasks: Iterable[Mapping[str, Any]]) -> str:
    """The tasks that a drain waits for, in words."""
    rows = [f"{task['id']} of {task['framework']} ({task['state']})" for task in tasks]
    return ", ".join(rows) or "no task: a framework has not acknowledged the last one's end"


def change_schedule(
    schedule: Mapping[str, Any],
    machines: Iterable[tuple[str, str]],
    window: Mapping[str, int] | None,
) -> dict[str, Any]:
    """The schedule with these machines (hostname, ip) in a window {start_s, duration_s}, or in none (window None).

    Windows and machines of others stay as they are. A machine that has the same window already is not touched.
    """
    wanted = {machine_key(*machine): machine for machine in machines}
    unavailability = None
    if window is not None:
        unavailability = {"start": {"nanoseconds": window["start_s"] * 10**9}}
        if window.get("duration_s") is not None:
            unavailability["duration"] = {"nanoseconds": window["duration_s"] * 10**9}
    windows = []
    placed = set()
    for row in schedule.get("windows", []):
        same = unavailability is not None and _same(row.get("unavailability", {}), unavailability)
        stay = []
        for machine in row["machine_ids"]:
            key = machine_key(machine.get("hostname", ""), machine.get("ip", ""))
            if key not in wanted or same:
                stay.append(machine)
                placed.add(key)
        if stay:
            windows.append({**row, "machine_ids": stay})
    missing = [machine for key, machine in wanted.items() if key not in placed]
    if unavailability is not None and missing:
        rows = [{"hostname": name, "ip": ip} for name, ip in missing]
        windows.append({"machine_ids": rows, "unavailability": unavailability})
    return {"windows": windows} if windows else {}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    def span(row: Mapping[str, Any]) -> list[int]:
        return [int(row.get(key, {}).get("nanoseconds", -1)) for key in ("start", "duration")]

    return span(one) == span(other)
