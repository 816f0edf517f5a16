# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a node from earlier, and how what is seen and done changes it. Plain JSON; see `empty`.

Mesos does not tell who drained or deactivated an agent. So what is ours is written down before the call, and told from
a drain of somebody else's by when it began and by its grace.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.gpus import look
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.shapes import FENCES, Node, Policy, Step

SCHEMA = 1
# How far the clocks of two masters may be apart, in seconds, when the start of a drain is compared with our post.
SKEW_S = 30.0
# A call that was cut may be with the master for so long, in seconds.
IN_FLIGHT_S = 15.0
CALLS = ("deactivate", "drain", "reactivate")


def empty(host: str) -> dict[str, Any]:
    """The memory of a node of which nothing is known."""
    return {
        "schema": SCHEMA,
        "host": host,
        "number": 0,
        # Whether it ever published, and since when it does not.
        "known": False,
        "silent": None,
        # Since when Mesos has no agent of it.
        "absent": None,
        # UUID -> since when the GPU is seen well.
        "well": {},
        # Agent id -> {how: deactivate|drain, from, to, grace_s}: taken out by us.
        "ours": {},
        # Agents that gave their place to a new id, and may be listed for a while.
        "retired": [],
        "order": None,
        "failed": None,
        # Since when the node is fenced, and for what.
        "fenced": None,
        # How somebody else took out an agent that is about to give its place to the next id: {how, grace_s, boot_id};
        # the boot in which the next id was first registered is known once the order is done.
        "carry": None,
        # The agent that somebody else has taken out, as long as it is the one that Mesos knew last: {agent_id}.
        "foreign": None,
        # UUID -> {resets, reboots, at, quarantine, cleared}.
        "gpus": {},
        "intent": None,
        # What is wrong with a node of Slurm; see slurm_plan.faults_of.
        "slurm": {"boot_id": None, "minors": {}, "bad": {}, "node": []},
    }


def lasting(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be written down when it changes. Timers are not: they may begin anew after a restart."""
    return {key: value for key, value in memory.items() if key not in ("well", "silent", "absent")}


def observe_verdict(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> dict[str, Any]:
    """The memory with what the node publishes now, whatever the scheduler."""
    new = copy.deepcopy(dict(memory))
    _set_back(new, now)
    new["silent"] = None if node.verdict is not None or node.problem else new["silent"] or now
    new["absent"] = None if node.agent is not None else new["absent"] or now
    if node.verdict is not None:
        new["known"] = True
        gpus = look(node.verdict, node.agent, new["gpus"], new["well"], policy, now)
        new["well"] = {uuid: new["well"].get(uuid, now) for uuid in gpus.well}
        for uuid in gpus.beyond:
            new["gpus"].setdefault(uuid, {"resets": 0, "reboots": 0, "at": now})["quarantine"] = True
        _forget(new, policy, now)
        if new["carry"] and new["carry"]["boot_id"] not in (None, node.verdict.get("boot_id")):
            # A host that booted has an agent that nobody took out, as it would have without us.
            new["carry"] = None
    return new


def observe(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> dict[str, Any]:
    """The memory with what is seen now. No evidence, such as a node without a session, changes no GPU."""
    new = observe_verdict(memory, node, policy, now)
    agent = node.agent
    if agent is None:
        return new
    _resume(new, agent, now)
    if agent["id"] not in new["retired"]:
        # Registered anew, the old id is over for good.
        new["retired"] = []
    new["ours"] = {key: row for key, row in new["ours"].items() if key == agent["id"]}
    if agent["state"] == "active" and not open_intent(new, "deactivate", "drain"):
        # Whoever brought it back: what happens to it from now on is not of our making.
        new["ours"].pop(agent["id"], None)
    others = agent["state"] != "active" and not is_ours(new, agent)
    new["foreign"] = {"agent_id": agent["id"]} if others else None
    order = new["order"]
    if order is None and agent["id"] not in new["retired"] and agent["state"] != "active":
        # Whoever took out the agent that came after has his way with it.
        new["carry"] = None
    if order and order["agent_id"] == agent["id"]:
        how = "deactivate" if agent["state"] == "deactivated" else "drain"
        new["carry"] = {"how": how, "grace_s": agent["grace_s"] or 0, "boot_id": None} if others else None
    return new


def _set_back(new: dict[str, Any], now: float) -> None:
    """After the clock was set back, what seems to lie ahead counts from now on, and is not waited for until then."""
    for name in ("silent", "absent"):
        if new[name] is not None:
            new[name] = min(new[name], now)
    new["well"] = {uuid: min(since, now) for uuid, since in new["well"].items()}
    for row in (new["failed"], new["fenced"], new["intent"], *new["gpus"].values()):
        if row:
            row["at"] = min(row["at"], now)


def _forget(new: dict[str, Any], policy: Policy, now: float) -> None:
    """Counts of repairs that held are dropped; a GPU in quarantine waits for an operator."""
    for uuid, row in list(new["gpus"].items()):
        since = new["well"].get(uuid)
        if not row.get("quarantine") and since is not None and now - max(row["at"], since) >= policy.forget_s:
            del new["gpus"][uuid]


def _resume(new: dict[str, Any], agent: Mapping[str, Any], now: float) -> None:
    """A call that was cut: what is seen of the agent tells whether it was made."""
    intent = new["intent"]
    if intent is None:
        return
    step, state = intent["step"], agent["state"]
    kind = step["kind"]
    if kind in ("settle", "close") or (kind in CALLS and step["agent_id"] != agent["id"]):
        new["intent"] = None
    elif kind in ("deactivate", "drain"):
        made = state in ("draining", "drained") or (kind == "deactivate" and state == "deactivated")
        if made or now - intent["at"] >= IN_FLIGHT_S:
            new.update(end(new, None if made else "it was cut", now, refused=True))
    elif kind == "reactivate" and (state == "active" or now - intent["at"] >= IN_FLIGHT_S):
        new.update(end(new, None if state == "active" else "it was cut", now, refused=True))


def open_intent(memory: Mapping[str, Any], *kinds: str) -> bool:
    """Whether a step of these kinds was begun and not ended."""
    return memory["intent"] is not None and memory["intent"]["step"]["kind"] in kinds


def foreign_drain(memory: Mapping[str, Any], agent: Mapping[str, Any]) -> bool:
    """Whether the agent is drained, and the drain that Mesos tells of is not the one that we posted."""
    if agent["state"] not in ("draining", "drained"):
        return False
    row = memory["ours"].get(agent["id"])
    if row is None or row["how"] != "drain" or agent.get("grace_s") != row["grace_s"]:
        return True
    began = agent.get("drain_since")
    return began is not None and not row["from"] - SKEW_S <= began <= row["to"] + SKEW_S


def is_ours(memory: Mapping[str, Any], agent: Mapping[str, Any]) -> bool:
    """Whether we took this agent out, and nobody else did since."""
    return agent["id"] in memory["ours"] and not foreign_drain(memory, agent)


def begin(memory: Mapping[str, Any], step: Step, now: float) -> dict[str, Any]:
    """The memory to write down before the step is taken. Cut after it, the step may or may not have been taken."""
    new = copy.deepcopy(dict(memory))
    order = new["order"]
    resent = order is not None and (step.kind == "order" or (step.kind == "withdraw" and order.get("withdrawn")))
    if not resent:
        new["number"] += 1
    if new["failed"] and new["failed"]["what"] == step.kind:
        new["failed"] = None
    if step.kind in ("deactivate", "drain") and not step.for_others:
        before = new["ours"].get(step.agent_id)
        row = {"how": step.kind, "from": now, "to": now, "grace_s": step.grace_s, "before": before}
        if before is not None and before["how"] == step.kind:
            row.update({key: before[key] for key in ("from", "before")})
        new["ours"][step.agent_id] = row
    takes_out = step.kind in FENCES or (step.kind == "order" and step.unregistered)
    if takes_out and new["fenced"] is None and not step.for_others:
        new["fenced"] = {"at": now, "agent_id": step.agent_id, "why": step.why}
    if step.kind == "order" and not resent and step.order is not None:
        new["order"] = {**step.order, "id": f"{new['host']}-{new['number']}-{now:.0f}", "at": now}
        _count_repairs(new, new["order"], now)
    if step.kind == "withdraw" and new["order"] is not None:
        new["order"]["withdrawn"] = True
    told = {**step.told(), **({"order": new["order"]} if step.kind in ("order", "withdraw") else {})}
    new["intent"] = {"number": new["number"], "at": now, "step": told}
    return new


def _count_repairs(new: dict[str, Any], order: Mapping[str, Any], now: float) -> None:
    """Counted when they begin: one that is cut may have happened."""
    kinds = (("resets", order["gpus"] if order["kind"] == "reset" else ()), ("reboots", order.get("reboot", ())))
    for name, uuids in kinds:
        for uuid in uuids:
            row = new["gpus"].setdefault(uuid, {"resets": 0, "reboots": 0, "at": now})
            row[name] += 1
            row["at"] = now


def end(memory: Mapping[str, Any], error: str | None, now: float, refused: bool = False) -> dict[str, Any]:
    """The memory to write down after the step. `error` is why it failed; `refused`: nothing can have come of it."""
    new = copy.deepcopy(dict(memory))
    step = new["intent"]["step"]
    new["intent"] = None
    kind, agent_id = step["kind"], step.get("agent_id", "")
    if error is not None:
        new["failed"] = {"what": kind, "why": error, "at": now}
        if refused and kind in ("deactivate", "drain") and agent_id in new["ours"]:
            # What somebody else does later must not count as ours.
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
    if kind == "close":
        new["fenced"] = None
    if kind in ("order", "withdraw"):
        new["order"]["sent"] = kind
    if kind == "settle":
        _settle(new, step["order"], step["evidence"]["answer"], now)
    return new


def _settle(new: dict[str, Any], order: Mapping[str, Any], answer: Mapping[str, Any], now: float) -> None:
    new["order"] = None
    if answer["state"] == "failed":
        new["failed"] = {"what": "order", "why": str(answer.get("error", "no reason")), "at": now}
        new["carry"] = None
        return
    if new["carry"]:
        new["carry"]["boot_id"] = answer.get("end_boot_id")
    if order["kind"] == "replace":
        new["retired"] = [*new["retired"], *([order["agent_id"]] if order["agent_id"] else [])]
        new["ours"].pop(order["agent_id"], None)


def clear(memory: Mapping[str, Any], uuid: str | None, now: float = 0.0) -> dict[str, Any]:
    """An operator says that a GPU, or all of the node, was mended: counts, quarantine and failures are over.

    The verdict that is known is from before: as after a repair of ours, a GPU has `proof_s` until it must be well.
    """
    new = copy.deepcopy(dict(memory))
    for key in [*new["gpus"], *new["slurm"]["bad"]] if uuid is None else [uuid]:
        # One that is known by its address alone has no counts.
        if ":" not in key:
            new["gpus"][key] = {"resets": 0, "reboots": 0, "at": now, "cleared": True}
    new["failed"] = None
    if uuid is None and new["order"] and new["order"].get("withdrawn"):
        # Its node will not answer any more, or the operator would not ask.
        new["order"] = None
    return new
