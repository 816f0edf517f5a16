# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes as the reconciler's scheduler: its API server, with annotations, cordons and evictions."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered, Api
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    CORDONED_BY,
    DRAINED_BY,
    HELD,
    NODES,
    REASON,
    RECONCILER,
    TAINT,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.node_status import create_event
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Memory, Plan, Say, Seen
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.shapes import (
    KubernetesNode,
    KubernetesStep,
    Pod,
)

PODS = "/api/v1/pods"
MIRROR = "kubernetes.io/config.mirror"
RESOURCE = "nvidia.com/"
CONFLICT, TOO_MANY, GONE = 409, 429, 404
TEXT_AT_MOST = 1000


class KubernetesBackend:
    """See `Backend`. A host's node has the name that the host publishes under."""

    plan: Plan = plan

    def __init__(self, api: Api) -> None:
        self.api = api

    def look(
        self, verdicts: Mapping[str, Mapping[str, Any]], memories: Mapping[str, Memory], say: Say
    ) -> dict[str, Seen]:
        try:
            nodes = {str(row["metadata"]["name"]): row for row in _items(self.api.get(NODES))}
            return {
                name: Seen((self._node(row, name, memories.get(name) or plan.empty(name), verdicts.get(name), say),))
                for name, row in nodes.items()
            }
        except (AttributeError, KeyError, TypeError) as why:
            raise CallFailed(f"the API server's answer cannot be read: {why!r}") from why

    def _node(
        self, row: Mapping[str, Any], name: str, memory: Memory, verdict: Mapping[str, Any] | None, say: Say
    ) -> KubernetesNode:
        spec, notes = row.get("spec") or {}, row["metadata"].get("annotations") or {}
        conditions = (row.get("status") or {}).get("conditions") or ()
        ours = notes.get(CORDONED_BY) == RECONCILER or any(one["key"] == TAINT for one in spec.get("taints") or ())
        cordoned = bool(spec.get("unschedulable"))
        held = _held(notes.get(HELD), name, say)
        faults = plan.faults_of(memory["kubernetes"], verdict, memory["gpus"])
        asks = bool(ours or held or faults["bad"])
        return KubernetesNode(
            name,
            is_ready=any(one["type"] == "Ready" and one["status"] == "True" for one in conditions),
            is_cordoned=cordoned,
            ours=ours,
            theirs=cordoned and _is_theirs(notes),
            held=held,
            pods=tuple(self._pods(name)) if asks else None,
            faults=faults,
        )

    def _pods(self, node: str) -> Iterator[Pod]:
        query = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={node}"})
        for row in _items(self.api.get(f"{PODS}?{query}")):
            found = _pod(row)
            if found is not None:
                yield found

    def close(self, hosts: Sequence[str], step: Step) -> None:
        """See `plan.closing`."""

    def perform(self, host: str, step: Step) -> None:
        if not isinstance(step, KubernetesStep):
            return
        if step.kind in ("hold", "release"):
            held = step.details["held"]
            text = json.dumps(held, sort_keys=True) if held else None
            self.api.patch(f"{NODES}/{host}", {"metadata": {"annotations": {HELD: text}}})
        elif step.kind == "cordon":
            self._cordon(host, step)
        elif step.kind == "uncordon":
            self._uncordon(host, step)
        elif step.kind == "evict":
            self._evict(host, step)

    # Cordons.

    def _cordon(self, host: str, step: KubernetesStep) -> None:
        taint = {"key": TAINT, "value": _taint_value(step.details["code"]), "effect": "NoSchedule"}

        def change(node: Mapping[str, Any]) -> dict[str, Any] | None:
            if (node.get("spec") or {}).get("unschedulable"):
                # Of an operator, a moment ago. It stays theirs.
                return None
            notes = {CORDONED_BY: RECONCILER, REASON: step.why[:TEXT_AT_MOST]}
            return {
                "metadata": {"annotations": notes},
                "spec": {"unschedulable": True, "taints": [*_others(node), taint]},
            }

        if self._change(host, change):
            self._tell(host, "GpuHostCordoned", step.why, "Warning")

    def _uncordon(self, host: str, step: KubernetesStep) -> None:
        def change(node: Mapping[str, Any]) -> dict[str, Any]:
            spec: dict[str, Any] = {"taints": _others(node) or None}
            if not _is_theirs(node["metadata"].get("annotations") or {}):
                spec["unschedulable"] = None
            return {"metadata": {"annotations": {CORDONED_BY: None, REASON: None}}, "spec": spec}

        self._change(host, change)
        self._tell(host, "GpuHostUncordoned", step.why, "Normal")

    def _change(self, host: str, change: Callable[[Mapping[str, Any]], dict[str, Any] | None]) -> bool:
        """Patch what was read, which fails where another has written meanwhile: a patch gives the taints of others too.
        Whether there was something to change."""
        path = f"{NODES}/{host}"
        node = self.api.get(path)
        body = change(node)
        if body is None:
            return False
        body["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"]
        self.api.patch(path, body)
        return True

    def _tell(self, host: str, reason: str, text: str, kind: str) -> None:
        with contextlib.suppress(CallFailed):
            create_event(self.api, host, reason, text, kind, time.time())

    # Pods.

    def _evict(self, host: str, step: KubernetesStep) -> None:
        held = []
        for pod in step.details["pods"]:
            namespace, _slash, name = pod["name"].partition("/")
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                # Not the one that has come to its name meanwhile.
                "deleteOptions": {"preconditions": {"uid": pod["uid"]}},
            }
            try:
                self.api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
            except Answered as why:
                if why.status == TOO_MANY:
                    held.append(pod["name"])
                elif why.status not in (GONE, CONFLICT):
                    raise
        if held:
            raise CallFailed(f"a PodDisruptionBudget holds {', '.join(held)}", "let more of its pods be away, or wait")
        self._tell(host, "GpuPodsEvicted", step.why, "Normal")


def _is_theirs(notes: Mapping[str, Any]) -> bool:
    """Whether a cordon is an operator's, or became theirs."""
    return DRAINED_BY in notes or notes.get(CORDONED_BY) != RECONCILER


def _items(found: Mapping[str, Any]) -> list[Any]:
    rows = found.get("items")
    if not isinstance(rows, list):
        raise CallFailed("the API server answers with no list")
    return rows


def _taint_value(code: str) -> str:
    """As a label's: it begins and ends with a letter or a number."""
    return code[:63].strip("-_.") or "fatal"


def _others(node: Mapping[str, Any]) -> list[Any]:
    return [one for one in (node.get("spec") or {}).get("taints") or () if one.get("key") != TAINT]


def _held(text: str | None, node: str, say: Say) -> dict[str, str]:
    """What the node is told to withhold. What cannot be read is nothing, and is written anew."""
    if not text:
        return {}
    try:
        return {one_line(key, 100): one_line(code, 80) for key, code in json_object(text).items()}
    except Malformed as why:
        say(f"node {node}", f"its annotation {HELD} is ignored: {why}")
        return {}


def _pod(row: Mapping[str, Any]) -> Pod | None:
    """None for one that a drain leaves alone."""
    about, spec, status = row["metadata"], row.get("spec") or {}, row.get("status") or {}
    owners = [one for one in about.get("ownerReferences") or () if one.get("controller")]
    controller = str(owners[0]["kind"]) if owners else ""
    if controller == "DaemonSet" or MIRROR in (about.get("annotations") or {}):
        return None
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    name = f"{about['namespace']}/{about['name']}"
    return Pod(name, str(about["uid"]), _gpus(spec, status), controller, bool(about.get("deletionTimestamp")))


def _gpus(spec: Mapping[str, Any], status: Mapping[str, Any]) -> frozenset[str] | None:
    """The GPUs of a pod, as kubelet tells them from 1.36 on; by the device plugin as UUID, by DRA as KIND=UUID."""
    found, asked = set(), bool(spec.get("resourceClaims"))
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        wanted = (container.get("resources") or {}).get("limits") or {}
        asked = asked or any(name.startswith(RESOURCE) for name in wanted)
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        for resource in container.get("allocatedResourcesStatus") or ():
            for one in resource.get("resources") or ():
                uuid = str(one.get("resourceID", "")).rpartition("=")[2]
                if uuid.startswith("GPU-"):
                    found.add(uuid)
    return frozenset(found) if found or not asked else None
