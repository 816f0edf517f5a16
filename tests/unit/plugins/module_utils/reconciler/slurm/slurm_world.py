# SPDX-License-Identifier: GPL-3.0-or-later
"""A hand-made model of one node, its agent and slurmctld, for what the reconciler decides.

Like slurmctld with `SchedulerParameters=defer`, it starts jobs in one pass, those of the operator's partition first.
`wrong` collects what must never happen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.backend import SlurmBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import SIGNALLED, Holder, Job
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres

NODE = "n1"


class Killed(Exception):
    """The reconciler was killed at this point."""


@dataclass
class Queued:
    """A job of a user's or a holder, in the queue or with its GPUs."""

    id: int
    gpus: int
    holder: Holder | None = None
    positions: tuple[int, ...] | None = None
    batch: bool = True
    note: str = ""


def kept(memory: dict[str, Any]) -> dict[str, Any]:
    """A memory as the next reconciler reads it."""
    found: dict[str, Any] = rows.node(plan, NODE, json.dumps({"memory": memory, "last": []}).encode())["memory"]
    return found


@dataclass
class SlurmWorld:
    """One node with `gpus` GPUs and `cores` cores; `cut` is after how many calls the next one is cut, if any."""

    gpus: int = 4
    cores: int = 8
    policy: Policy = field(default_factory=lambda: Policy(mode="act"))
    now: float = 1_800_000_000.0

    def __post_init__(self) -> None:
        self.uuids = [f"GPU-{number}" for number in range(self.gpus)]
        self.gres_conf = f"NodeName={NODE} Name=gpu File=/dev/nvidia[0-{self.gpus - 1}]"
        self.fatal: set[int] = set()
        self.node_codes: list[str] = []
        self.session, self.boot = True, 1
        self.numbers = itertools.count(1)
        self.queue: list[Queued] = []
        self.ended: list[int] = []
        self.guard_ends: float | None = None
        self.drain_reason: str | None = None
        self.closed: set[int] = set()
        self.calls: list[str] = []
        self.wrong: list[str] = []
        self.cut: int | None = None
        # Slurm's word for a limit that is on holders which are submitted now.
        self.limit = ""
        self.limits: dict[int, str] = {}
        self.memory = plan.empty(NODE)
        self.backend = SlurmBackend(self)  # type: ignore[arg-type]

    # Slurm as SlurmBackend uses it.

    def nodes(self) -> dict[str, dict[str, Any]]:
        used = [position for one in self.queue for position in one.positions or ()]
        return {
            NODE: {
                "name": NODE,
                "gpus": self.gpus,
                "used": sorted(used),
                "free_cpus": self.free_cores(),
                "drained": self.drain_reason is not None,
                "silent": False,
                "reason": self.drain_reason or "",
            }
        }

    def gres(self) -> Gres:
        return Gres(self.gres_conf)

    def guards(self) -> dict[str, float]:
        return {} if self.guard_ends is None else {NODE: self.guard_ends}

    def holders(self) -> list[Holder]:
        return [
            replace(
                one.holder,
                state="PENDING" if one.positions is None else "RUNNING",
                position=None if one.positions is None else one.positions[0],
                waits=self.waits(one.holder),
                reason=self.reason(one),
            )
            for one in self.queue
            if one.holder
        ]

    def jobs_on(self, node: str) -> list[Job]:
        return [
            Job(one.id, "alice", "RUNNING", one.positions, one.batch, one.note) for one in self.users() if one.positions
        ]

    def guard(self, node: str) -> None:
        self.call("guard")
        self.guard_ends = self.now + 600
        self.closed = self.known_bad()

    def unguard(self, node: str) -> None:
        self.call("unguard")
        for one in self.queue:
            if one.holder:
                one.holder = replace(one.holder, reserved=False)
        self.guard_ends = None

    def hold(self, node: str, targets: Sequence[int], count: int, after: Iterable[int], inside: bool) -> None:
        for _number in range(count):
            self.call("hold")
            number = next(self.numbers)
            holder = Holder(
                number, NODE, "PENDING", tuple(targets), None, tuple(after), True, inside, submitted=self.now
            )
            self.limits[number] = self.limit
            self.queue.append(Queued(number, 1, holder))

    def cancel(self, jobs: Iterable[int]) -> None:
        self.call("cancel")
        for number in jobs:
            one = next((one for one in self.queue if one.id == number), None)
            if one and one.holder is None:
                self.wrong.append(f"job {number} of a user was cancelled")
            if one and one.holder and one.positions and 0 <= self.now - one.holder.started < 1:
                self.wrong.append(f"holder {number} was cancelled while slurmd launched it")
        self.queue = [one for one in self.queue if one.id not in set(jobs)]

    def signal(self, jobs: Iterable[dict[str, Any]], why: str) -> None:
        self.call("signal")
        for row in jobs:
            next(one for one in self.queue if one.id == row["id"]).note = f"{SIGNALLED}: {why}"

    def requeue(self, jobs: Iterable[int]) -> None:
        self.call("requeue")
        for one in [one for one in self.queue if one.id in set(jobs)]:
            if not one.batch:
                raise CallFailed("Only batch jobs are accepted or processed")
            if not self.known_bad() & set(one.positions or ()):
                self.wrong.append(f"job {one.id} on well GPUs was queued again")
            one.positions = None

    def drain(self, node: str, reason: str) -> None:
        self.call("drain")
        self.drain_reason = reason

    def resume(self, node: str) -> None:
        self.call("resume")
        self.drain_reason = None

    def call(self, what: str) -> None:
        """Perhaps the reconciler is killed before it, or slurmctld does not answer."""
        self.calls.append(what)
        if self.cut is not None:
            self.cut -= 1
            if self.cut < 0:
                self.cut = None
                raise Killed(what)

    # What slurmctld does by itself.

    def waits(self, holder: Holder) -> bool:
        """The first of the jobs that ends lets it start."""
        return bool(holder.after) and set(holder.after) <= {one.id for one in self.queue}

    def reason(self, one: Queued) -> str:
        if one.positions is not None or one.holder is None:
            return ""
        return "Dependency" if self.waits(one.holder) else self.limits[one.id] or "Resources"

    def free_cores(self) -> int:
        return self.cores - sum(one.positions is not None for one in self.queue)

    def free_gpus(self) -> list[int]:
        used = {position for one in self.queue for position in one.positions or ()}
        return [position for position in range(self.gpus) if position not in used]

    def schedule(self) -> None:
        """A pass over the queue: holders first, then users' jobs in their order."""
        if self.guard_ends is not None and self.guard_ends <= self.now:
            self.guard_ends = None
        for one in sorted(self.queue, key=lambda one: one.holder is None):
            waits = one.holder is not None and self.waits(one.holder)
            inside = one.holder is not None and one.holder.reserved
            closed = self.guard_ends is not None and not inside
            free = self.free_gpus()
            if one.positions is not None or waits or closed or self.limits.get(one.id) or self.drain_reason is not None:
                continue
            if len(free) < one.gpus or self.free_cores() < 1:
                continue
            one.positions = tuple(free[: one.gpus])
            if one.holder:
                one.holder = replace(one.holder, started=self.now)
            fenced = self.closed & self.known_bad()
            if one.holder is None and fenced & set(one.positions):
                self.wrong.append(f"job {one.id} got {one.positions}, of which {sorted(fenced)} were fenced")

    def known_bad(self) -> set[int]:
        return {row["minor"] for row in self.memory["slurm"]["bad"].values()}

    def submit(self, gpus: int) -> int:
        number = next(self.numbers)
        self.queue.append(Queued(number, gpus))
        return number

    def end(self, number: int) -> None:
        self.queue = [one for one in self.queue if one.id != number]
        self.ended.append(number)

    def users(self) -> list[Queued]:
        return [one for one in self.queue if one.holder is None]

    # The node and the reconciler.

    def fault(self, position: int) -> None:
        self.fatal.add(position)

    def mend(self, position: int) -> None:
        self.fatal.discard(position)
        self.closed.discard(position)

    def reboot(self) -> None:
        """Every job on the node ends; batch jobs of users are in the queue again."""
        self.boot += 1
        self.queue = [one for one in self.queue if one.positions is None or one.holder is None]
        for one in self.queue:
            one.positions = None

    def verdict(self) -> dict[str, Any] | None:
        if not self.session:
            return None
        reason = [{"code": "xid_79", "verdict": "fatal", "action": "reboot", "text": "Xid 79"}]
        return {
            "schema": 1,
            "host": NODE,
            "boot_id": str(self.boot),
            "time": self.now,
            "verdict": "fatal" if self.fatal else "ok",
            "reasons": [{"code": code, "verdict": "fatal", "action": "inspect"} for code in self.node_codes],
            "devices": [
                {
                    "uuid": uuid,
                    "index": position,
                    "minor": position,
                    "pci_address": f"0000:0{position}:00.0",
                    "verdict": "fatal" if position in self.fatal else "ok",
                    "reasons": reason if position in self.fatal else [],
                }
                for position, uuid in enumerate(self.uuids)
            ],
        }

    def node(self) -> Node:
        verdict = self.verdict()
        usable = {NODE: verdict} if verdict else {}
        seen = self.backend.look(usable, {NODE: self.memory}, lambda *_words: None)[NODE]
        return Node(NODE, verdict, seen.rows[0])

    def step(self, held: str = "") -> str:
        """Look, decide and take the step: its kind, or why there is none, in brackets."""
        node = self.node()
        self.memory = plan.observe(self.memory, node, self.policy, self.now)
        decision = plan.decide(self.memory, node, self.policy, self.now)
        decision = plan.hold_back(decision, self.memory, self.policy, held, self.now)
        if decision.step is None:
            return f"({decision.why})"
        self.memory = kept(plan.begin(self.memory, decision.step, self.now))
        error = None
        try:
            self.backend.perform(NODE, decision.step)
        except CallFailed as why:
            error = str(why)
        self.memory = kept(plan.end(self.memory, error, self.now))
        return decision.step.kind

    def turn(self, steps: int = 6) -> list[str]:
        """Steps, and passes of slurmctld between them, until there is none."""
        kinds = []
        for _number in range(steps):
            kinds.append(self.step())
            self.schedule()
            self.now += 0.25
            if kinds[-1].startswith("("):
                break
        return kinds

    def settle(self, turns: int = 40) -> str:
        """Let time pass until nothing is done any more; what is waited for then."""
        quiet = 0
        for _number in range(turns):
            self.now += 30.0
            kinds = self.turn()
            quiet = quiet + 1 if len(kinds) == 1 else 0
            if quiet == 4:
                return kinds[0]
        raise AssertionError(f"it goes on without an end: {self.calls[-20:]}")

    def held(self) -> set[int]:
        return {one.positions[0] for one in self.queue if one.holder and one.positions}
