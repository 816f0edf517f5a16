# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do about one node of Slurm. Pure; the driver takes the steps one by one.

Slurm cannot drain one GPU. So a bad GPU is taken by a job of the operator's, the holder, and the node stays in service:

    guard        no other job starts on the node; those that run go on
    hold         holders are submitted: inside the guard where the GPU is free, else after the job that has it
    unguard      the node is open again, less the GPUs that are held
    cancel       the holders that got another GPU end
    cancel       the GPU was well for a while, and its holder ends

Where many nodes fail at once, one order drains them first (`closing`), and `resume` follows the guard of each.

The job that has a fatal GPU is left, unless the policy has it signalled, or, inside the guard, queued again.

A fault of the whole host, or of a GPU whose device file nobody knows, drains the node (`drain_node`, `resume`), and so
does every fault where the policy says so.

Nothing has to be remembered of a step: guards, holders and drains of ours have names that tell what they are, so a
step that was cut is judged by what slurmctld has. See core/scheduler.py for how these functions are used.
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
    or_null,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import memory as core_memory
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.gpus import look
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.rows import gpu_text
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Decision, Node, Policy, Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.shapes import (
    FENCES,
    KINDS,
    SlurmNode,
    SlurmStep,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import FENCE_MARK, SIGNALLED, Holder, Job

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

# A step with guards and holders that failed is tried again after so many seconds.
FENCE_RETRY_S = 1.0
# A holder is cancelled when it has run for so long: the signal that ends one comes to nothing while slurmd launches it,
# and then slurmd waits for KillWait, 30 s, before it gives the GPU back.
LAUNCH_S = 2.0
# A holder that waits in vain is submitted anew after so many seconds: one that was made before its account and its QOS
# were keeps to the limits that it was submitted with.
STUCK_S = 60.0
# A guard is renewed when it lasts for less.
GUARD_LEFT_S = 300.0

Memory = Mapping[str, Any]

# What is wrong with a node; see `faults_of`.
SHAPES: dict[str, Shape] = {
    "slurm": object_of(
        {
            "boot_id": or_null(text(at_most=100)),
            "minors": mapping_of(gpu_text, whole(0, 65535)),
            "bad": mapping_of(
                gpu_text, object_of({"codes": list_of(text(at_most=80)), "minor": or_null(whole(0, 65535))})
            ),
            "node": list_of(text(at_most=80)),
        }
    )
}
STEP_SHAPES: dict[str, Shape] = {}

begin, end = core_memory.begin, core_memory.end


def empty(host: str) -> dict[str, Any]:
    """See `Plan.empty`."""
    return {**core_memory.empty(host), "slurm": {"boot_id": None, "minors": {}, "bad": {}, "node": []}}


def clear(memory: Memory, uuid: str | None, now: float = 0.0) -> dict[str, Any]:
    """See `Plan.clear`."""
    return core_memory.clear(memory, uuid, now, memory["slurm"]["bad"])


def stage(memory: Memory) -> str:
    """See `Plan.stage`."""
    known = memory["slurm"]
    if not memory["fenced"] or not (known["bad"] or known["node"]):
        return ""
    return "out" if known["node"] else f"{len(known['bad'])} held back"


def fences(memory: Memory, node: Node | None) -> list[tuple[str, str]]:
    """See `Plan.fences`."""
    row: SlurmNode | None = node.row if node else None
    if row is not None and row.drained and row.reason.startswith(FENCE_MARK):
        return [("", "drain_node")]
    return [(uuid, "hold") for uuid in sorted(memory["slurm"]["bad"])] or [("", "close")]


def faults_of(known: Memory, verdict: Mapping[str, Any] | None, counts: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be known of a node's faults: {boot_id, minors: UUID -> minor, bad: GPU -> {codes, minor}, node}.

    A GPU is bad until it is seen well: one that is not told of, or of which nothing is known, stays what it was.
    """
    if verdict is None:
        return dict(known)
    same_boot = known["boot_id"] in (None, verdict.get("boot_id"))
    # The driver numbers device files anew when it loads.
    minors = dict(known["minors"]) if same_boot else {}
    bad: dict[str, Any] = {}
    gpus = look(verdict, counts)
    for row in verdict.get("devices") or ():
        key = row.get("uuid") or row.get("pci_address") or "unknown"
        if row.get("minor") is not None:
            minors[key] = row["minor"]
        codes = gpus.fatal.get(key)
        if codes is None and counts.get(key, {}).get("quarantine"):
            codes = ["quarantine"]
        if codes is None and row["verdict"] == "unknown" and key in known["bad"]:
            codes = known["bad"][key]["codes"]
        if codes is not None:
            bad[key] = {"codes": list(codes), "minor": minors.get(key)}
    told_of = {row.get("uuid") for row in verdict.get("devices") or ()}
    for key, row in known["bad"].items():
        if key not in told_of and key not in bad:
            bad[key] = {**row, "minor": minors.get(key)}
    return {"boot_id": verdict.get("boot_id"), "minors": minors, "bad": bad, "node": list(gpus.fatal.get("node", ()))}


def places(known: Memory, minors: Sequence[int] | None) -> tuple[dict[int, str], str]:
    """(position -> what is wrong with the GPU there, why the whole node is to be out)."""
    found: dict[int, str] = {}
    whole = [", ".join(known["node"])] if known["node"] else []
    for key, row in sorted(known["bad"].items()):
        text = f"{key} ({', '.join(row['codes'])})"
        if row["minor"] is None:
            whole.append(f"{text}, whose device file is not known")
        elif minors is None:
            whole.append(f"{text}, whose place in gres.conf is not known")
        elif row["minor"] in minors:
            found[minors.index(row["minor"])] = text
    return found, "; ".join(whole)


def observe(memory: Memory, node: Node, policy: Policy, now: float) -> dict[str, Any]:
    """See `Plan.observe`."""
    new = core_memory.observe(memory, node, policy, now)
    row: SlurmNode | None = node.row
    new["slurm"] = dict(row.faults) if row and node.verdict else faults_of(new["slurm"], node.verdict, new["gpus"])
    # Whatever became of a step that was cut is seen in Slurm.
    new["intent"] = None
    return new


def decide(memory: Memory, node: Node, policy: Policy, now: float = 0.0) -> Decision:
    """See `Plan.decide`."""
    decision = _decide(memory, node, policy, now)
    row: SlurmNode | None = node.row
    fails = row is not None and not row.drained and decision.step is not None and decision.step.fences
    return replace(decision, fails=fails)


def closing(memory: Memory, node: Node, decision: Decision) -> Step | None:
    """The drain that closes a node as its guard would: slurmctld drains many nodes by one order, and makes a guard for
    one. The guard follows, and opens what is drained."""
    row: SlurmNode | None = node.row
    if row is None or row.drained or row.guard or decision.step is None or decision.step.kind != "guard":
        return None
    return _step("drain_node", decision.step.why, memory).step


def hold_back(decision: Decision, memory: Memory, policy: Policy, held: str = "", now: float = 0.0) -> Decision:
    """See `Plan.hold_back`."""
    if decision.step is None:
        return decision
    kind, failed = decision.step.kind, memory["failed"]
    patience = policy.retry_s if kind in ("drain_node", "resume") else FENCE_RETRY_S
    if failed and failed["what"] == kind and now - failed["at"] < patience:
        return Decision(None, f"{kind} failed ({failed['why']}); tried again after {patience:g} s", soon=True)
    if held and kind in FENCES and not memory["fenced"]:
        return Decision(None, f"{kind} is held back: {held}")
    return decision


def _decide(memory: Memory, node: Node, policy: Policy, now: float) -> Decision:
    if node.row is None:
        return Decision(None, "slurmctld has no node of this name") if memory["known"] else Decision()
    there: SlurmNode = node.row
    bad, whole = places(memory["slurm"], there.minors)
    if bad and policy.gpu_fence == "drain":
        whole = "; ".join(filter(None, [whole, *bad.values()]))
    silent = _silent(memory, node, policy, now)
    if whole or silent:
        return _out(memory, there, whole or silent)
    ours = there.reason.startswith(FENCE_MARK)
    if there.drained and ours and node.verdict is not None and (there.guard or not bad):
        return _step("resume", "the fault of the whole host is over", memory)
    if there.minors is None:
        return Decision(None, "gres.conf does not list its GPUs, so their holders stay")
    return _gpus(memory, node, policy, bad, now)


def _silent(memory: Memory, node: Node, policy: Policy, now: float) -> str:
    """Why a node whose agent has said nothing for a while is to be out; empty where it is not."""
    since = memory["silent"]
    long = since is not None and now - since >= policy.suspect_s
    return "suspected: its GPU agent has no session" if memory["known"] and long and policy.silent != "watch" else ""


def _out(memory: Memory, there: SlurmNode, why: str) -> Decision:
    if not there.drained:
        return _step("drain_node", why, memory)
    if there.guard:
        return _step("unguard", "the node is drained", memory)
    whose = "it is drained" if there.reason.startswith(FENCE_MARK) else "it was drained by another client"
    return Decision(None, f"{whose}: {why}")


def _gpus(memory: Memory, node: Node, policy: Policy, bad: Mapping[int, str], now: float) -> Decision:
    there: SlurmNode = node.row
    running = {one.position: one for one in there.holders if one.state == "RUNNING" and one.position is not None}
    # One holder more has a GPU, whichever are free: as many as there are get the one that is meant.
    count = len(there.minors or ()) - len(running)
    open_ones = [position for position in bad if position not in running]
    users = _users(there)
    waiting = {position: _waiting_for(position, there.holders, users, count) for position in open_ones}
    not_waited = [position for position in open_ones if not waiting[position]]
    if not open_ones:
        return _tidy(memory, node, policy, bad, running, now)
    why = f"fatal: {'; '.join(bad[position] for position in open_ones)}"
    siblings = [one.id for one in _needless(running, bad) if _is_launched(one, now)]
    in_use = all(users.get(position) for position in open_ones)
    if siblings and in_use:
        return _step("cancel", "a job of a user has the GPU, so its other holders are cancelled", memory, jobs=siblings)
    if not not_waited:
        if there.guard:
            return _step("unguard", "it waits for the job that has the GPU", memory)
        unaware = [job for position in open_ones for job in users.get(position, ()) if SIGNALLED not in job.note]
        if unaware and policy.fatal_job == "signal":
            rows = [{"id": job.id, "note": job.note} for job in unaware]
            return _step("signal", why, memory, jobs=rows)
        text = "; ".join(f"{bad[position]}: taken when {_named(users.get(position, ()))}" for position in open_ones)
        return Decision(None, text)
    if not there.guard or there.guard - now < GUARD_LEFT_S:
        return _step("guard", why, memory)
    if policy.fatal_job == "requeue" and not _refused(memory, "requeue"):
        on_bad = {job.id: job for position in not_waited for job in users.get(position, ())}
        again = [job.id for job in on_bad.values() if job.can_requeue and "COMPLETING" not in job.state]
        if again:
            return _step("requeue", why, memory, jobs=again)
        if any("COMPLETING" in job.state for job in on_bad.values()):
            return Decision(None, f"{why}; its job ends", soon=True)
    if any(position in there.used and not users.get(position) for position in not_waited):
        return Decision(None, f"{why}; the GPU passes to another job", soon=True)
    if there.silent or there.drained:
        return Decision(None, f"{why}; closed until its node takes jobs, and holders with it")
    waited = [one for holders in waiting.values() for one in holders]
    return _hold(memory, there, not_waited, waited, users, why, count, now)


def _refused(memory: Memory, kind: str) -> bool:
    return bool(memory["failed"]) and memory["failed"]["what"] == kind


def _hold(
    memory: Memory,
    there: SlurmNode,
    targets: Sequence[int],
    waited: Iterable[Holder],
    users: Mapping[int, Sequence[Job]],
    why: str,
    count: int,
    now: float,
) -> Decision:
    """Inside the guard: what gets the GPUs at these positions. `waited` are holders that others wait for."""
    free = [position for position in targets if not users.get(position)]
    pending = [one for one in there.holders if one.position is None and one not in waited]
    # Without a core no job starts that wants a GPU, and holders are the first that get one.
    inside = bool(free) and there.free_cpus > 0
    if inside:
        starting = [one for one in pending if one.reserved and set(free) <= set(one.targets)]
        stuck = {one.reason: one.submitted for one in starting if one.is_stuck}
        # Fewer are there after a cut.
        if len(starting) >= count and not any(now - at >= STUCK_S for at in stuck.values()):
            if stuck:
                return Decision(None, f"{why}; holders do not start: {', '.join(sorted(stuck))}")
            return Decision(None, f"{why}; holders start", soon=True)
    if pending:
        return _step("cancel", "other holders are wanted", memory, jobs=[one.id for one in pending])
    after = sorted({job.id for position in targets if not free for job in users[position]})
    return _step("hold", why, memory, targets=free or list(targets), count=count, after=after, inside=inside)


def _tidy(
    memory: Memory,
    node: Node,
    policy: Policy,
    bad: Mapping[int, str],
    running: Mapping[int, Holder],
    now: float,
) -> Decision:
    """Every bad GPU is held, or there is none."""
    there: SlurmNode = node.row
    if not memory["slurm"]["minors"] and (there.guard or there.holders):
        # What an earlier reconciler has fenced, of which nothing is remembered.
        why = "the state of its GPUs is unknown, so their holders stay"
        ends_soon = there.guard and there.guard - now < GUARD_LEFT_S
        return _step("guard", why, memory) if ends_soon else Decision(None, why)
    needless = _needless(running, bad)
    over = [one.id for one in there.holders if one.position is None]
    over += [one.id for one in needless if _is_launched(one, now)]
    if over:
        return _step("cancel", "no more holders are wanted", memory, jobs=over)
    if bad and node.verdict is None and now - (memory["silent"] or now) < policy.suspect_s:
        # A boot ends the holder, and the node would register open.
        if not there.guard or there.guard - now < GUARD_LEFT_S:
            return _step("guard", "its agent is silent, and a boot would end the holder of a bad GPU", memory)
        return Decision(None, "its agent is silent, and it has bad GPUs; closed until it publishes again")
    if there.guard:
        return _step("unguard", "every bad GPU is held", memory)
    if needless:
        return Decision(None, "the other holders end when they are launched", soon=True)
    well = [
        one.id
        for position, one in running.items()
        if position not in bad and _is_settled(memory, node, policy, position, now)
    ]
    if well:
        return _step("cancel", "the GPU is well", memory, jobs=well)
    if memory["fenced"] and not running and not bad:
        return _step("close", "every GPU takes jobs again", memory)
    texts = [f"{text} is held by job {running[position].id}" for position, text in sorted(bad.items())]
    advice = look(node.verdict, memory["gpus"]).advice_text() if bad else ""
    return Decision(None, "; ".join([*texts, *([advice] if advice else [])]))


def _needless(running: Mapping[int, Holder], bad: Mapping[int, str]) -> list[Holder]:
    """The holders that got another GPU than those that they are for."""
    return [one for position, one in running.items() if position not in bad and position not in one.targets]


def _is_launched(one: Holder, now: float) -> bool:
    """Whether slurmd has started it by now; also where the clocks of the hosts differ."""
    return not 0 <= now - one.started < LAUNCH_S


def _is_settled(memory: Memory, node: Node, policy: Policy, position: int, now: float) -> bool:
    """Whether the GPU at a position was well for long enough to be given out."""
    minor = node.row.minors[position]
    uuids = [uuid for uuid, number in memory["slurm"]["minors"].items() if number == minor]
    since = [memory["well"].get(uuid) for uuid in uuids]
    return (
        node.verdict is not None and bool(since) and all(at is not None and now - at >= policy.settle_s for at in since)
    )


def _users(there: SlurmNode) -> dict[int, list[Job]]:
    """Position -> the users' jobs that have the GPU there."""
    found: dict[int, list[Job]] = {}
    for job in there.users:
        for position in there.used if job.positions is None else job.positions:
            found.setdefault(position, []).append(job)
    return found


def _waiting_for(
    position: int, holders: Iterable[Holder], users: Mapping[int, Sequence[Job]], count: int
) -> list[Holder]:
    """The holders that get the GPU there as soon as it is free, before anybody else; none where they are too few."""
    jobs = {job.id for job in users.get(position, ())}
    found = [
        one
        for one in holders
        if one.position is None
        and not one.reserved
        and not one.is_stuck
        and position in one.targets
        and (one.waits and jobs <= set(one.after) if jobs else not one.waits)
    ]
    return found if len(found) >= count else []


def _named(jobs: Iterable[Job]) -> str:
    named = [f"job {job.id} of {job.user}" for job in jobs]
    return f"{', '.join(named)} ends" if named else "a core is free"


def _step(kind: str, why: str, memory: Memory, **details: Any) -> Decision:
    evidence = {"bad": memory["slurm"]["bad"], "node": memory["slurm"]["node"]}
    return Decision(SlurmStep(kind, why, evidence=evidence, details=details))
