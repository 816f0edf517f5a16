# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether masters, an agent or Marathons do their work, seen from outside, and how one is restarted among them.

`look` makes {complete, leader, problems, members: [{name, url, up, leads, ready}]}. A member is up if it answers, and
ready if it can take its part: a master whose replicated log has caught up, an agent that is registered.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host_run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host_unit import Refused, Unit, is_due
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos_operator import Transport

PAUSE = 0.5
Seen = dict[str, Any]


class Cluster:
    """The members (``name`` and ``url``) of one kind: program is master, agent or marathon.

    :param login: user and password for HTTP, or None.
    :param gpus: how many cards an agent has to announce, None if that does not matter.
    """

    def __init__(
        self,
        program: str,
        members: Iterable[Mapping[str, str]],
        transport: Transport,
        login: tuple[str, str] | None = None,
        gpus: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.program, self.members, self.send, self.gpus = program, list(members), transport, gpus
        self.sleep, self.clock = sleep, clock
        self.headers = {"Accept": "application/json"}
        if login is not None:
            self.headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()

    def _get(self, url: str, path: str) -> tuple[Any, str]:
        """(JSON, why there is none)."""
        try:
            answer = self.send("GET", url + path, self.headers, None)
        except OSError as error:
            return None, str(getattr(error, "reason", error))
        if answer.status != 200:
            return None, f"{path} answers {answer.status}"
        try:
            return json.loads(answer.body or b"{}"), ""
        except ValueError:
            return None, f"{path} answers with what is not JSON"

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
            return {**seen, **self._agent(numbers)}
        seen["leads"] = numbers.get("master/elected") == 1
        seen["ready"] = numbers.get("registrar/log/recovered") == 1
        size = int(numbers.get("registrar/log/ensemble_size", 0))
        if size > len(self.members):
            # It counts for the quorum, and nobody here restarts or watches it.
            return {**seen, "why": f"{size} masters share its log, and {len(self.members)} are known. Stop the others"}
        return {**seen, "why": "" if seen["ready"] else "its replicated log has not caught up"}

    def _agent(self, numbers: Mapping[str, Any]) -> Seen:
        if numbers.get("slave/registered") != 1:
            return {"why": "it is not registered with a leading master"}
        has = int(numbers.get("slave/gpus_total", 0))
        if self.gpus is not None and has != self.gpus:
            return {"why": f"it announces {has} cards, and {self.gpus} are given out"}
        return {"ready": True, "leads": True, "why": ""}

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


def is_complete(seen: Seen) -> bool:
    return bool(seen["complete"])


class Service(Unit):
    """The program of this host among the members of its kind.

    :param own: its name among the members.
    :param wait_s: seconds in which it has to come back.
    """

    def __init__(self, unit: str, own: str, cluster: Cluster, wait_s: float, run: Run) -> None:
        super().__init__(unit, run)
        self.own, self.cluster, self.wait_s = own, cluster, wait_s

    def _row(self, seen: Seen) -> Seen:
        return dict(next(row for row in seen["members"] if row["name"] == self.own))

    def come_back(self, whole: bool) -> Seen:
        """Wait until this one is ready, and with `whole` until all are.

        :raises Refused: if that takes too long.
        """

        def done(seen: Seen) -> bool:
            return bool(seen["complete"] if whole else self._row(seen)["ready"])

        seen = self.cluster.wait_until(done, self.wait_s)
        if not done(seen):
            raise Refused(
                f"after {self.wait_s:.0f} s it does not do its work: {'; '.join(seen['problems'])}. No other host was "
                f"touched after it. Its log ends with: {self.journal()}"
            )
        return seen

    def step(self, only: str, join: bool, files: Sequence[str], stamp: str, check: bool) -> tuple[str, bool]:
        """Start or restart it if that is to be done, and may be done now.

        :param only: ``idle`` for one that does not answer, ``follower`` for one that does not lead, ``any``.
        :param join: whether it has to be ready before the next one is touched.
        :returns: what was done (``start``, ``restart`` or nothing), and whether a restart is still due.
        :raises Refused: see there.
        """
        if not self.is_running():
            if not check:
                self.systemctl("start")
                if join:
                    self.come_back(whole=False)
            return "start", False
        if join and not check:
            # An earlier run was cut before it was.
            self.come_back(whole=False)
        if not is_due(files, stamp):
            return "", False
        row = self._row(self.cluster.look())
        if row["up"] and (only == "idle" or (only == "follower" and row["leads"])):
            return "", True
        if check:
            return "restart", False
        others = len(self.cluster.members) > 1
        if row["up"] and others:
            seen = self.cluster.wait_until(is_complete, self.wait_s)
            if not seen["complete"]:
                raise Refused(
                    f"a restart is due and was not done, since not all do their work: {'; '.join(seen['problems'])}. "
                    "To do: bring that back, then run again"
                )
            # Who leads may have changed while this one waited.
            if only == "follower" and self._row(seen)["leads"]:
                return "", True
        self.systemctl("restart")
        if row["up"]:
            self.come_back(whole=True)
        return "restart", False
