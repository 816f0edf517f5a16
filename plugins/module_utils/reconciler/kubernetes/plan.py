# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about one node of Kubernetes. Pure; the driver takes the steps one by one.

The node itself withholds a GPU with a fatal verdict, at once. So a fault of one GPU needs no cordon:

    hold         the node withholds the GPU until we release it, though its verdict be well
    release      the GPU was well for a while
    cordon       a fault of the whole host: no more pods; those that run go on
    uncordon     it is over, and the cordon is ours
    evict        a repair is due, and the pods that are in its way go elsewhere, as their disruption budgets allow
    order        the node resets the GPU, or boots

Nothing has to be remembered of a step: what is held and what is cordoned, and by whom, is in the annotations of the
node. See core/scheduler.py for how these functions are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    Shape,
    list_of,
    mapping_of,
    object_of,
    text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import gpus as core_gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import memory as core_memory
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.rows import gpu_text
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Decision, Node, Policy, Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.shapes import (
    KINDS,
    KubernetesNode,
    KubernetesStep,
    Pod,
)

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

# A step that failed is tried again after so many seconds; an eviction as often as kubectl tries it.
RETRY_S, EVICT_S = 1.0, 5.0
QUICK = {"hold": RETRY_S, "release": RETRY_S, "cordon": RETRY_S, "uncordon": RETRY_S, "evict": EVICT_S}

Memory = Mapping[str, Any]

# What is wrong with a node; see `faults_of`.
_codes = list_of(text(at_most=80))
SHAPES: dict[str, Shape] = {"kubernetes": object_of({"bad": mapping_of(gpu_text, _codes), "node": _codes})}
STEP_SHAPES: dict[str, Shape] = {}

begin, end = core_memory.begin, core_memory.end


def empty(host: str) -> dict[str, Any]:
    """See `Plan.empty`."""
    return {**core_memory.empty(host), "kubernetes": {"bad": {}, "node": []}}


def clear(memory: Memory, uuid: str | None, now: float = 0.0) -> dict[str, Any]:
    """See `Plan.clear`. A GPU that is in the host no more is forgotten; a fault that is there is seen again."""
    known = memory["kubernetes"]
    new = core_memory.clear(memory, uuid, now, known["bad"])
    kept = {} if uuid is None else {key: codes for key, codes in known["bad"].items() if key != uuid}
    return {**new, "kubernetes": {"bad": kept, "node": list(known["node"]) if uuid else []}}


def closing(_memory: Memory, _node: Node, _decision: Decision) -> Step | None:
    """See `Plan.closing`. Kubernetes takes an order for one node."""
    return None


def stage(memory: Memory) -> str:
    """See `Plan.stage`."""
    known = memory["kubernetes"]
    if not memory["fenced"] or not (known["bad"] or known["node"]):
        return ""
    return "out" if known["node"] else f"{len(known['bad'])} held back"


def fences(memory: Memory, node: Node | None) -> list[tuple[str, str]]:
    """See `Plan.fences`."""
    row: KubernetesNode | None = node.row if node else None
    if row is not None and row.ours:
        return [("", "cordon")]
    return [(uuid, "hold") for uuid in sorted(memory["kubernetes"]["bad"])] or [("", "close")]


def faults_of(known: Memory, verdict: Mapping[str, Any] | None, counts: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be known of a node's faults: {bad: GPU -> codes, node: codes of the whole host}.

    A GPU is bad until it is seen well: one that is not told of, or of which nothing is known, stays what it was.
    """
    if verdict is None:
        return dict(known)
    bad: dict[str, Any] = {}
    gpus = core_gpus.look(verdict, counts)
    for row in verdict.get("devices") or ():
        key = row.get("uuid") or row.get("pci_address") or "unknown"
        codes = gpus.fatal.get(key)
        if codes is None and counts.get(key, {}).get("quarantine"):
            codes = ["quarantine"]
        if codes is None and row["verdict"] == "unknown":
            codes = known["bad"].get(key)
        if codes is not None:
            bad[key] = list(codes)
    told_of = {row.get("uuid") for row in verdict.get("devices") or ()}
    bad.update({key: codes for key, codes in known["bad"].items() if _is_named(key) and key not in told_of})
    return {"bad": bad, "node": list(gpus.fatal.get("node", ()))}


def _is_named(key: str) -> bool:
    """Whether it is a UUID: no pod was ever given another GPU."""
    return key.startswith("GPU-")


def observe(memory: Memory, node: Node, policy: Policy, now: float) -> dict[str, Any]:
    """See `Plan.observe`."""
    new = core_memory.observe(memory, node, policy, now)
    row: KubernetesNode | None = node.row
    known = new["kubernetes"]
    new["kubernetes"] = dict(row.faults) if row and node.verdict else faults_of(known, node.verdict, new["gpus"])
    # Whatever became of a step that was cut is seen in Kubernetes.
    new["intent"] = None
    return new


def decide(memory: Memory, node: Node, policy: Policy, now: float = 0.0) -> Decision:
    """See `Plan.decide`."""
    decision = _decide(memory, node, policy, now)
    row: KubernetesNode | None = node.row
    fails = row is not None and row.takes_jobs and decision.step is not None and decision.step.fences
    return replace(decision, fails=fails)


def hold_back(decision: Decision, memory: Memory, policy: Policy, held: str = "", now: float = 0.0) -> Decision:
    """See `Plan.hold_back`. The node withholds its GPU all the same."""
    if decision.step is None:
        return decision
    kind, failed = decision.step.kind, memory["failed"]
    patience = QUICK.get(kind, policy.retry_s)
    if failed and failed["what"] == kind and now - failed["at"] < patience:
        return Decision(None, f"{kind} failed ({failed['why']}); tried again after {patience:g} s", soon=patience < 2)
    begins = (
        kind in ("cordon", "evict")
        or (kind == "hold" and not memory["fenced"])
        or (kind == "order" and not memory["order"])
    )
    return Decision(None, f"{kind} is held back: {held}") if held and begins else decision


def _decide(memory: Memory, node: Node, policy: Policy, now: float) -> Decision:
    if node.row is None:
        return Decision(None, "the API server has no node of this name") if memory["known"] else Decision()
    there: KubernetesNode = node.row
    known = memory["kubernetes"]
    bad = {key: f"{key} ({', '.join(codes)})" for key, codes in sorted(known["bad"].items())}
    whole = [", ".join(known["node"])] if known["node"] else []
    whole += [*bad.values()] if policy.gpu_fence == "drain" else []
    why = "; ".join(whole) or _silent(memory, node, policy, now)
    if why and not there.is_cordoned:
        codes = [*known["node"], *(code for codes in known["bad"].values() for code in codes), "silent"]
        return _step("cordon", why, memory, code=codes[0])
    fresh = [key for key in bad if _is_named(key) and key not in there.held]
    if fresh:
        held = {**there.held, **{key: known["bad"][key][0] for key in fresh}}
        return _step("hold", f"fatal: {'; '.join(bad[key] for key in fresh)}", memory, held=held)
    if memory["order"]:
        return _with_order(memory, node)
    advice = core_gpus.look(node.verdict, memory["gpus"], policy, now)
    repair, closed = (None, False) if there.theirs else _repair(memory, there, advice, policy, now)
    if there.ours and not why and not closed and node.verdict is not None:
        return _step("uncordon", "the fault of the whole host is over", memory)
    if repair is not None:
        return repair
    if why:
        return Decision(None, f"{'it was cordoned by another client' if there.theirs else 'it is cordoned'}: {why}")
    well = [key for key in there.held if key not in bad and _is_settled(memory, node, policy, key, now)]
    if well:
        held = {key: code for key, code in there.held.items() if key not in well}
        return _step("release", f"well again: {', '.join(sorted(well))}", memory, held=held)
    if memory["fenced"] and not bad and not there.held and not there.ours:
        return _step("close", "every GPU is given out again", memory)
    texts = [f"{text} is withheld" for text in bad.values()]
    told_of = {row.get("uuid") for row in (node.verdict or {}).get("devices") or ()}
    texts += [
        f"{key} is not reported. If it was removed: `sudo gpuops-reconciler clear {node.host}:{key}`"
        for key in bad
        if node.verdict is not None and _is_named(key) and key not in told_of
    ]
    return Decision(None, "; ".join([*texts, *filter(None, [advice.advice_text() if bad else ""])]))


def _silent(memory: Memory, node: Node, policy: Policy, now: float) -> str:
    """Why a node that has said nothing for a while is to be out; empty where it is not."""
    since = memory["silent"]
    long = since is not None and now - since >= policy.suspect_s
    return "suspected: its GPU agent is silent" if memory["known"] and long and policy.silent != "watch" else ""


def _is_settled(memory: Memory, node: Node, policy: Policy, uuid: str, now: float) -> bool:
    """Whether a GPU was well for long enough to be given out, or is in the host no more."""
    if node.verdict is None:
        return False
    since = memory["well"].get(uuid)
    if since is None:
        return uuid not in {row.get("uuid") for row in node.verdict.get("devices") or ()}
    return bool(now - since >= policy.settle_s)


# Repairs.


def _repair(
    memory: Memory, there: KubernetesNode, gpus: core_gpus.Gpus, policy: Policy, now: float
) -> tuple[Decision | None, bool]:
    """(the way to the repairs that are due and allowed, or to the end of a fatal GPU's pod; None where none is, whether
    no pod may come meanwhile)."""
    kept_out = core_gpus.quarantined(memory["gpus"])
    due = {
        kind: sorted(uuid for uuid, action in gpus.advice.items() if action == kind and uuid not in kept_out)
        for kind in ("reset_gpu", "reboot")
        if kind in policy.repairs
    }
    reset, reboot = due.get("reset_gpu", []), due.get("reboot", [])
    if there.pods is None:
        return None, False
    if policy.fatal_job == "requeue":
        bad = set(memory["kubernetes"]["bad"])
        again = [one for one in there.pods if one.gpus and one.gpus & bad and one.controller and not one.ends]
        if again:
            return _evict(memory, again, "its GPU is fatal"), False
    if reboot:
        order = {"kind": "reboot", "agent_id": "", "gpus": [], "reboot": reboot}
        return _order(memory, there, there.pods, order, f"reboot for {', '.join(reboot)}", policy, now, True), True
    if reset:
        users = [one for one in there.pods if one.gpus is None or one.gpus & set(reset)]
        # Where kubelet does not tell which pod has it, no pod with a GPU may be there.
        closed = any(one.gpus is None for one in users)
        order = {"kind": "reset", "agent_id": "", "gpus": reset}
        return _order(memory, there, users, order, f"reset of {', '.join(reset)}", policy, now, closed), closed
    return None, False


def _order(
    memory: Memory,
    there: KubernetesNode,
    pods: Sequence[Pod],
    order: Mapping[str, Any],
    why: str,
    policy: Policy,
    now: float,
    closed: bool,
) -> Decision:
    """The order, once these pods are gone. `closed`: no more may come meanwhile."""
    if closed and not there.is_cordoned:
        return _step("cordon", why, memory, code="repair")
    since = (memory["fenced"] or {"at": now})["at"]
    kill = policy.jobs == "kill" and now - since >= policy.grace_s
    evicted = [one for one in pods if not one.ends and (one.moves or kill)]
    if evicted:
        return _evict(memory, evicted, why)
    if pods:
        return Decision(None, f"{why} waits for {', '.join(one.name for one in pods)}")
    return Decision(KubernetesStep("order", why, order, _evidence(memory)))


def _evict(memory: Memory, pods: Iterable[Pod], why: str) -> Decision:
    return _step("evict", why, memory, pods=[{"name": one.name, "uid": one.uid} for one in pods])


def _with_order(memory: Memory, node: Node) -> Decision:
    order = memory["order"]
    answer = (node.verdict or {}).get("order") or {}
    if answer.get("id") == order["id"] and answer.get("state") in ("done", "failed"):
        evidence = {"order": order, "answer": dict(answer)}
        return Decision(KubernetesStep("settle", f"the node has answered {answer['state']}", order, evidence))
    if order.get("sent") != "order":
        # It was cut between the record and the send, so perhaps it was never sent. The node takes an order once.
        return Decision(KubernetesStep("order", "sent again after an interruption", order))
    return Decision(None, f"order {order['id']} ({order['kind']}) is with the node")


def _evidence(memory: Memory) -> dict[str, Any]:
    return {"bad": memory["kubernetes"]["bad"], "node": memory["kubernetes"]["node"]}


def _step(kind: str, why: str, memory: Memory, **details: Any) -> Decision:
    return Decision(KubernetesStep(kind, why, evidence=_evidence(memory), details=details))
