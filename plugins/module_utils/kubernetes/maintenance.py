# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a node of Kubernetes out of service for an operator and give it back, without undoing what others have done.

A cordon has no owner in Kubernetes, so an annotation tells of an operator's drain from here. The reconciler has one of
its own; a cordon with neither was made by another client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import CORDONED_BY, DRAINED_BY, REASON

OPERATOR, RECONCILER, OTHER = "operator", "reconciler", "other"
# By whom a node was cordoned, and why.
MARKS = {OPERATOR: DRAINED_BY, RECONCILER: CORDONED_BY}
WHY = {OPERATOR: DRAINED_BY, RECONCILER: REASON}
WHY_AT_MOST = 200

Node = Mapping[str, Any]


def reasons(node: Node) -> dict[str, str]:
    """Who has cordoned a node, and why; empty for one that takes pods."""
    if not (node.get("spec") or {}).get("unschedulable"):
        return {}
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    found = {
        owner: one_line(annotations.get(WHY[owner], ""), WHY_AT_MOST)
        for owner, mark in MARKS.items()
        if mark in annotations
    }
    return found or {OTHER: ""}


def summary(name: str, found: Mapping[str, str]) -> str:
    """A node in one line: whether it takes pods, and why not."""
    told = "; ".join(f"{owner}: {why}" if why else owner for owner, why in found.items())
    return f"{name}: cordoned by {told}\n" if found else f"{name}: takes pods\n"


def find(kubectl: Kubectl, name: str) -> dict[str, Any] | None:
    """The node as the API server has it; None for one that it has not. Raises CallFailed."""
    return kubectl.get("node", name)


def drain(kubectl: Kubectl, node: Node, why: str, check_mode: bool) -> tuple[bool, dict[str, str]]:
    """Let no new pod start on the node: whether that changes it, and who has it cordoned then.

    One that others have cordoned stays as it is.
    """
    before = reasons(node)
    if OPERATOR in before or OTHER in before:
        return False, before
    name, reason = node["metadata"]["name"], one_line(why, WHY_AT_MOST)
    if not check_mode:
        kubectl.patch("node", name, _cordon(True, {MARKS[OPERATOR]: reason}))
    return True, {**before, OPERATOR: reason}


def evict(kubectl: Kubectl, name: str, timeout_s: float) -> None:
    """Evict the pods of a cordoned node as its disruption budgets allow it. Those of daemons stay.

    Raises Refused with the pods that are left after the time, and with those that nothing would start again.
    """
    status, told = kubectl.drain(name, timeout_s)
    if status:
        raise Refused(
            f"the node is cordoned, and pods are still on it: {told}",
            f"wait longer, or see 'kubectl get pods -A --field-selector spec.nodeName={name}' and ask their users; "
            "then run again. The node takes no new pod until it is restored",
            code="pods_left",
            subject=name,
        )


def restore(kubectl: Kubectl, node: Node, foreign: str, check_mode: bool) -> tuple[bool, dict[str, str]]:
    """Let pods start on the node again: whether that changes it, and who has it cordoned then.

    :param foreign: for a node that others have cordoned: `left` leaves it, `refused` raises Refused, `taken` has it
        take pods.

    A node that the reconciler had cordoned, too, stays cordoned.
    """
    before, name = reasons(node), node["metadata"]["name"]
    if not before or (OPERATOR not in before and foreign == "left"):
        return False, before
    if OPERATOR not in before and foreign == "refused":
        raise Refused(
            f"the node is cordoned by {' and '.join(before)}, and not from here, so it stays as it is",
            "ask who did it; if it may be undone, run again with takeover",
            code="cordoned_by_others",
            subject=name,
        )
    stays = RECONCILER in before and foreign != "taken"
    if not check_mode:
        marks = {MARKS[OPERATOR]: None, **({} if stays else {MARKS[RECONCILER]: None})}
        kubectl.patch("node", name, _cordon(stays, marks))
    return True, {RECONCILER: before[RECONCILER]} if stays else {}


def _cordon(is_cordoned: bool, annotations: Mapping[str, str | None]) -> str:
    return json.dumps(
        {"metadata": {"annotations": dict(annotations)}, "spec": {"unschedulable": True if is_cordoned else None}}
    )


def settle(
    kubectl: Kubectl, name: str, state: str, why: str, timeout_s: float, foreign: str, unknown: str, check_mode: bool
) -> dict[str, Any]:
    """Bring a node into its state: {changed, owners, diff}. Raises Refused and CallFailed."""
    try:
        node = find(kubectl, name)
    except CallFailed:
        if unknown != "left" or kubectl.is_set_up():
            raise
        node = None
    if node is None:
        if unknown == "left":
            return {"changed": False, "owners": [], "diff": {"before": "", "after": ""}}
        raise Refused(
            f"the cluster has no node {one_line(name, 100)}",
            "check the name, and that the host is in the group kubernetes_nodes",
            code="no_node",
            subject=name,
        )
    before = summary(name, reasons(node))
    if state == "drained":
        changed, after = drain(kubectl, node, why, check_mode)
        if timeout_s > 0 and not check_mode:
            evict(kubectl, name, timeout_s)
    else:
        changed, after = restore(kubectl, node, foreign, check_mode)
    return {"changed": changed, "owners": list(after), "diff": {"before": before, "after": summary(name, after)}}
