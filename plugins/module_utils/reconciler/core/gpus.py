# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node publishes of its GPUs, and what to do about each, whatever the scheduler.

What a node publishes is {schema, host, boot_id, time, verdict, reasons, devices: [{uuid, index, pci_address, verdict,
reasons}], order}. A reason is {code, verdict, action, text}. `order` is the node's answer to the last one: {id, state:
running|done|failed, error, end_boot_id}, with the boot in which it ended. health/published.py reads all of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy

# From the mildest to the last.
LADDER = ("reset_gpu", "reboot", "rma")


@dataclass
class Gpus:
    """`fatal` are GPUs, or the node, with the codes; `beyond` those that no repair of ours helps. `advice` is what is
    to be done about each GPU that is not given out."""

    fatal: dict[str, list[str]] = field(default_factory=dict)
    well: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    advice: dict[str, str] = field(default_factory=dict)

    def advice_text(self) -> str:
        """What an operator has to do about GPUs that are not given out; empty for nothing."""
        return "; ".join(f"{uuid} is not given out: {action}" for uuid, action in sorted(self.advice.items()))


def quarantined(counts: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The GPUs that wait for an operator."""
    return {uuid for uuid, row in counts.items() if row.get("quarantine")}


def look(
    verdict: Mapping[str, Any] | None,
    counts: Mapping[str, Mapping[str, Any]],
    policy: Policy | None = None,
    now: float = 0.0,
) -> Gpus:
    """The GPUs by what the node publishes. `counts` are the repairs so far; without a policy they limit nothing."""
    gpus = Gpus()
    if verdict is None:
        return gpus
    node = [row["code"] for row in verdict.get("reasons") or () if row["verdict"] == "fatal"]
    for row in verdict.get("devices") or ():
        key = row.get("uuid") or row.get("pci_address") or "unknown"
        if row["verdict"] == "fatal":
            gpus.fatal[key] = [reason["code"] for reason in row["reasons"] if reason["verdict"] == "fatal"]
            if row.get("uuid"):
                gpus.advice[row["uuid"]] = _advice(row, counts.get(row["uuid"], {}), policy, now)
        elif row["verdict"] != "unknown" and row.get("uuid"):
            gpus.well.append(row["uuid"])
    if node:
        gpus.fatal["node"] = node
    gpus.beyond = sorted(uuid for uuid, action in gpus.advice.items() if action == "rma")
    gpus.advice.update(dict.fromkeys(sorted(quarantined(counts)), "rma"))
    return gpus


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
