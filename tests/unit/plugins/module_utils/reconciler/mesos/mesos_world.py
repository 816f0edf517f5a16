# SPDX-License-Identifier: GPL-3.0-or-later
"""A hand-made model of one node, its Mesos master and others who drain, for what the reconciler decides.

It keeps what nobody can ask Mesos: who took an agent out, and which GPU a task was given. `wrong` collects what must
never happen.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.memory import lasting
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy, Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos import plan as reconcile
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.shapes import Agent, MesosStep

FOREIGN_GRACE = 600


class Killed(Exception):
    """The reconciler was killed at this point."""


class World:
    def __init__(self, gpus: int, policy: Policy) -> None:
        self.now = 1_000_000.0
        self.policy = policy
        self.uuids = [f"GPU-{number}" for number in range(gpus)]
        self.fatal: set[str] = set()
        self.held_back: set[str] = set()
        self.session = True
        # The agent's process: whether it runs, its checkpoint, the list in its file and the one it was started with.
        self.up, self.latest, self.file, self.listed = True, "S0", list(self.uuids), list(self.uuids)
        self.starts = 0
        self.tasks: dict[str, list[str]] = {}
        self.launched = 0
        self.master: dict[str, dict[str, Any]] = {}
        self.boot = 1
        # Node's side of an order.
        self.order: dict[str, Any] | None = None
        self.place, self.answer = 0, None
        # Truth that Mesos does not tell.
        self.foreign: set[str] = set()
        self.acknowledged: set[str] = set()
        self.wrong: list[str] = []
        self.log: list[str] = []
        self.held = ""
        self.scheduled = False
        self.written = json.dumps(reconcile.empty("n1"))
        self.memory = reconcile.empty("n1")
        self.register()

    # The node and Mesos.

    def register(self) -> None:
        if self.latest is None:
            self.starts += 1
            self.latest = f"S{self.starts}"
        self.master = {
            self.latest: self.master.get(self.latest, {"state": "active", "grace_s": None, "drain_since": None})
        }

    @property
    def agent(self) -> Agent | None:
        if not self.master:
            return None
        (name, row), *_ = self.master.items()
        return Agent(name, gpus=float(len(self.listed)), tasks=sorted(self.tasks), **row)

    def node(self) -> Node:
        verdict = None
        if self.session:
            rows = [
                {
                    "uuid": uuid,
                    "index": index,
                    "pci_address": f"0000:0{index}:00.0",
                    "verdict": "fatal" if uuid in self.fatal else "ok",
                    "reasons": [{"code": "xid", "verdict": "fatal", "action": "reset_gpu", "text": "Xid 79"}]
                    if uuid in self.fatal
                    else [],
                }
                for index, uuid in enumerate(self.uuids)
            ]
            verdict = {
                "schema": 1,
                "host": "n1",
                "boot_id": str(self.boot),
                "time": self.now,
                "verdict": "fatal" if self.fatal else "ok",
                "reasons": [],
                "devices": rows,
                "listed": list(self.listed),
                "held_back": sorted(self.held_back),
                "order": self.answer,
            }
        return Node("n1", verdict, self.agent, self.scheduled)

    def launch(self) -> None:
        """A framework starts a task on the first free GPU, if the agent takes any."""
        agent = self.agent
        taken = {uuid for row in self.tasks.values() for uuid in row}
        free = [uuid for uuid in self.listed if uuid not in taken]
        if agent is None or agent.state != "active" or not self.up or not free:
            return
        if free[0] in self.fatal and free[0] in self.acknowledged:
            self.wrong.append(f"a task on {free[0]}, which is fatal and was fenced")
        self.launched += 1
        self.tasks[f"t{self.launched}"] = [free[0]]

    def end_tasks(self) -> None:
        self.tasks.clear()
        self.look_at_drain()

    def look_at_drain(self) -> None:
        for row in self.master.values():
            if row["state"] == "draining" and not self.tasks:
                row["state"] = "drained"

    def fault(self, uuid: str) -> None:
        self.fatal.add(uuid)
        self.acknowledged.discard(uuid)

    def mend(self, uuid: str) -> None:
        self.fatal.discard(uuid)
        self.acknowledged.discard(uuid)

    def agent_restarts(self) -> None:
        """systemd or an operator starts the agent again under its id; tasks survive that, and the file is read anew."""
        if not self.up:
            return
        if set(self.file) != set(self.listed) and self.tasks:
            self.wrong.append(f"the agent was started with another list under {sorted(self.tasks)}")
        self.listed = list(self.file)
        self.register()

    def reboot(self) -> None:
        """The host boots: tasks are gone, the checkpoint does not fit, and the agent registers as new and active."""
        self.boot += 1
        self.tasks.clear()
        old = self.latest
        self.latest = None
        self.listed = list(self.file)
        self.up = True
        self.register()
        self.foreign.discard(old or "")
        # It takes jobs again by itself, until the reconciler has seen it.
        self.acknowledged.clear()

    def node_acts(self) -> None:
        """The next part of an order. A cut between two parts is no more than the pause before the next one."""
        order = self.order
        if order is None or (self.answer and self.answer["id"] == order["id"]):
            return
        if order.get("withdrawn") and self.place == 0:
            self.answer = {"id": order["id"], "state": "failed", "error": "withdrawn"}
            return
        if order["kind"] == "reset":
            self.mend(order["gpus"][0])
            self.answer = {"id": order["id"], "state": "done", "end_boot_id": str(self.boot)}
            return
        if self.place == 0:
            if self.tasks or self.latest not in (order["agent_id"], None):
                self.answer = {"id": order["id"], "state": "failed", "error": "it has tasks, or another id"}
                return
            self.up = False
        elif self.place == 1:
            self.latest = None
        elif self.place == 2:
            self.file = list(order["gpus"])
        else:
            if set(self.file) != set(self.listed) and self.tasks:
                self.wrong.append(f"the agent was started with another list under {sorted(self.tasks)}")
            old = order["agent_id"]
            self.up, self.listed = True, list(self.file)
            if order.get("reboot"):
                self.reboot()
            else:
                self.register()
            if old in self.foreign:
                # A drain of others has to go over to the new agent.
                self.foreign.discard(old)
                self.foreign.add(str(self.latest))
            self.answer = {"id": order["id"], "state": "done", "end_boot_id": str(self.boot)}
            self.place = 0
            return
        self.place += 1

    # Others.

    def others_drain(self) -> None:
        for name, row in self.master.items():
            row.update(state="draining", grace_s=FOREIGN_GRACE, drain_since=self.now)
            self.foreign.add(name)
        self.look_at_drain()

    def others_deactivate(self) -> None:
        for name, row in self.master.items():
            if row["state"] == "active":
                row["state"] = "deactivated"
                self.foreign.add(name)

    def others_reactivate(self) -> None:
        for name, row in self.master.items():
            if row["state"] in ("deactivated", "drained"):
                row.update(state="active", grace_s=None, drain_since=None)
                self.foreign.discard(name)
                self.acknowledged.clear()

    # The reconciler.

    def clear(self, uuid: str | None) -> None:
        """An operator says that a GPU, or the node, is mended. The node forgets its faults and finds them again."""
        for gpu in self.uuids if uuid is None else [uuid]:
            self.mend(gpu)
        self.memory = reconcile.clear(self.memory, uuid)
        self.write()

    def write(self) -> None:
        self.written = json.dumps(lasting(self.memory))

    def restart(self) -> None:
        self.memory = {**reconcile.empty("n1"), **json.loads(self.written)}

    def round(self, kill: str = "") -> Step | None:
        """One turn of the driver; `kill` is begin or call: after which of them it is killed. Or the master does not
        answer: unheard if nothing came of the call, unanswered if it was done."""
        node = self.node()
        before = lasting(self.memory)
        self.memory = reconcile.observe(self.memory, node, self.policy, self.now)
        if lasting(self.memory) != before:
            self.write()
        decision = reconcile.decide(self.memory, node, self.policy, self.now)
        decision = reconcile.hold_back(decision, self.memory, self.policy, self.held, self.now)
        step = decision.step
        if step is None:
            return None
        is_new = step.kind in ("deactivate", "drain") or (step.kind == "order" and not self.memory["order"])
        if self.held and is_new and not (isinstance(step, MesosStep) and step.for_others):
            self.wrong.append(f"{step.kind} while the breaker holds")
        self.memory = reconcile.begin(self.memory, step, self.now)
        self.write()
        self.log.append(step.kind)
        if kill == "begin":
            raise Killed
        error = "timed out" if kill == "unheard" else self.perform(step)
        if kill == "call":
            raise Killed
        silent = kill.startswith("un")
        self.memory = reconcile.end(self.memory, "timed out" if silent else error, self.now, refused=not silent)
        self.write()
        return step

    def perform(self, step: Step) -> str | None:
        if step.kind in ("order", "withdraw"):
            order = copy.deepcopy(self.memory["order"])
            if self.order is None or self.order["id"] != order["id"]:
                self.place = 0
            self.order = order
            return None
        if step.kind in ("settle", "close"):
            return None
        assert isinstance(step, MesosStep)
        row = self.master.get(step.agent_id)
        if row is None:
            return "no such agent"
        if step.kind == "deactivate":
            if row["state"] == "active":
                row["state"] = "deactivated"
            # What is fatal now, and told, is fenced from here on.
            self.acknowledged |= self.fatal if self.session else set()
        elif step.kind == "drain":
            if step.agent_id in self.foreign and not step.for_others:
                self.wrong.append(f"drain over somebody else's of {step.agent_id}")
            if self.scheduled:
                return "in the maintenance schedule"
            row.update(state="draining", grace_s=step.grace_s, drain_since=self.now)
            self.tasks.clear()
            self.look_at_drain()
        else:
            if row["state"] == "draining":
                return "still in the DRAINING state"
            if step.agent_id in self.foreign:
                self.wrong.append(f"{step.agent_id} was taken out by others and was brought back")
            row.update(state="active", grace_s=None, drain_since=None)
        return None

    def settle(self, turns: int = 60, seconds: float = 20.0) -> None:
        """Nothing new happens, and time passes."""
        for _turn in range(turns):
            self.now += seconds
            self.round()
            self.node_acts()
