# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether masters, an agent or Marathons do their work, seen from outside.

`look` makes {complete, leader, problems, members: [{name, url, up, leads, ready}]}. A member is up if it answers, and
ready if it can take its part: a master whose replicated log has caught up, an agent that the leading master has under
its id. What an agent tells of itself is no proof: its metric slave/registered is 1 as soon as it knows of a leader,
also where that one refuses it.
"""

from __future__ import annotations

import base64
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed, Operator, Transport

PAUSE = 0.5
# A program that ends at once and is started again is never up for that long.
STAYED_S = 10.0
MASTER_PORT = 5050
Seen = dict[str, Any]


def _count(numbers: Mapping[str, Any], key: str) -> int:
    """A metric that counts something; 0 where it is missing or no number."""
    value = numbers.get(key, 0)
    return int(value) if isinstance(value, (int, float)) else 0


class Masters:
    """The masters that somebody else is looked for at, and the login by which they are asked."""

    def __init__(self, urls: Sequence[str], login: tuple[str, str] | None, transport: Transport) -> None:
        self.urls, self.login, self.send = list(urls), login, transport

    def row(self, path: str, parameter: str, wanted: str, urls: Sequence[str] = ()) -> tuple[Any, str]:
        """(what the leading one has of an id, why that is not known); nothing of both where it has it not."""
        user, password = self.login or (None, None)
        try:
            leader = Operator(self.urls or urls, self.send, user, password)
            told = leader.get(f"/{path}?{parameter}={urllib.parse.quote(wanted, safe='')}")
        except Failed as why:
            return None, str(why)
        rows = told.get(path) if isinstance(told, dict) else None
        found = [row for row in rows or [] if isinstance(row, dict) and row.get("id") == wanted]
        return (found[0] if found else None), ""


class Cluster:
    """The members (``name`` and ``url``) of one kind: program is master, agent or marathon. See host.member_service.

    :param login: user and password for HTTP of the members, or None.
    :param gpus: how many GPUs an agent has to announce, None if that does not matter.
    :param masters: the masters, of which the leading one has to know an agent, or the Marathon that leads. Without any
        an agent is asked for one, and of a Marathon that is not asked.
    :param own_name: the name of this host's member, empty where nobody asks for it.
    :param age: tells for how many seconds the unit of this host has been up, None while it is not.
    :param ended: tells how the unit of this host ended, empty while it has not.
    """

    noun = "host"
    when_incomplete = "not all do their work"
    when_missing = "it does not do its work"

    def __init__(
        self,
        program: str,
        members: Iterable[Mapping[str, str]],
        transport: Transport,
        login: tuple[str, str] | None = None,
        gpus: int | None = None,
        masters: Masters | None = None,
        own_name: str = "",
        age: Callable[[], float | None] | None = None,
        ended: Callable[[], str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.program, self.members, self.send, self.gpus = program, list(members), transport, gpus
        self.masters, self.age, self.ended = masters or Masters((), None, transport), age, ended
        self.own_name, self.alone = own_name, len(self.members) == 1
        self.sleep, self.clock = sleep, clock
        # By it the leading master tells one registration of an agent from the next.
        self.mark: Any = None
        self.headers = {"Accept": "application/json"}
        if login is not None:
            self.headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()

    def _get(self, url: str, path: str) -> tuple[dict[str, Any] | None, str]:
        """(JSON object, why there is none)."""
        try:
            answer = self.send("GET", url + path, self.headers, None)
        except OSError as error:
            return None, str(getattr(error, "reason", error))
        if answer.status != 200:
            return None, f"{path} answers {answer.status}"
        try:
            return bounded_json.parse_object(answer.body or b"{}"), ""
        except bounded_json.Malformed as error:
            return None, f"the answer of {path} cannot be used: {error}"

    def _member(self, row: Mapping[str, str]) -> Seen:
        seen: Seen = {"name": row["name"], "url": row["url"].rstrip("/"), "up": False, "leads": False, "ready": False}
        url = seen["url"]
        if self.program == "marathon":
            return self._marathon(seen, url)
        numbers, why = self._get(url, "/metrics/snapshot")
        if numbers is None:
            return {**seen, "why": why}
        seen["up"] = True
        if self.program == "agent":
            return {**seen, **self._agent(url, numbers)}
        seen["leads"] = numbers.get("master/elected") == 1
        seen["ready"] = numbers.get("registrar/log/recovered") == 1
        size = _count(numbers, "registrar/log/ensemble_size")
        if size > len(self.members):
            # It counts for the quorum, and nobody here restarts or watches it.
            return {**seen, "why": f"{size} masters share its log, and {len(self.members)} are known. Stop the others"}
        return {**seen, "why": "" if seen["ready"] else "its replicated log has not caught up"}

    def _agent(self, url: str, numbers: Mapping[str, Any]) -> Seen:
        self.mark = None
        state, why = self._get(url, "/state")
        if state is None:
            return {"why": why}
        agent_id = state.get("id")
        if not isinstance(agent_id, str) or not agent_id:
            return {"why": "it is not registered with a leading master: it has no id"}
        row, why = self._registration(agent_id, url, state)
        if row is None:
            return {"why": f"it is not registered with a leading master: {why}"}
        self.mark = [row.get("registered_time"), row.get("reregistered_time")]
        if not row.get("active") and not row.get("deactivated"):
            return {"why": f"the leading master knows it as {one_line(agent_id)}, and it is not connected"}
        has = _count(numbers, "slave/gpus_total")
        if self.gpus is not None and has != self.gpus:
            return {"why": f"it announces {has} GPUs, and {self.gpus} are given out"}
        return {"ready": True, "leads": True, "why": ""}

    def _registration(self, agent_id: str, url: str, state: Mapping[str, Any]) -> tuple[Any, str]:
        """(what the leading master has of the agent, why there is nothing)."""
        urls: Sequence[str] = ()
        if not self.masters.urls:
            named = state.get("master_hostname")
            if not isinstance(named, str) or not named:
                return None, "it knows none"
            urls = [f"{urllib.parse.urlsplit(url).scheme}://{one_line(named)}:{MASTER_PORT}"]
        row, why = self.masters.row("slaves", "slave_id", agent_id, urls)
        if row is None and not why:
            why = (
                f"that one does not have its id {one_line(agent_id)}. It is without a login, or with a wrong one, was "
                "marked gone, or has not come back yet"
            )
        return row, why

    def _framework(self, url: str) -> str:
        """Why the Marathon that leads gets no offers, empty if it does."""
        told, why = self._get(url, "/v2/info")
        framework = (told or {}).get("frameworkId")
        if not isinstance(framework, str) or not framework:
            return f"it is not registered with a leading master: {why or 'it has no id'}"
        row, why = self.masters.row("frameworks", "framework_id", framework)
        if row is not None and row.get("active") and row.get("connected", True):
            return ""
        why = why or f"that one does not have its id {one_line(framework)}" if row is None else "it is not connected"
        return f"it is not registered with a leading master: {why}"

    def _unit(self) -> str:
        """Why the program of this host counts as one that does not stay, empty if it does."""
        up_s = self.age() if self.age is not None else STAYED_S
        if up_s is None:
            return "the unit of this host is not active"
        if up_s < STAYED_S:
            return f"the unit of this host has been up for {up_s:.0f} s, and has to stay up for {STAYED_S:.0f}"
        return ""

    def _marathon(self, seen: Seen, url: str) -> Seen:
        try:
            answer = self.send("GET", url + "/ping", self.headers, None)
        except OSError as error:
            return {**seen, "why": str(getattr(error, "reason", error))}
        if answer.status != 200:
            return {**seen, "why": f"/ping answers {answer.status}"}
        told, why = self._get(url, "/v2/leader")
        leader = str((told or {}).get("leader", ""))
        # The leader is told by host and port, as each one announces itself.
        return {
            **seen,
            "up": True,
            "ready": bool(leader),
            "leads": bool(leader) and leader == url.partition("://")[2],
            "why": "" if leader else f"it knows no leader ({why or 'none is told'})",
        }

    def look(self) -> Seen:
        rows = [self._member(row) for row in self.members]
        problems = [f"{row['name']} ({row['url']}): {row['why']}" for row in rows if row["why"]]
        leaders = [row for row in rows if row["leads"]]
        if self.program == "marathon" and len(leaders) == 1 and self.masters.urls:
            why = self._framework(leaders[0]["url"])
            problems += [f"{leaders[0]['name']} ({leaders[0]['url']}): {why}"] if why else []
        # That nobody listens does not tell why.
        look = self.ended if problems else self._unit
        why = look() if look is not None else ""
        problems += [why] if why else []
        if len(leaders) != 1 and not problems:
            told = ", ".join(row["name"] for row in leaders) or "none"
            problems.append(f"one of {', '.join(row['name'] for row in rows)} has to lead, and {told} does")
        return {
            "complete": not problems,
            "leader": leaders[0]["url"] if len(leaders) == 1 else None,
            "problems": problems,
            "members": [{key: row[key] for key in ("name", "url", "up", "leads", "ready")} for row in rows],
        }

    def wait_until(self, done: Callable[[Seen], bool], wait_s: float) -> Seen:
        """What was seen last: when it was as wanted, or the time was over."""
        deadline = self.clock() + wait_s
        while True:
            seen = self.look()
            if done(seen) or self.clock() >= deadline:
                return seen
            self.sleep(PAUSE)

    def own(self, seen: Seen) -> Seen:
        return dict(next(row for row in seen["members"] if row["name"] == self.own_name))
