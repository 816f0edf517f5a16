# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a node from earlier, and how what is seen and done changes it, with every scheduler. Plain JSON; see
`empty`. A scheduler keeps more besides; see `Plan`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.gpus import look
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy, Step

SCHEMA = 1


def empty(host: str) -> dict[str, Any]:
    """The memory of a node of which nothing is known."""
    return {
        "schema": SCHEMA,
        "host": host,
        "number": 0,
        # Whether it ever published, and since when it does not.
        "known": False,
        "silent": None,
        # Since when the scheduler does not know it.
        "absent": None,
        # UUID -> since when the GPU is seen well.
        "well": {},
        "order": None,
        "failed": None,
        # Since when the node is fenced, and for what.
        "fenced": None,
        # UUID -> {resets, reboots, at, quarantine, cleared}.
        "gpus": {},
        "intent": None,
    }


def lasting(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be written down when it changes. Timers are not: they may begin anew after a restart."""
    return {key: value for key, value in memory.items() if key not in ("well", "silent", "absent")}


def observe(memory: Mapping[str, Any], node: Node, policy: Policy, now: float) -> dict[str, Any]:
    """The memory with what the node publishes now. No evidence, such as a node without a session, changes no GPU."""
    new = copy.deepcopy(dict(memory))
    _set_back(new, now)
    new["silent"] = None if node.verdict is not None or node.problem else new["silent"] or now
    new["absent"] = None if node.row is not None else new["absent"] or now
    if node.verdict is not None:
        new["known"] = True
        gpus = look(node.verdict, new["gpus"], policy, now)
        new["well"] = {uuid: new["well"].get(uuid, now) for uuid in gpus.well}
        for uuid in gpus.beyond:
            new["gpus"].setdefault(uuid, {"resets": 0, "reboots": 0, "at": now})["quarantine"] = True
        _forget(new, policy, now)
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


def is_sent_again(memory: Mapping[str, Any], step: Step) -> bool:
    """Whether the step repeats an order that the node was sent, or may have been."""
    order = memory["order"]
    return order is not None and (step.kind == "order" or (step.kind == "withdraw" and bool(order.get("withdrawn"))))


def begin(memory: Mapping[str, Any], step: Step, now: float) -> dict[str, Any]:
    """See `Plan.begin`."""
    new = copy.deepcopy(dict(memory))
    again = is_sent_again(memory, step)
    if not again:
        new["number"] += 1
    if new["failed"] and new["failed"]["what"] == step.kind:
        new["failed"] = None
    if step.fences and new["fenced"] is None:
        new["fenced"] = {"at": now, "why": step.why}
    if step.kind == "order" and not again and step.order is not None:
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
    """See `Plan.end`."""
    new = copy.deepcopy(dict(memory))
    step = new["intent"]["step"]
    new["intent"] = None
    kind = step["kind"]
    if error is not None:
        new["failed"] = {"what": kind, "why": error, "at": now}
    elif kind == "close":
        new["fenced"] = None
    elif kind in ("order", "withdraw"):
        new["order"]["sent"] = kind
    elif kind == "settle":
        new["order"] = None
        answer = step["evidence"]["answer"]
        if answer["state"] == "failed":
            new["failed"] = {"what": "order", "why": str(answer.get("error", "no reason")), "at": now}
    return new


def clear(memory: Mapping[str, Any], uuid: str | None, now: float, bad: Iterable[str] = ()) -> dict[str, Any]:
    """See `Plan.clear`: counts, quarantine and failures are over. `bad` are GPUs that have no counts.

    The verdict that is known is from before: as after a repair of ours, a GPU has `proof_s` until it must be well.
    """
    new = copy.deepcopy(dict(memory))
    for key in [*new["gpus"], *bad] if uuid is None else [uuid]:
        # One that is known by its address alone has no counts.
        if ":" not in key:
            new["gpus"][key] = {"resets": 0, "reboots": 0, "at": now, "cleared": True}
    new["failed"] = None
    if uuid is None and new["order"] and new["order"].get("withdrawn"):
        # Its node will not answer any more, or the operator would not ask.
        new["order"] = None
    return new
