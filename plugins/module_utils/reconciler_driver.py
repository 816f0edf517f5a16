# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the steps that reconcile.py decides: written down, taken, written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils import (
    mesos_operator,
    reconcile,
    reconcile_cards,
    reconcile_fleet,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos_operator import Failed, Operator
from ansible_collections.baremetal.gpu.plugins.module_utils.reconcile import Node, Policy, Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler_journal import Journal

LAST = 20
# A node is looked at again at once after a step, but not for ever: the others wait.
STEPS_IN_A_ROW = 6


class Places(Protocol):
    """Where the driver writes; see reconciler_store.py."""

    def save_node(self, host: str, row: dict[str, Any]) -> None: ...

    def save_fleet(self, row: dict[str, Any]) -> None: ...

    def send(self, host: str, document: dict[str, Any]) -> None: ...


class Driver:
    """One turn after the other, all in one thread. `stop` is asked between two steps; `news` brings `verdicts` up to
    date, so that a step is taken on what is known when it is taken."""

    def __init__(
        self,
        store: Places,
        operator: Operator,
        policy: Policy,
        journal: Journal,
        fleet: Mapping[str, Any],
        rows: Mapping[str, Mapping[str, Any]],
        stop: Callable[[], bool] = lambda: False,
        news: Callable[[Driver], None] = lambda _driver: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.operator, self.policy, self.journal = store, operator, policy, journal
        self.stop, self.news, self.clock = stop, news, clock
        self.fleet = {**reconcile_fleet.empty(), **fleet}
        self.memories = {host: {**reconcile.empty(host), **row["memory"]} for host, row in rows.items()}
        self.last = {host: list(row.get("last", [])) for host, row in rows.items()}
        self.clears: dict[str, dict[str, Any]] = {host: row["clear"] for host, row in rows.items() if row.get("clear")}
        self.verdicts: dict[str, Mapping[str, Any]] = {}
        self.nodes: dict[str, Node] = {}
        self.told: dict[str, str] = {}
        self.held = ""

    # What there is.

    def look(self) -> None:
        """Take in what was published, and ask Mesos for its agents. Raises Failed."""
        self.news(self)
        out = any(row["fenced"] or row["ours"] or row["order"] or row["intent"] for row in self.memories.values())
        state = self.operator.get("/state" if out else "/slaves")
        # One that is not connected can be taken out all the same.
        agents = [{**mesos_operator.agent_of(row), "state": mesos_operator.commanded(row)} for row in state["slaves"]]
        scheduled = self._scheduled() if out else set()
        tasks: dict[str, list[str]] = {}
        for task in mesos_operator.tasks_of(state) if out else ():
            tasks.setdefault(task["agent_id"], []).append(task["id"])
        by_host: dict[str, list[dict[str, Any]]] = {}
        for agent in agents:
            # Where they were not asked for, there may be some.
            agent["tasks"] = tasks.get(agent["id"], []) if out else ["not asked for"]
            by_host.setdefault(agent["hostname"], []).append(agent)
        self.nodes = {}
        for host in sorted({*by_host, *self.verdicts, *self.memories}):
            found = by_host.get(host, [])
            one = found[0] if len(found) == 1 else None
            if len(found) > 1:
                self._say(
                    host, f"agents {', '.join(row['id'] for row in found)} have this hostname, so none is touched"
                )
            where = (host, one["ip"]) if one else None
            self.nodes[host] = Node(host, self._verdict(host), one, where in scheduled)

    def _verdict(self, host: str) -> Mapping[str, Any] | None:
        """What a node publishes, None where that cannot be used."""
        found = self.verdicts.get(host)
        why = reconcile_cards.problem(found) if found is not None else ""
        if why:
            self._say(f"{host}'s verdict", f"it is passed over: {why}")
        return None if why else found

    def _scheduled(self) -> set[tuple[str, str]]:
        windows = self.operator.schedule().get("windows", [])
        return {(row.get("hostname", ""), row.get("ip", "")) for window in windows for row in window["machine_ids"]}

    # What is done.

    def turn(self, hosts: set[str] | None = None) -> None:
        """All nodes, or these first to last, each as far as it goes. Raises Failed, or what the store raises."""
        self.look()
        self._observe()
        todo = sorted(self.nodes if hosts is None else hosts & set(self.nodes))
        # A node that may get a task comes before those that are out.
        todo.sort(key=lambda host: (self.nodes[host].agent or {}).get("state") != "active")
        for host in todo:
            for _number in range(STEPS_IN_A_ROW):
                if self.stop() or not self._go(host):
                    break
                self.look()
                self._observe()

    def _observe(self) -> None:
        now = self.clock()
        for host, node in self.nodes.items():
            before = self.memories.get(host) or reconcile.empty(host)
            after = reconcile.observe(before, node, self.policy, now)
            self.memories[host] = after
            if reconcile.lasting(after) != reconcile.lasting(before):
                self._save(host)
        wait = reconcile_fleet.waiting(self.memories, self.nodes.values(), self.policy, now)
        fleet = reconcile_fleet.after(self.fleet, wait, self.memories)
        if fleet != self.fleet:
            self._save_fleet(fleet)
        # Without an agent or a verdict, a node is none of those that could fail.
        number = sum(node.agent is not None and node.verdict is not None for node in self.nodes.values())
        held = reconcile_fleet.held(self.fleet, wait, number, self.policy, now)
        if held != self.held:
            self.journal.write("*", "breaker", why=held or "it lets go", waiting=wait)
        self.held = held

    def _go(self, host: str) -> bool:
        """One step of a node; whether there may be another."""
        node, memory, now = self.nodes[host], self.memories[host], self.clock()
        decision = reconcile.decide(memory, node, self.policy, self.held, now)
        step = decision.step
        if step is None:
            self._say(host, decision.why)
            return False
        if self.policy.mode != "act":
            self._say(host, f"would {step.kind}: {step.why}", step.told())
            return False
        self.told.pop(host, None)
        memory = self.memories[host] = reconcile.begin(memory, step, now)
        row = self.journal.write(host, "begin", number=memory["number"], **memory["intent"]["step"])
        self._save(host, row)
        if step.kind == "deactivate" and not step.for_others:
            self._save_fleet(reconcile_fleet.fenced(self.fleet, host, self.policy, now))
        started = time.monotonic()
        error, refused = self._perform(host, step)
        memory = self.memories[host] = reconcile.end(memory, error, self.clock(), refused)
        row = self.journal.write(
            host,
            "end",
            number=memory["number"],
            kind=step.kind,
            result="failed" if error else "done",
            why=error or "",
            seconds=round(time.monotonic() - started, 4),
        )
        self._save(host, row)
        return error is None

    def _perform(self, host: str, step: Step) -> tuple[str | None, bool]:
        """(why it failed, whether nothing can have come of it)."""
        try:
            if step.kind == "deactivate":
                self.operator.deactivate(step.agent_id)
            elif step.kind == "drain":
                self.operator.drain(step.agent_id, step.grace_s)
            elif step.kind == "reactivate":
                self.operator.reactivate(step.agent_id)
            elif step.kind in ("order", "withdraw"):
                self.send(host)
        except Failed as why:
            return str(why), not isinstance(why.__cause__, OSError)
        return None, False

    def send(self, host: str) -> None:
        """What the node has to know: its order, and what an operator says is mended."""
        self.store.send(host, {"order": self.memories[host]["order"], "clear": self.clears.get(host)})

    def request(self, name: str, asked: Mapping[str, Any]) -> None:
        """What an operator asks. It is safe to do twice."""
        if asked.get("kind") == "permit":
            wait = reconcile_fleet.waiting(self.memories, self.nodes.values(), self.policy, self.clock())
            self._save_fleet(reconcile_fleet.permit(self.fleet, wait))
            self.journal.write("*", "permit", hosts=wait, by=asked.get("by"))
        elif asked.get("kind") == "clear" and asked.get("host"):
            host, uuid = str(asked["host"]), asked.get("uuid")
            self.memories[host] = reconcile.clear(self.memories.get(host) or reconcile.empty(host), uuid)
            self.clears[host] = {"id": name, "device": uuid}
            row = self.journal.write(host, "clear", uuid=uuid, by=asked.get("by"))
            self._save(host, row)
            self.send(host)

    # What is written.

    def _save(self, host: str, row: dict[str, Any] | None = None) -> None:
        if self.policy.mode != "act":
            return
        last = self.last.setdefault(host, [])
        if row is not None:
            last.append({key: value for key, value in row.items() if key != "host"})
            del last[:-LAST]
        kept = {"memory": self.memories[host], "last": last, "clear": self.clears.get(host)}
        self.store.save_node(host, kept)

    def _save_fleet(self, fleet: dict[str, Any]) -> None:
        self.fleet = fleet
        if self.policy.mode == "act":
            self.store.save_fleet(fleet)

    def _say(self, host: str, why: str, step: dict[str, Any] | None = None) -> None:
        """What is waited for, once. A dry run tells it and keeps nothing."""
        # What counts the time is the same each time.
        if self.told.get(host, "") == why:
            return
        self.told[host] = why
        self.journal.write(
            host, "would" if step else "wait" if why else "well", why=why, **({"step": step} if step else {})
        )
