# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about one Mesos agent, from what its node publishes, what Mesos says of it, and what was done so far.

The way of a node: `deactivate`, so that nothing new lands while the jobs of the healthy GPUs end; `drain` once it is
empty; an `order` to the node, which stops the agent, lists other GPUs, takes its checkpoint away and starts it; the
agent comes back under a new id. See core/scheduler.py for how these functions are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Decision, Node, Policy, Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.gpus import UNREGISTERED, Gpus, look
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.memory import (
    SHAPES,
    STEP_SHAPES,
    begin,
    clear,
    empty,
    end,
    foreign_drain,
    is_ours,
    observe,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.shapes import KINDS, Agent, MesosStep

__all__ = [
    "KINDS",
    "SHAPES",
    "STEP_SHAPES",
    "begin",
    "clear",
    "closing",
    "decide",
    "empty",
    "end",
    "fences",
    "hold_back",
    "observe",
    "stage",
]

# A drain whose last framework left before it acknowledged stays DRAINING; posted again it ends.
STICKY_S = 10.0
# A fence that failed is tried again after so many seconds.
FENCE_RETRY_S = 1.0


def decide(memory: Mapping[str, Any], node: Node, policy: Policy, now: float = 0.0) -> Decision:
    """See `Plan.decide`."""
    return replace(_decide(memory, node, policy, now), fails=_fails(memory, node, policy, now))


def hold_back(
    decision: Decision, memory: Mapping[str, Any], policy: Policy, held: str = "", now: float = 0.0
) -> Decision:
    """See `Plan.hold_back`."""
    step = decision.step
    if not isinstance(step, MesosStep):
        return decision
    kind, failed = step.kind, memory["failed"]
    patience = FENCE_RETRY_S if kind == "deactivate" else policy.retry_s
    if failed and failed["what"] == kind and now - failed["at"] < patience:
        return Decision(None, f"{kind} failed ({failed['why']}); tried again after {patience:g} s")
    begins = kind in ("deactivate", "drain", "order") and not step.for_others
    if held and begins and not (kind == "order" and memory["order"]):
        return Decision(None, f"{kind} is held back: {held}")
    return decision


def closing(_memory: Mapping[str, Any], _node: Node, _decision: Decision) -> Step | None:
    """See `Plan.closing`. Mesos takes an order for one agent."""
    return None


def stage(memory: Mapping[str, Any]) -> str:
    """See `Plan.stage`."""
    ours = sorted(row["how"] for row in memory["ours"].values())
    return {"deactivate": "deactivated", "drain": "draining"}[ours[-1]] if ours else ""


def fences(memory: Mapping[str, Any], _node: Node | None) -> list[tuple[str, str]]:
    """See `Plan.fences`."""
    ours = sorted(row["how"] for row in memory["ours"].values())
    return [("", "order" if memory["order"] else ours[-1] if ours else "close")]


def _decide(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> Decision:
    agent: Agent | None = node.row
    if memory["order"]:
        return _with_order(memory, node)
    if agent is None:
        return _unregistered(memory, node, policy, now)
    if agent.id in memory["retired"]:
        return Decision(None, f"agent {agent.id} was replaced by a new one, which has not registered yet")
    if memory["carry"] and agent.state == "active":
        carry, why = memory["carry"], "another client took out the agent before this one"
        if carry["boot_id"] is not None and node.verdict is None:
            return Decision(None, f"{why}; whether the host has booted since is not known")
        return Decision(MesosStep(carry["how"], why, None, {}, agent.id, int(carry["grace_s"]), for_others=True))
    if node.verdict is None:
        return _silent(memory, agent, policy, now)
    gpus = look(node.verdict, agent, memory["gpus"], memory["well"], policy, now)
    return _by_state(memory, node, agent, gpus, policy, now)


def _with_order(memory: Mapping[str, Any], node: Node) -> Decision:
    order = memory["order"]
    agent: Agent | None = node.row
    answer = (node.verdict or {}).get("order") or {}
    if answer.get("id") == order["id"] and answer.get("state") in ("done", "failed"):
        evidence = {"order": order, "answer": dict(answer)}
        return Decision(
            MesosStep("settle", f"the node has answered {answer['state']}", order, evidence, order["agent_id"])
        )
    if order["kind"] == "replace" and agent is not None and not order.get("withdrawn"):
        if agent.id != order["agent_id"]:
            fence = _new_agent(node, agent, order)
            if fence is not None:
                return Decision(fence)
        elif agent.tasks or agent.state == "active" or foreign_drain(memory, agent):
            why = f"agent {agent.id} is {agent.state} with {len(agent.tasks)} tasks; another client did it"
            evidence = {"tasks": list(agent.tasks)}
            return Decision(MesosStep("withdraw", why, {**order, "withdrawn": True}, evidence, agent.id))
    kind = "withdraw" if order.get("withdrawn") else "order"
    if order.get("sent") != kind:
        # It was cut between the record and the send, so perhaps it was never sent. The node takes an order once.
        return Decision(MesosStep(kind, "sent again after an interruption", order, agent_id=order["agent_id"]))
    return Decision(None, f"order {order['id']} ({order['kind']}) is with the node")


def _new_agent(node: Node, agent: Agent, order: Mapping[str, Any]) -> Step | None:
    """The next agent id is there before the node has answered; a GPU that fails now is fenced all the same."""
    if node.verdict is None or agent.state != "active":
        return None
    gpus = look({**node.verdict, "listed": order["gpus"]}, agent, {})
    if not gpus.bad:
        return None
    return MesosStep("deactivate", f"fatal: {_named(gpus.bad)}", None, gpus.evidence(), agent.id)


def unregistered(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> tuple[Gpus | None, str]:
    """(the GPUs of a host whose Mesos agent cannot start with the list that it has, why it is not known to be one).

    A GPU that does not answer ends the agent as it starts, so it never registers, and nobody can drain it. Where no
    executor lives there is nothing to be drained either.
    """
    why = "suspected: no agent of this name is registered with Mesos"
    verdict = node.verdict or {}
    mesos, told = verdict.get("mesos"), verdict.get("listed")
    if not mesos or not told:
        return None, why
    agent_id, unread = mesos["agent_id"] or "", mesos.get("unread")
    agent = Agent(agent_id, UNREGISTERED, len(told))
    gpus = look(verdict, agent, memory["gpus"], memory["well"], policy, now)
    if not gpus.bad:
        return None, why
    why = f"{why}, and it lists {_named(gpus.bad)}"
    foreign = memory["foreign"] and memory["foreign"]["agent_id"] == agent_id
    for stops, text in (
        (not gpus.change, "no GPU is well"),
        (node.scheduled, "the machine is in the maintenance schedule, which others made"),
        (foreign, "another client took it out before"),
        (mesos["unit"] == "inactive", "its unit was stopped by hand, or ended because the masters have marked it gone"),
        (bool(unread), f"its host's gpu-agent cannot read {unread}; run `gpuops up --tags mesos_agent` for it"),
        (mesos["unit"] == "unknown", "the state of its unit is unknown"),
        (mesos["executors"] is None, "it is unknown whether its executors run"),
        (bool(mesos["executors"]), f"{mesos['executors']} of its executors run"),
        (memory["absent"] is None or now - memory["absent"] < policy.settle_s, "it may still register"),
    ):
        if stops:
            return None, f"{why}; {text}"
    return gpus, ""


def _fails(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> bool:
    """Whether a node that may take tasks has a fault, or fell silent where that counts as one."""
    agent: Agent | None = node.row
    if agent is None:
        return not memory["order"] and unregistered(memory, node, policy, now)[0] is not None
    if not agent.takes_jobs:
        return False
    silent = (
        node.verdict is None
        and memory["known"]
        and policy.silent == "deactivate"
        and memory["silent"] is not None
        and now - memory["silent"] >= policy.suspect_s
    )
    return silent or bool(look(node.verdict, agent, memory["gpus"]).bad)


def _unregistered(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> Decision:
    gpus, why = unregistered(memory, node, policy, now)
    if gpus is None:
        return Decision(None, why if memory["known"] else "")
    agent_id = (node.verdict or {})["mesos"]["agent_id"] or ""
    why = f"fatal: {_named(gpus.bad)}, without which the agent does not start"
    order = {"kind": "replace", "agent_id": agent_id, "gpus": gpus.wanted}
    return Decision(MesosStep("order", why, order, gpus.evidence(), agent_id, unregistered=True))


def _silent(memory: Mapping[str, Any], agent: Agent, policy: Policy, now: float) -> Decision:
    if not memory["known"]:
        return Decision()
    why = "suspected: its GPU agent has no session"
    if policy.silent != "deactivate" or agent.state != "active" or now - memory["silent"] < policy.suspect_s:
        return Decision(None, why)
    return Decision(MesosStep("deactivate", why, None, {"silent_since": memory["silent"]}, agent.id))


def _by_state(
    memory: Mapping[str, Any],
    node: Node,
    agent: Agent,
    gpus: Gpus,
    policy: Policy,
    now: float,
) -> Decision:
    state = agent.state
    if state == "active":
        return _active(memory, agent, gpus)
    if not is_ours(memory, agent):
        return Decision(None, f"agent {agent.id} is {state}; another client did it")
    if state == "draining":
        row = memory["ours"][agent.id]
        if not agent.tasks and now - row["to"] >= max(STICKY_S, row["grace_s"]):
            why = "it stays DRAINING without a task, so a framework left before it acknowledged"
            return Decision(MesosStep("drain", why, None, {}, agent.id, policy.kill_s))
        return Decision(None, f"agent {agent.id} drains: {_tasks(agent)}")
    if not gpus.change:
        if gpus.bad:
            return Decision(None, f"no GPU is well, so the agent stays out: {_named(gpus.bad)}")
        return Decision(MesosStep("reactivate", "every listed GPU is well again", None, gpus.evidence(), agent.id))
    if node.scheduled:
        return Decision(None, "the machine is in the maintenance schedule, which others made")
    if state == "deactivated":
        return _empty_it(memory, agent, gpus, policy, now)
    return _replace(memory, node, agent, gpus)


def _active(memory: Mapping[str, Any], agent: Agent, gpus: Gpus) -> Decision:
    if gpus.bad:
        why = f"fatal: {_named(gpus.bad)}"
        return Decision(MesosStep("deactivate", why, None, gpus.evidence(), agent.id))
    if gpus.change:
        why = f"the list of GPUs is to change: {gpus.change}"
        return Decision(MesosStep("deactivate", why, None, gpus.evidence(), agent.id))
    if gpus.reset:
        order = {"kind": "reset", "agent_id": agent.id, "gpus": gpus.reset}
        why = f"reset of {', '.join(gpus.reset)}, which no job can have"
        return Decision(MesosStep("order", why, order, gpus.evidence(), agent.id))
    if memory["fenced"]:
        why = f"agent {agent.id} takes jobs again, with {len(gpus.listed or ())} GPUs"
        return Decision(MesosStep("close", why, None, gpus.evidence(), agent.id))
    return Decision(None, gpus.advice_text())


def _empty_it(memory: Mapping[str, Any], agent: Agent, gpus: Gpus, policy: Policy, now: float) -> Decision:
    evidence = {**gpus.evidence(), "tasks": list(agent.tasks)}
    if not agent.tasks:
        return Decision(MesosStep("drain", "no job is left on it", None, evidence, agent.id, policy.kill_s))
    since = (memory["fenced"] or {"at": now})["at"]
    # A GPU that comes back is worth nobody's job.
    if policy.jobs == "kill" and gpus.bad and now - since >= policy.grace_s:
        why = f"its jobs had {policy.grace_s:g} s"
        return Decision(MesosStep("drain", why, None, evidence, agent.id, policy.kill_s))
    return Decision(None, f"its jobs may finish: {_tasks(agent)}")


def _replace(memory: Mapping[str, Any], node: Node, agent: Agent, gpus: Gpus) -> Decision:
    if agent.tasks:
        return Decision(None, f"agent {agent.id} is drained and Mesos still lists {_tasks(agent)}")
    order: dict[str, Any] = {"kind": "replace", "agent_id": agent.id, "gpus": gpus.wanted}
    if gpus.reboot:
        order["reboot"] = gpus.reboot
        order["boot_id"] = (node.verdict or {}).get("boot_id")
    return Decision(MesosStep("order", gpus.change, order, gpus.evidence(), agent.id))


def _tasks(agent: Agent) -> str:
    return ", ".join(agent.tasks) or "no task"


def _named(bad: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{key} ({', '.join(codes)})" for key, codes in sorted(bad.items()))
