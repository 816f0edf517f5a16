# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a Mesos agent from earlier, besides what core/memory.py keeps.

Mesos does not say who drained or deactivated an agent. So what is ours is written down before the call, and told from
a drain of another operator's by when it began and by its grace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import agent_id_shape, agent_id_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    Shape,
    flag,
    list_of,
    mapping_of,
    number,
    object_of,
    one_of,
    or_null,
    text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import memory as core_memory
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy, Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.shapes import Agent, MesosStep

# How far the clocks of two masters may be apart, in seconds, when the start of a drain is compared with our post.
SKEW_S = 30.0
# A call that was cut may be with the master for so long, in seconds.
IN_FLIGHT_S = 15.0
CALLS = ("deactivate", "drain", "reactivate")


def empty(host: str) -> dict[str, Any]:
    """The memory of an agent of which nothing is known."""
    return {
        **core_memory.empty(host),
        # Agent id -> {how: deactivate|drain, from, to, grace_s}: taken out by us.
        "ours": {},
        # Agents that gave their place to a new id, and may be listed for a while.
        "retired": [],
        # How others took out an agent that is about to give its place to the next id: {how, grace_s, boot_id};
        # the boot in which the next id was first registered is known once the order is done.
        "carry": None,
        # The agent that others have taken out, as long as it is the one that Mesos knew last: {agent_id}.
        "foreign": None,
    }


def _no_more(value: Any, where: str) -> Any:
    raise Malformed(f"{where} is nested too deeply")


def _taken_out(depth: int) -> Shape:
    before = _taken_out(depth - 1) if depth else _no_more
    return object_of(
        {"how": one_of("deactivate", "drain"), "from": number(0), "to": number(0), "grace_s": number(0)},
        {"before": or_null(before)},
        keep=True,
    )


SHAPES: dict[str, Shape] = {
    "ours": mapping_of(agent_id_text, _taken_out(6)),
    "retired": list_of(agent_id_shape),
    "carry": or_null(
        object_of({"how": one_of("deactivate", "drain"), "grace_s": number(0), "boot_id": or_null(text())}, keep=True)
    ),
    "foreign": or_null(object_of({"agent_id": agent_id_text}, keep=True)),
}
STEP_SHAPES: dict[str, Shape] = {"for_others": flag, "agent_id": agent_id_shape, "grace_s": number(0)}


def observe(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> dict[str, Any]:
    """The memory with what is seen now. No evidence, such as a node without a session, changes no GPU."""
    new = core_memory.observe(memory, node, policy, now)
    agent: Agent | None = node.row
    boot_id = node.verdict.get("boot_id") if node.verdict is not None else None
    if node.verdict is not None and new["carry"] and new["carry"]["boot_id"] not in (None, boot_id):
        # A host that booted has an agent that nobody took out, as it would have without us.
        new["carry"] = None
    if agent is None:
        return new
    _resume(new, agent, now)
    if agent.id not in new["retired"]:
        # Registered anew, the old id is over for good.
        new["retired"] = []
    new["ours"] = {key: row for key, row in new["ours"].items() if key == agent.id}
    if agent.state == "active" and not open_intent(new, "deactivate", "drain"):
        # Whoever brought it back: what happens to it from now on is not of our making.
        new["ours"].pop(agent.id, None)
    others = agent.state != "active" and not is_ours(new, agent)
    new["foreign"] = {"agent_id": agent.id} if others else None
    order = new["order"]
    if order is None and agent.id not in new["retired"] and agent.state != "active":
        # Whoever took out the agent that came after has his way with it.
        new["carry"] = None
    if order and order["agent_id"] == agent.id:
        how = "deactivate" if agent.state == "deactivated" else "drain"
        new["carry"] = {"how": how, "grace_s": agent.grace_s or 0, "boot_id": None} if others else None
    return new


def _resume(new: dict[str, Any], agent: Agent, now: float) -> None:
    """A call that was cut: what is seen of the agent tells whether it was made."""
    intent = new["intent"]
    if intent is None:
        return
    step, state = intent["step"], agent.state
    kind = step["kind"]
    if kind in ("settle", "close") or (kind in CALLS and step["agent_id"] != agent.id):
        new["intent"] = None
    elif kind in ("deactivate", "drain"):
        made = state in ("draining", "drained") or (kind == "deactivate" and state == "deactivated")
        if made or now - intent["at"] >= IN_FLIGHT_S:
            new.update(end(new, None if made else "it was interrupted", now, refused=True))
    elif kind == "reactivate" and (state == "active" or now - intent["at"] >= IN_FLIGHT_S):
        new.update(end(new, None if state == "active" else "it was interrupted", now, refused=True))


def open_intent(memory: Mapping[str, Any], *kinds: str) -> bool:
    """Whether a step of these kinds was begun and not ended."""
    return memory["intent"] is not None and memory["intent"]["step"]["kind"] in kinds


def foreign_drain(memory: Mapping[str, Any], agent: Agent) -> bool:
    """Whether the agent is drained, and the drain that Mesos tells of is not the one that we posted."""
    if agent.state not in ("draining", "drained"):
        return False
    row = memory["ours"].get(agent.id)
    if row is None or row["how"] != "drain" or agent.grace_s != row["grace_s"]:
        return True
    began = agent.drain_since
    return began is not None and not row["from"] - SKEW_S <= began <= row["to"] + SKEW_S


def is_ours(memory: Mapping[str, Any], agent: Agent) -> bool:
    """Whether we took this agent out, and nobody else did since."""
    return agent.id in memory["ours"] and not foreign_drain(memory, agent)


def begin(memory: Mapping[str, Any], step: Step, now: float) -> dict[str, Any]:
    """See `Plan.begin`."""
    new = core_memory.begin(memory, step, now)
    if isinstance(step, MesosStep):
        if step.fences and memory["fenced"] is None:
            new["fenced"]["agent_id"] = step.agent_id
        if step.kind in ("deactivate", "drain") and not step.for_others:
            before = new["ours"].get(step.agent_id)
            row = {"how": step.kind, "from": now, "to": now, "grace_s": step.grace_s, "before": before}
            if before is not None and before["how"] == step.kind:
                row.update({key: before[key] for key in ("from", "before")})
            new["ours"][step.agent_id] = row
    return new


def end(memory: Mapping[str, Any], error: str | None, now: float, refused: bool = False) -> dict[str, Any]:
    """See `Plan.end`."""
    new = core_memory.end(memory, error, now, refused)
    step = memory["intent"]["step"]
    kind, agent_id = step["kind"], step.get("agent_id", "")
    if error is not None:
        if refused and kind in ("deactivate", "drain") and agent_id in new["ours"]:
            # What others do later must not count as ours.
            before = new["ours"].pop(agent_id)["before"]
            if before is not None:
                new["ours"][agent_id] = before
        if refused and kind == "deactivate" and not new["ours"]:
            new["fenced"] = None
        if not refused and kind in CALLS:
            # The master may still do it, as after a cut.
            new["intent"] = memory["intent"]
        return new
    if step["for_others"]:
        new.update(carry=None, fenced=None)
    if kind == "reactivate":
        new["ours"].pop(agent_id, None)
        new["fenced"] = None
    if kind == "settle":
        _settle(new, step["order"], step["evidence"]["answer"])
    return new


def _settle(new: dict[str, Any], order: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    if answer["state"] == "failed":
        new["carry"] = None
        return
    if new["carry"]:
        new["carry"]["boot_id"] = answer.get("end_boot_id")
    if order["kind"] == "replace":
        new["retired"] = [*new["retired"], *([order["agent_id"]] if order["agent_id"] else [])]
        new["ours"].pop(order["agent_id"], None)


def clear(memory: Mapping[str, Any], uuid: str | None, now: float = 0.0) -> dict[str, Any]:
    """See `Plan.clear`."""
    return core_memory.clear(memory, uuid, now)
