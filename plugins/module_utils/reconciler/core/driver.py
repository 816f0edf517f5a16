# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the steps that the plan of a scheduler decides: written down, taken, written down."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import (
    Published,
    Unusable,
    in_the_future,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import OK
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import fleet as reconcile_fleet
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.journal import Journal
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.memory import lasting
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Backend, Seen, Store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Decision, Node, Policy, Step

LAST = 20
# A node is looked at again at once after a step, but not for ever: the others wait.
STEPS_IN_A_ROW = 6
# So many nodes that are to be fenced are closed by one order, where the scheduler can.
TOGETHER_AT_LEAST = 8
# While many nodes have their steps, those that fail meanwhile are closed after so many seconds.
MEANWHILE_S = 1.0


class Driver:
    """One turn after the other, all in one thread. `stop` is asked between two steps; `news` brings `verdicts` up to
    date, so that a step is taken on what is known when it is taken. `apart` are hosts of which nobody knows what was
    done, and why; they are left as they are until an operator clears them."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        policy: Policy,
        journal: Journal,
        fleet: Mapping[str, Any] | None,
        rows: Mapping[str, Mapping[str, Any]],
        stop: Callable[[], bool] = lambda: False,
        news: Callable[[Driver], None] = lambda _driver: None,
        clock: Callable[[], float] = time.time,
        apart: Mapping[str, str] | None = None,
    ) -> None:
        self.store, self.backend, self.policy, self.journal = store, backend, policy, journal
        self.plan = backend.plan
        self.stop, self.news, self.clock = stop, news, clock
        self.memories = {host: {**self.plan.empty(host), **row["memory"]} for host, row in rows.items()}
        self.last = {host: list(row.get("last", [])) for host, row in rows.items()}
        self.clears: dict[str, dict[str, Any]] = {host: row["clear"] for host, row in rows.items() if row.get("clear")}
        self.fleet = reconcile_fleet.rebuilt(self.memories) if fleet is None else {**reconcile_fleet.empty(), **fleet}
        self.apart = dict(apart or {})
        for host in self.apart:
            self.memories[host] = self.plan.empty(host)
        self.verdicts: dict[str, Published] = {}
        self._looked_at: dict[str, Published] = {}
        self.nodes: dict[str, Node] = {}
        # What is to be done about each, by the last look.
        self.decisions: dict[str, Decision] = {}
        self._unsent = set(self.memories) - set(self.apart)
        self.told: dict[str, str] = {}
        # Hosts whose next step takes moments.
        self.soon: set[str] = set()
        # Hosts that are to be fenced and are not, and why the breaker holds them; empty if it does not.
        self.waiting: list[str] = []
        self._looked = 0.0
        self.held = ""

    # What there is.

    def look(self) -> None:
        """Take in what was published, ask the scheduler what it has, and decide about every node. Raises CallFailed."""
        self.news(self)
        self._looked_at = dict(self.verdicts)
        self._send_again()
        verdicts = {host: self._verdict(host) for host in self.verdicts}
        usable = {host: verdict for host, (verdict, _problem) in verdicts.items() if verdict is not None}
        seen = self.backend.look(usable, self.memories, self._say)
        self.nodes = {}
        for host in sorted({*seen, *verdicts, *self.memories}):
            there = seen.get(host, Seen())
            one = there.rows[0] if len(there.rows) == 1 else None
            verdict, problem = verdicts.get(host, (None, ""))
            if len(there.rows) > 1:
                names = ", ".join(row.id for row in there.rows)
                problem = f"agents {names} have this hostname, so none is touched"
            problem = self.apart.get(host, "") or problem
            self.nodes[host] = Node(host, verdict, one, there.scheduled, problem)
        self._observe()

    def _verdict(self, host: str) -> tuple[Mapping[str, Any] | None, str]:
        """(what a node publishes, None where that cannot be used, and why it cannot)."""
        found = self.verdicts.get(host)
        if found is None:
            return None, ""
        why = found.why if isinstance(found, Unusable) else in_the_future(found, self.clock())
        return (None, f"its verdict is ignored: {why}") if isinstance(found, Unusable) or why else (found, "")

    # What is done.

    def turn(self, hosts: set[str] | None = None) -> None:
        """All nodes, or these, each as far as it goes: one look at all, a step of each node, the next look.

        Raises CallFailed, or what the store raises.
        """
        self._look_and_close(TOGETHER_AT_LEAST)
        todo = sorted(self.nodes if hosts is None else hosts & set(self.nodes))
        # A node that may get a task comes before those that are out.
        todo.sort(key=lambda host: not (self.nodes[host].row and self.nodes[host].row.takes_jobs))
        for _number in range(STEPS_IN_A_ROW):
            todo = [host for host in todo if not self.stop() and self._go_meanwhile(host)]
            if not todo:
                return
            self._look_and_close(TOGETHER_AT_LEAST)

    def _look_and_close(self, at_least: int) -> None:
        self.look()
        self._close_together(at_least)
        self._looked = time.monotonic()

    def _go_meanwhile(self, host: str) -> bool:
        """`_go`. Where the steps of the others took long, those that have failed since the last look come before."""
        if time.monotonic() - self._looked >= MEANWHILE_S:
            self.news(self)
            if any(told is not self._looked_at.get(name) for name, told in self.verdicts.items()):
                self._look_and_close(1)
        return self._go(host)

    def _close_together(self, at_least: int) -> None:
        """Close the nodes that wait to be fenced by one order. What is to be done about each comes after it."""
        if self.policy.mode != "act" or self.held or len(self.waiting) < at_least:
            return
        now = self.clock()
        found = {
            host: self.plan.closing(self.memories[host], self.nodes[host], self.decisions[host])
            for host in self.waiting
        }
        steps = {host: step for host, step in found.items() if step is not None}
        if len(steps) < at_least:
            return
        hosts = sorted(steps)
        why = f"fatal GPUs on {len(hosts)} nodes at once; see `sudo gpuops-reconciler status`"
        step = dataclasses.replace(steps[hosts[0]], why=why, evidence={})
        kind = step.kind
        self.journal.write("*", "begin", kind=kind, why=step.why, hosts=hosts)
        fleet = self.fleet
        for host in hosts:
            fleet = reconcile_fleet.fenced(fleet, host, self.policy, now)
        self._save_fleet(fleet)
        started, why = time.monotonic(), ""
        try:
            self.backend.close(hosts, step)
        except CallFailed as failure:
            # Then one after the other.
            why = str(failure)
        seconds = round(time.monotonic() - started, 4)
        result = "failed" if why else "done"
        row = self.journal.write("*", "end", kind=kind, result=result, why=why, hosts=hosts, seconds=seconds)
        short = {key: value for key, value in row.items() if key != "hosts"}
        # What a cut leaves open is seen in the scheduler.
        for host in () if why else hosts:
            begun = self.plan.begin(self.memories[host], steps[host], now)
            self.memories[host] = self.plan.end(begun, None, self.clock())
            self._save(host, {**short, "why": steps[host].why})

    def _observe(self) -> None:
        now = self.clock()
        self.decisions = {}
        for host, node in self.nodes.items():
            before = self.memories.get(host) or self.plan.empty(host)
            self.memories[host] = before
            if host in self.apart:
                self.decisions[host] = _left(node)
                continue
            after, self.decisions[host] = self._judge(before, node, now)
            self.memories[host] = after
            if lasting(after) != lasting(before):
                self._save(host)
        wait = self._waiting()
        fleet = reconcile_fleet.after(reconcile_fleet.set_back(self.fleet, now), wait, self.memories)
        if fleet != self.fleet:
            self._save_fleet(fleet)
        # Without an agent or a verdict, a node is none of those that could fail.
        number = sum(node.row is not None and node.verdict is not None for node in self.nodes.values())
        held = reconcile_fleet.held(self.fleet, wait, number, self.policy, now)
        if held != self.held:
            self.journal.write("*", "breaker", why=held or "it is released", waiting=wait)
        self.waiting, self.held = wait, held

    def _waiting(self) -> list[str]:
        return reconcile_fleet.waiting(self.memories, self.nodes.values(), self.decisions)

    def _judge(self, before: Mapping[str, Any], node: Node, now: float) -> tuple[dict[str, Any], Decision]:
        """(the memory with what is seen of a node, what is to be done about it). A host of which nothing can be made
        keeps no other one waiting."""
        try:
            after = self.plan.observe(before, node, self.policy, now)
            return after, _left(node) if node.problem else self.plan.decide(after, node, self.policy, now)
        except Exception as why:
            told = f"what it publishes cannot be used: {type(why).__name__} {one_line(why)}"
            node = self.nodes[node.host] = dataclasses.replace(node, verdict=None, problem=told)
            return dict(before), _left(node)

    def _go(self, host: str) -> bool:
        """One step of a node; whether there may be another."""
        self.news(self)
        if self.verdicts.get(host) is not self._looked_at.get(host):
            # It published while others had their steps, so it is looked at again first.
            return True
        memory, now = self.memories[host], self.clock()
        decision = self.plan.hold_back(self.decisions[host], memory, self.policy, self.held, now)
        step = decision.step
        (self.soon.add if decision.soon else self.soon.discard)(host)
        if step is None:
            self._say(host, decision.why)
            return False
        if self.policy.mode != "act":
            self._say(host, f"would {step.kind}: {step.why}", step.told())
            return False
        self.told.pop(host, None)
        memory = self.memories[host] = self.plan.begin(memory, step, now)
        row = self.journal.write(host, "begin", number=memory["number"], **memory["intent"]["step"])
        self._save(host, row)
        if step.fences:
            self._save_fleet(reconcile_fleet.fenced(self.fleet, host, self.policy, now))
        started = time.monotonic()
        error, refused = self._perform(host, step)
        memory = self.memories[host] = self.plan.end(memory, error, self.clock(), refused)
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
            if step.kind in ("order", "withdraw"):
                self.send(host)
            else:
                self.backend.perform(host, step)
        except CallFailed as why:
            return str(why), not isinstance(why.__cause__, OSError)
        return None, False

    def send(self, host: str) -> None:
        """What the node has to know: its order, and what an operator says is mended."""
        self.store.send(host, {"order": self.memories[host]["order"], "clear": self.clears.get(host)})

    def _send_again(self) -> None:
        """Once: what is no more where the node looks for it, such as after somebody else could write there."""
        todo, self._unsent = self._unsent, set()
        for host in sorted(todo) if self.policy.mode == "act" else ():
            document = {"order": self.memories[host]["order"], "clear": self.clears.get(host)}
            if any(document.values()) and self.store.sent(host) != document:
                self.store.send(host, document)

    def request(self, name: str, asked: Mapping[str, Any]) -> None:
        """What an operator asks. It is safe to do twice."""
        if asked.get("kind") == "permit":
            wait = self._waiting()
            self._save_fleet(reconcile_fleet.permit(self.fleet, wait))
            self.journal.write("*", "permit", hosts=wait, by=asked.get("by"))
        elif asked.get("kind") == "clear" and asked.get("host"):
            host, uuid = str(asked["host"]), asked.get("uuid")
            if host in self.apart and uuid is not None:
                self._say(host, f"the whole host has to be cleared, not {uuid} alone: {self.apart[host]}")
                return
            self.apart.pop(host, None)
            before = self.memories.get(host) or self.plan.empty(host)
            self.memories[host] = self.plan.clear(before, uuid, self.clock())
            found = self.verdicts.get(host)
            # An agent that says that all is well has nothing to clear. A fault that it finds before it would hear of
            # this is a new one, and stays.
            if not isinstance(found, Mapping) or found.get("verdict") != OK:
                # The names of requests begin anew where ZooKeeper was made anew, and a node does what it did once.
                self.clears[host] = {"id": f"{name}-{self.clock():.0f}", "device": uuid}
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


def _left(node: Node) -> Decision:
    return Decision(None, f"left as it is: {node.problem}")
