# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The registry of the masters as a replicated log: who may vote, and what a quorum has written.

Membership follows src/log/recover.cpp of Mesos: a replica that never voted starts once 2*quorum-1 of them are new, or
joins once a quorum votes. What is replicated is the whole registry, not a history: a leader takes the newest copy of a
quorum that promised to listen to no older leader, and every change is on a quorum before it is answered. A master too
many therefore breaks it here as it does there.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from pathlib import Path
from typing import Any

import ensemble
import grammar
import web
from web import Answer, Request

PATH = "/stand-in/log"


class Log:
    """One replica, and the way to the others."""

    def __init__(self, flags: dict[str, str], address: str) -> None:
        self.file = Path(flags["work_dir"]) / "replicated_log/state.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()
        # An epoch is the number of a leader; a promise refuses all that are older.
        self.state: dict[str, Any] = {"status": "EMPTY", "promised": 0, "epoch": 0, "position": 0, "value": None}
        if self.file.exists():
            self.state = json.loads(self.file.read_text(encoding="utf-8"))
        self.address = address
        self.quorum, self.members = 1, [address]
        self.initialize = flags["log_auto_initialize"] in ("true", "1")
        self.fetch_s = grammar.seconds(flags["registry_fetch_timeout"])
        self.store_s = grammar.seconds(flags["registry_store_timeout"])
        # What this one leads with, and the last that it wrote.
        self.epoch = self.position = 0
        self.pool = concurrent.futures.ThreadPoolExecutor(16)

    def alone(self) -> None:
        """Without ZooKeeper the log is this replica."""
        self._set(status="VOTING")

    def meet(self, flags: dict[str, str], where: ensemble.Url) -> None:
        """Joins the others in ZooKeeper."""
        self.quorum, self.members = int(flags["quorum"]), []
        there = where._replace(path=f"{where.path}/log_replicas")
        group = ensemble.Group(
            there,
            "",
            grammar.seconds(flags["zk_session_timeout"]),
            self._changed,
            lambda why: grammar.end(f"Failed to join the replicas of the log: {why}"),
            f"log-replica(1)@{self.address}".encode(),
        )
        group.start()
        threading.Thread(target=self._join, daemon=True).start()

    def _changed(self, members: ensemble.Members | None, own: str | None) -> None:
        # While there is no session, those of before are asked.
        if members is not None:
            self.members = sorted({data.decode().rpartition("@")[2] for data in members.values()})

    def _set(self, **values: Any) -> None:
        with self.lock:
            self.state.update(values)
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps(self.state), encoding="utf-8")
            part.replace(self.file)

    @property
    def voting(self) -> bool:
        return bool(self.state["status"] == "VOTING")

    # What the others ask.

    def handle(self, request: Request) -> Any:
        return self.answer(request.json())

    def answer(self, told: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if told["do"] == "status":
                return dict(self.state)
            if not self.voting:
                raise Answer(409, {"why": "the replica does not vote"})
            # The same promise is not given twice: there may be two who want to lead.
            oldest = self.state["promised"] + (told["do"] == "promise")
            if told["epoch"] < oldest:
                return {"refused": self.state["promised"]}
            if told["do"] == "promise":
                self._set(promised=told["epoch"])
            elif (told["epoch"], told["position"]) > (self.state["epoch"], self.state["position"]):
                self._set(**{key: told[key] for key in ("epoch", "position", "value")}, promised=told["epoch"])
            return dict(self.state)

    def ask(self, body: dict[str, Any], enough: int = 0) -> list[dict[str, Any]]:
        """The answers of all that give one, or of the first that are enough."""
        found: list[dict[str, Any]] = []
        members = self.members
        asked = [self.pool.submit(self._ask, member, body) for member in members]
        for one in concurrent.futures.as_completed(asked):
            told = one.result()
            found += [] if told is None else [told]
            if enough and len(found) >= enough:
                break
        return found

    def _ask(self, member: str, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            own = member == self.address
            return self.answer(body) if own else dict(web.call(f"http://{member}{PATH}", body, 2.0))
        except (OSError, ValueError, Answer):
            return None

    # What this one does.

    def _join(self) -> None:
        """Until this replica votes."""
        size = 2 * self.quorum - 1
        while not self.voting:
            rows = self.ask({"do": "status"}) if len(self.members) >= self.quorum else []
            voting = [row for row in rows if row["status"] == "VOTING"]
            new = {kind: sum(row["status"] == kind for row in rows) for kind in ("EMPTY", "STARTING")}
            own = self.state["status"]
            if len(voting) >= self.quorum:
                newest = max(voting, key=lambda row: (row["epoch"], row["position"]))
                self._set(status="VOTING", **{key: newest[key] for key in ("promised", "epoch", "position", "value")})
            elif self.initialize and own == "EMPTY" and sum(new.values()) >= size:
                self._set(status="STARTING")
                continue
            elif self.initialize and own == "STARTING" and new["STARTING"] + len(voting) >= size:
                self._set(status="VOTING")
            time.sleep(0.2)

    def fetch(self) -> Any:
        """The registry, for one that was elected. Ends the program where no quorum gives it in time."""
        end = time.monotonic() + self.fetch_s
        self.epoch = self.state["promised"]
        while time.monotonic() < end:
            self.epoch += 1
            rows = self.ask({"do": "promise", "epoch": self.epoch}, self.quorum) if self.voting else []
            given = [row for row in rows if "refused" not in row]
            if len(given) >= self.quorum:
                newest = max(given, key=lambda row: (row["epoch"], row["position"]))
                self.position = newest["position"]
                return json.loads(json.dumps(newest["value"]))
            self.epoch = max([self.epoch, *(row["refused"] for row in rows if "refused" in row)])
            time.sleep(0.2)
        why = f"Failed to recover registrar: Failed to perform fetch within {self.fetch_s / 60:g}mins"
        return grammar.end(f"Recovery failed: {why}")

    def store(self, value: Any) -> None:
        """Ends the program where no quorum takes it in time, or another leads."""
        self.position += 1
        # A copy: the registry goes on to change.
        value = json.loads(json.dumps(value))
        body = {"do": "write", "epoch": self.epoch, "position": self.position, "value": value}
        end = time.monotonic() + self.store_s
        while time.monotonic() < end:
            rows = self.ask(body, self.quorum)
            if any("refused" in row for row in rows):
                break
            if len(rows) >= self.quorum:
                return
            time.sleep(0.1)
        grammar.end("Registrar aborting: Failed to update registry: Failed to perform store within the time")
