# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about one node, from what it publishes, what Mesos says of its agent, and what was done so far.

Nothing here touches the world. Whoever drives it repeats, for every node:

    memory = observe(memory, node, policy, now)
    decision = decide(memory, node, policy, held, now)
    memory = begin(memory, decision.step, now)   written down before the step is taken
    ...                                          the step is taken
    memory = end(memory, error, now)             written down after it

Cut anywhere, it goes on from what was written: a step is safe to take twice, and what is found in Mesos and on the node
decides, not how far the one before seemed to be. Mesos does not tell who drained or deactivated an agent, so what is
ours is written down before the call, and everything else belongs to somebody else and is left as it is.

The way of a node: `deactivate`, so that nothing new lands while the jobs of the healthy GPUs end; `drain` once it is
empty; an `order` to the node, which stops the agent, lists other GPUs, takes its checkpoint away and starts it; the
agent comes back under a new id. All times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.gpus import UNREGISTERED, Gpus, look
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.memory import (
    begin,
    clear,
    empty,
    end,
    foreign_drain,
    is_ours,
    lasting,
    observe,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.shapes import Decision, Node, Policy, Step

__all__ = [
    "Decision",
    "Node",
    "Policy",
    "Step",
    "begin",
    "clear",
    "decide",
    "empty",
    "end",
    "lasting",
    "observe",
    "waits",
]

# A drain whose last framework left before it acknowledged stays DRAINING; posted again it ends.
STICKY_S = 10.0
# A fence that failed is tried again after so many seconds.
FENCE_RETRY_S = 1.0


def decide(memory: Mapping[str, Any], node: Node, policy: Policy, held: str = "", now: float = 0.0) -> Decision:
    """The next step on this node. `held` says why nothing that takes a node out may begin (the fleet breaker)."""
    decision = _decide(memory, node, policy, now)
    if decision.step is None:
        return decision
    kind, failed = decision.step.kind, memory["failed"]
    patience = FENCE_RETRY_S if kind == "deactivate" else policy.retry_s
    if failed and failed["what"] == kind and now - failed["at"] < patience:
        return Decision(None, f"{kind} failed ({failed['why']}); tried again after {patience:g} s")
    begins = kind in ("deactivate", "drain", "order") and not decision.step.for_others
    if held and begins and not (kind == "order" and memory["order"]):
        return Decision(None, f"{kind} is held back: {held}")
    return decision


def _decide(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> Decision:
    agent = node.agent
    if node.problem:
        return Decision(None, f"left as it is: {node.problem}")
    if memory["order"]:
        return _with_order(memory, node)
    if agent is None:
        return _unregistered(memory, node, policy, now)
    if agent["id"] in memory["retired"]:
        return Decision(None, f"agent {agent['id']} has given its place to a new one, which has not registered yet")
    if memory["carry"] and agent["state"] == "active":
        carry, why = memory["carry"], "somebody else had taken out the agent before this one"
        if carry["boot_id"] is not None and node.verdict is None:
            return Decision(None, f"{why}; whether the host has booted since is not known")
        return Decision(Step(carry["how"], why, agent["id"], None, int(carry["grace_s"]), {}, True))
    if node.verdict is None:
        return _silent(memory, agent, policy, now)
    gpus = look(node.verdict, agent, memory["gpus"], memory["well"], policy, now)
    return _by_state(memory, node, agent, gpus, policy, now)


def _with_order(memory: Mapping[str, Any], node: Node) -> Decision:
    order, agent = memory["order"], node.agent
    answer = (node.verdict or {}).get("order") or {}
    if answer.get("id") == order["id"] and answer.get("state") in ("done", "failed"):
        evidence = {"order": order, "answer": dict(answer)}
        return Decision(
            Step("settle", f"the node has answered {answer['state']}", order["agent_id"], order, 0, evidence)
        )
    if order["kind"] == "replace" and agent is not None and not order.get("withdrawn"):
        if agent["id"] != order["agent_id"]:
            fence = _new_agent(node, agent, order)
            if fence is not None:
                return Decision(fence)
        elif agent["tasks"] or agent["state"] == "active" or foreign_drain(memory, agent):
            why = f"agent {agent['id']} is {agent['state']} with {len(agent['tasks'])} tasks, and not by us"
            evidence = {"tasks": list(agent["tasks"])}
            return Decision(Step("withdraw", why, agent["id"], {**order, "withdrawn": True}, 0, evidence))
    kind = "withdraw" if order.get("withdrawn") else "order"
    if order.get("sent") != kind:
        # It was cut between the record and the send, so perhaps it was never sent. The node takes an order once.
        return Decision(Step(kind, "sent again after a cut", order["agent_id"], order))
    return Decision(None, f"order {order['id']} ({order['kind']}) is with the node")


def _new_agent(node: Node, agent: Mapping[str, Any], order: Mapping[str, Any]) -> Step | None:
    """The next agent id is there before the node has answered; a GPU that fails now is fenced all the same."""
    if node.verdict is None or agent["state"] != "active":
        return None
    gpus = look({**node.verdict, "listed": order["gpus"]}, agent, {})
    if not gpus.bad:
        return None
    return Step("deactivate", f"fatal: {_named(gpus.bad)}", agent["id"], None, 0, gpus.evidence())


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
    agent: dict[str, Any] = {"id": agent_id, "state": UNREGISTERED, "resources": {"gpus": len(told)}, "tasks": []}
    gpus = look(verdict, agent, memory["gpus"], memory["well"], policy, now)
    if not gpus.bad:
        return None, why
    why = f"{why}, and it lists {_named(gpus.bad)}"
    foreign = memory["foreign"] and memory["foreign"]["agent_id"] == agent_id
    for stops, text in (
        (not gpus.change, "no GPU is well"),
        (node.scheduled, "the machine is in the maintenance schedule, which others made"),
        (foreign, "somebody else had taken it out before"),
        (mesos["unit"] == "inactive", "its unit was stopped by somebody, or ended as the masters have marked it gone"),
        (bool(unread), f"its host's gpu-agent cannot read {unread}; run `gpuops up --tags mesos_agent` for it"),
        (mesos["unit"] == "unknown", "how its unit stands is not known"),
        (mesos["executors"] is None, "whether jobs of it live is not known"),
        (bool(mesos["executors"]), f"{mesos['executors']} executors of it live"),
        (memory["absent"] is None or now - memory["absent"] < policy.settle_s, "it may still come"),
    ):
        if stops:
            return None, f"{why}; {text}"
    return gpus, ""


def waits(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> bool:
    """Whether a node that nobody has fenced is to be."""
    if node.agent is None:
        return not memory["order"] and unregistered(memory, node, policy, now)[0] is not None
    if node.agent["state"] != "active":
        return False
    silent = (
        node.verdict is None
        and memory["known"]
        and policy.silent == "deactivate"
        and memory["silent"] is not None
        and now - memory["silent"] >= policy.suspect_s
    )
    return silent or bool(look(node.verdict, node.agent, memory["gpus"]).bad)


def _unregistered(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> Decision:
    gpus, why = unregistered(memory, node, policy, now)
    if gpus is None:
        return Decision(None, why if memory["known"] else "")
    agent_id = (node.verdict or {})["mesos"]["agent_id"] or ""
    why = f"fatal: {_named(gpus.bad)}, without which the agent does not start"
    order = {"kind": "replace", "agent_id": agent_id, "gpus": gpus.wanted}
    return Decision(Step("order", why, agent_id, order, 0, gpus.evidence(), unregistered=True))


def _silent(memory: Mapping[str, Any], agent: Mapping[str, Any], policy: Policy, now: float) -> Decision:
    if not memory["known"]:
        return Decision()
    why = "suspected: its GPU agent has no session"
    if policy.silent != "deactivate" or agent["state"] != "active" or now - memory["silent"] < policy.suspect_s:
        return Decision(None, why)
    return Decision(Step("deactivate", why, agent["id"], None, 0, {"silent_since": memory["silent"]}))


def _by_state(
    memory: Mapping[str, Any],
    node: Node,
    agent: Mapping[str, Any],
    gpus: Gpus,
    policy: Policy,
    now: float,
) -> Decision:
    state = agent["state"]
    if state == "active":
        return _active(memory, agent, gpus)
    if not is_ours(memory, agent):
        return Decision(None, f"agent {agent['id']} is {state}, and not by us")
    if state == "draining":
        row = memory["ours"][agent["id"]]
        if not agent["tasks"] and now - row["to"] >= max(STICKY_S, row["grace_s"]):
            why = "it stays DRAINING without a task, so a framework left before it acknowledged"
            return Decision(Step("drain", why, agent["id"], None, policy.kill_s))
        return Decision(None, f"agent {agent['id']} drains: {_tasks(agent)}")
    if not gpus.change:
        if gpus.bad:
            return Decision(None, f"no GPU is well, so the agent stays out: {_named(gpus.bad)}")
        return Decision(Step("reactivate", "every listed GPU is well again", agent["id"], None, 0, gpus.evidence()))
    if node.scheduled:
        return Decision(None, "the machine is in the maintenance schedule, which others made")
    if state == "deactivated":
        return _empty_it(memory, agent, gpus, policy, now)
    return _replace(memory, node, agent, gpus)


def _active(memory: Mapping[str, Any], agent: Mapping[str, Any], gpus: Gpus) -> Decision:
    if gpus.bad:
        why = f"fatal: {_named(gpus.bad)}"
        return Decision(Step("deactivate", why, agent["id"], None, 0, gpus.evidence()))
    if gpus.change:
        why = f"the list of GPUs is to change: {gpus.change}"
        return Decision(Step("deactivate", why, agent["id"], None, 0, gpus.evidence()))
    if gpus.reset:
        order = {"kind": "reset", "agent_id": agent["id"], "gpus": gpus.reset}
        why = f"reset of {', '.join(gpus.reset)}, which no job can have"
        return Decision(Step("order", why, agent["id"], order, 0, gpus.evidence()))
    if memory["fenced"]:
        why = f"agent {agent['id']} takes jobs again, with {len(gpus.listed or ())} GPUs"
        return Decision(Step("close", why, agent["id"], None, 0, gpus.evidence()))
    return Decision(None, gpus.advice_text())


def _empty_it(memory: Mapping[str, Any], agent: Mapping[str, Any], gpus: Gpus, policy: Policy, now: float) -> Decision:
    evidence = {**gpus.evidence(), "tasks": list(agent["tasks"])}
    if not agent["tasks"]:
        return Decision(Step("drain", "no job is left on it", agent["id"], None, policy.kill_s, evidence))
    since = (memory["fenced"] or {"at": now})["at"]
    # A GPU that comes back is worth nobody's job.
    if policy.jobs == "kill" and gpus.bad and now - since >= policy.grace_s:
        why = f"its jobs had {policy.grace_s:g} s"
        return Decision(Step("drain", why, agent["id"], None, policy.kill_s, evidence))
    return Decision(None, f"its jobs may finish: {_tasks(agent)}")


def _replace(memory: Mapping[str, Any], node: Node, agent: Mapping[str, Any], gpus: Gpus) -> Decision:
    if agent["tasks"]:
        return Decision(None, f"agent {agent['id']} is drained and Mesos still lists {_tasks(agent)}")
    order: dict[str, Any] = {"kind": "replace", "agent_id": agent["id"], "gpus": gpus.wanted}
    if gpus.reboot:
        order["reboot"] = gpus.reboot
        order["boot_id"] = (node.verdict or {}).get("boot_id")
    return Decision(Step("order", gpus.change, agent["id"], order, 0, gpus.evidence()))


def _tasks(agent: Mapping[str, Any]) -> str:
    return ", ".join(agent["tasks"]) or "no task"


def _named(bad: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{key} ({', '.join(codes)})" for key, codes in sorted(bad.items()))
