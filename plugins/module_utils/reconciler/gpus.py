# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of a node its scheduler's agent ought to list, and what to do about the others.

What a node publishes is {schema, host, boot_id, time, verdict, reasons, devices: [{uuid, index, pci_address, verdict,
reasons}], listed, held_back, order}. A reason is {code, verdict, action, text}. `listed` are the UUIDs that the agent
of the scheduler was started with, null where nobody wrote them down; `held_back` are those that it is never to list, by
the operator's word or for their MIG mode. `order` is the node's answer to the last one: {id, state:
running|done|failed, error, end_boot_id}, with the boot in which it ended. `mesos` is the Mesos agent as the host sees
it: {agent_id, unit, executors, unread}, with the id that it would come back with, how its unit stands (see
health/published.py, which reads all of this), how many executors live, null where that cannot be told, and what of it
the host cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.shapes import Policy

# From the mildest to the last.
LADDER = ("reset_gpu", "reboot", "rma")
# The state of an agent that the host has, and Mesos does not.
UNREGISTERED = "unregistered"


@dataclass
class Gpus:
    """`bad` are listed GPUs, or the node, that must get no task, with the codes. `wanted` is the list as it ought to
    be, `change` says why it is not, empty if it is. `reset` and `reboot` are GPUs to be repaired that way now."""

    bad: dict[str, list[str]] = field(default_factory=dict)
    fatal: dict[str, list[str]] = field(default_factory=dict)
    well: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    listed: list[str] | None = None
    wanted: list[str] = field(default_factory=list)
    change: str = ""
    advice: dict[str, str] = field(default_factory=dict)
    reset: list[str] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    def evidence(self) -> dict[str, Any]:
        """For the journal and the log."""
        return {**self.told, "listed": self.listed, "wanted": self.wanted, "fatal": self.fatal, "advice": self.advice}

    def advice_text(self) -> str:
        """What an operator has to do about GPUs that nobody gives out; empty for nothing."""
        return "; ".join(f"{uuid} is not given out: {action}" for uuid, action in sorted(self.advice.items()))


def look(
    verdict: Mapping[str, Any] | None,
    agent: Mapping[str, Any] | None,
    counts: Mapping[str, Mapping[str, Any]],
    well_since: Mapping[str, float] | None = None,
    policy: Policy | None = None,
    now: float = 0.0,
) -> Gpus:
    """The GPUs by what the node publishes. `counts` are the repairs so far, `well_since` when each was seen well.

    Without a policy, only `fatal`, `well`, `beyond`, `bad` and `listed` mean anything.
    """
    gpus = Gpus()
    if verdict is None:
        return gpus
    gpus.told = {key: verdict.get(key) for key in ("boot_id", "time")}
    rows = list(verdict.get("devices") or ())
    node = [row["code"] for row in verdict.get("reasons") or () if row["verdict"] == "fatal"]
    kept_out = {uuid for uuid, row in counts.items() if row.get("quarantine")}
    for row in rows:
        key = row.get("uuid") or row.get("pci_address") or "unknown"
        if row["verdict"] == "fatal":
            gpus.fatal[key] = [reason["code"] for reason in row["reasons"] if reason["verdict"] == "fatal"]
        elif row["verdict"] != "unknown" and row.get("uuid"):
            gpus.well.append(row["uuid"])
    if node:
        gpus.fatal["node"] = node
    gpus.listed = _listed(verdict, agent)
    gpus.bad = _bad(gpus, rows, kept_out, agent)
    for row in rows:
        if row["verdict"] == "fatal" and row.get("uuid"):
            gpus.advice[row["uuid"]] = _advice(row, counts.get(row["uuid"], {}), policy, now)
    gpus.beyond = sorted(uuid for uuid, action in gpus.advice.items() if action == "rma")
    gpus.advice.update(dict.fromkeys(sorted(kept_out), "rma"))
    if policy is not None:
        kept_out |= set(verdict.get("held_back") or ())
        _want(gpus, rows, kept_out, well_since or {}, policy, now, bool(node))
    return gpus


def _listed(verdict: Mapping[str, Any], agent: Mapping[str, Any] | None) -> list[str] | None:
    """The list that the agent runs with; None where it is not known, as when Mesos tells another number of GPUs."""
    told = verdict.get("listed")
    if told is None or agent is None or len(told) != int(agent.get("resources", {}).get("gpus", 0)):
        return None
    return sorted(told)


def _bad(
    gpus: Gpus, rows: list[Mapping[str, Any]], kept_out: set[str], agent: Mapping[str, Any] | None
) -> dict[str, list[str]]:
    if agent is not None and not agent.get("resources", {}).get("gpus", 0):
        return {}
    bad = {key: codes for key, codes in gpus.fatal.items() if gpus.listed is None or key in [*gpus.listed, "node"]}
    bad.update({uuid: ["quarantine"] for uuid in kept_out & set(gpus.listed or ()) if uuid not in bad})
    unregistered = agent is not None and agent["state"] == UNREGISTERED
    nameless = any(not row.get("uuid") for row in rows if row["verdict"] == "fatal")
    if gpus.listed is not None and (nameless or (unregistered and rows)):
        # A GPU that cannot tell who it is may be one that is listed and not told of. No agent starts without it.
        missing = set(gpus.listed) - {row.get("uuid") for row in rows}
        bad.update({uuid: ["not_told_of"] for uuid in missing})
    return bad


def _advice(row: Mapping[str, Any], counts: Mapping[str, Any], policy: Policy | None, now: float) -> str:
    actions = [reason.get("action", "none") for reason in row["reasons"] if reason["verdict"] == "fatal"]
    if policy is not None and counts.get("cleared") and now - counts["at"] < policy.proof_s:
        # Its node may not have heard yet that it was mended.
        return "repaired"
    for last in ("rma", "inspect"):
        if last in actions:
            return last
    first = max((LADDER.index(action) for action in actions if action in LADDER), default=0)
    if policy is None:
        return LADDER[first]
    if counts.get("resets", 0) + counts.get("reboots", 0) and now - counts["at"] < policy.proof_s:
        return "repaired"
    limits = {"reset_gpu": policy.resets - counts.get("resets", 0), "reboot": policy.reboots - counts.get("reboots", 0)}
    return next((action for action in LADDER[first:] if limits.get(action, 1) > 0), "rma")


def _want(
    gpus: Gpus,
    rows: list[Mapping[str, Any]],
    kept_out: set[str],
    well_since: Mapping[str, float],
    policy: Policy,
    now: float,
    node: bool,
) -> None:
    listed = gpus.listed
    for row in rows:
        uuid = row.get("uuid")
        if not uuid or row["verdict"] == "fatal" or uuid in kept_out:
            continue
        settled = uuid in well_since and now - well_since[uuid] >= policy.settle_s
        # What cannot be told stays as it was.
        if listed is None or uuid in listed or settled:
            gpus.wanted.append(uuid)
    gpus.wanted.sort()
    repairs = {action: sorted(key for key, what in gpus.advice.items() if what == action) for action in LADDER}
    if "reboot" in policy.repairs:
        gpus.reboot = [uuid for uuid in repairs["reboot"] if uuid not in kept_out]
    if "reset_gpu" in policy.repairs and listed is not None:
        gpus.reset = [uuid for uuid in repairs["reset_gpu"] if uuid not in listed and uuid not in kept_out]
    if node or not gpus.wanted:
        # With nothing that could be listed, nothing is gained by another list.
        return
    if gpus.bad:
        gpus.change = f"without {', '.join(sorted(gpus.bad))}"
    elif listed is not None and gpus.wanted != listed:
        more, less = sorted(set(gpus.wanted) - set(listed)), sorted(set(listed) - set(gpus.wanted))
        gpus.change = "; ".join(
            text for text in (more and f"with {', '.join(more)}", less and f"without {', '.join(less)}") if text
        )
    elif gpus.reboot:
        gpus.change = f"reboot for {', '.join(gpus.reboot)}"
