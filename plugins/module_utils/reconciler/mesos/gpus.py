# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of a node its Mesos agent ought to list.

Besides what core/gpus.py names, a node of Mesos publishes `listed`, the UUIDs that the agent was started with, null
where they were not written down; `held_back`, those that it is never to list, by the operator's word or for their MIG
mode; and `mesos`, the agent as the host sees it: {agent_id, unit, executors, unread}, with the id that it would come
back with, how its unit stands, how many executors live, null where that is unknown, and what of it the host cannot
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import gpus as core_gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.gpus import LADDER, quarantined
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.shapes import Agent

# The state of an agent that the host has, and Mesos does not.
UNREGISTERED = "unregistered"


@dataclass
class Gpus(core_gpus.Gpus):
    """`bad` are listed GPUs, or the node, that must get no task, with the codes. `wanted` is the list as it ought to
    be, `change` says why it is not, empty if it is. `reset` and `reboot` are GPUs to be repaired that way now."""

    bad: dict[str, list[str]] = field(default_factory=dict)
    listed: list[str] | None = None
    wanted: list[str] = field(default_factory=list)
    change: str = ""
    reset: list[str] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    def evidence(self) -> dict[str, Any]:
        """For the journal and the log."""
        return {**self.told, "listed": self.listed, "wanted": self.wanted, "fatal": self.fatal, "advice": self.advice}


def look(
    verdict: Mapping[str, Any] | None,
    agent: Agent | None,
    counts: Mapping[str, Mapping[str, Any]],
    well_since: Mapping[str, float] | None = None,
    policy: Policy | None = None,
    now: float = 0.0,
) -> Gpus:
    """The GPUs by what the node publishes. `counts` are the repairs so far, `well_since` when each was seen well.

    Without a policy, only `fatal`, `well`, `beyond`, `bad` and `listed` mean anything.
    """
    gpus = Gpus(**vars(core_gpus.look(verdict, counts, policy, now)))
    if verdict is None:
        return gpus
    gpus.told = {key: verdict.get(key) for key in ("boot_id", "time")}
    rows = list(verdict.get("devices") or ())
    kept_out = quarantined(counts)
    gpus.listed = _listed(verdict, agent)
    gpus.bad = _bad(gpus, rows, kept_out, agent)
    if policy is not None:
        kept_out |= set(verdict.get("held_back") or ())
        _want(gpus, rows, kept_out, well_since or {}, policy, now)
    return gpus


def _listed(verdict: Mapping[str, Any], agent: Agent | None) -> list[str] | None:
    """The list that the agent runs with; None where it is not known, as when Mesos tells another number of GPUs."""
    told = verdict.get("listed")
    if told is None or agent is None or len(told) != int(agent.gpus):
        return None
    return sorted(told)


def _bad(gpus: Gpus, rows: list[Mapping[str, Any]], kept_out: set[str], agent: Agent | None) -> dict[str, list[str]]:
    if agent is not None and not agent.gpus:
        return {}
    bad = {key: codes for key, codes in gpus.fatal.items() if gpus.listed is None or key in [*gpus.listed, "node"]}
    bad.update({uuid: ["quarantine"] for uuid in kept_out & set(gpus.listed or ()) if uuid not in bad})
    unregistered = agent is not None and agent.state == UNREGISTERED
    nameless = any(not row.get("uuid") for row in rows if row["verdict"] == "fatal")
    if gpus.listed is not None and (nameless or (unregistered and rows)):
        # A GPU that cannot tell who it is may be one that is listed and not told of. No agent starts without it.
        missing = set(gpus.listed) - {row.get("uuid") for row in rows}
        bad.update({uuid: ["not_told_of"] for uuid in missing})
    return bad


def _want(
    gpus: Gpus,
    rows: list[Mapping[str, Any]],
    kept_out: set[str],
    well_since: Mapping[str, float],
    policy: Policy,
    now: float,
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
    if "node" in gpus.fatal or not gpus.wanted:
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
