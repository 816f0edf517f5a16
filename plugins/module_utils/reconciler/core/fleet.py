# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet breaker: where too many nodes fail at once, the fault is more likely in what they share, or in us.

It counts the nodes that wait to be fenced together with those that were fenced within the window, whether they are
back or not. While that is more than the limit, no node is taken out. It closes when fewer are left, or when an operator
permits those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Decision, Node, Policy

SCHEMA = 1


def empty() -> dict[str, Any]:
    """The memory of the fleet: when which node was fenced, and which an operator permits."""
    return {"schema": SCHEMA, "fences": [], "permitted": []}


def waiting(
    memories: Mapping[str, Mapping[str, Any]], nodes: Iterable[Node], decisions: Mapping[str, Decision]
) -> list[str]:
    """The nodes that are to be fenced and are not."""
    return sorted(node.host for node in nodes if not memories[node.host]["fenced"] and decisions[node.host].fails)


def set_back(fleet: Mapping[str, Any], now: float) -> dict[str, Any]:
    """After the clock was set back, a fence that seems to lie ahead counts from now on, and not until then."""
    return {**fleet, "fences": [[min(at, now), host] for at, host in fleet["fences"]]}


def limit(nodes: int, policy: Policy) -> int:
    """How many nodes may be fenced within the window, of so many."""
    return max(policy.breaker_count, floor(policy.breaker_share * nodes))


def held(fleet: Mapping[str, Any], wait: Iterable[str], nodes: int, policy: Policy, now: float) -> str:
    """Why no node may be taken out now; empty if it may."""
    permitted = set(fleet["permitted"])
    recent = {host for at, host in fleet["fences"] if now - at < policy.breaker_window_s}
    load = (set(wait) | recent) - permitted
    most = limit(nodes, policy)
    if len(load) <= most:
        return ""
    return (
        f"{len(load)} of {nodes} nodes fail within {policy.breaker_window_s:g} s, and {most} may. "
        "To do: look for what they share; `sudo gpuops-reconciler clear --breaker` permits them"
    )


def fenced(fleet: Mapping[str, Any], host: str, policy: Policy, now: float) -> dict[str, Any]:
    """The memory with one more node that is fenced."""
    fences = [[at, name] for at, name in fleet["fences"] if now - at < policy.breaker_window_s and name != host]
    return {**fleet, "fences": [*fences, [now, host]]}


def rebuilt(memories: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The memory of a fleet that was lost, from what is known of the nodes."""
    fences = sorted([row["fenced"]["at"], host] for host, row in memories.items() if row["fenced"])
    return {**empty(), "fences": fences}


def permit(fleet: Mapping[str, Any], wait: Iterable[str]) -> dict[str, Any]:
    """An operator permits the nodes that wait, and counts from nothing."""
    return {**fleet, "fences": [], "permitted": sorted(wait)}


def after(fleet: Mapping[str, Any], wait: Iterable[str], memories: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Without permits of nodes that are well again: the next fault of theirs counts."""
    wait = set(wait)
    kept = [host for host in fleet["permitted"] if host in wait or (memories.get(host) or {}).get("fenced")]
    return {**fleet, "permitted": kept}
