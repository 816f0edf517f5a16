# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects of a cluster, made by hand in the shapes of the API (core/v1, resource/v1), and kubectl that tells them."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import cluster, kubectl

UUIDS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(4)]
# 2026-11-30 09:00:00 UTC.
NOW = 1796029200.0
CNI = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin "
    "returns error: cni plugin not initialized"
)
UNPLUGGED = "Kubelet stopped posting node status."


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    moments = {"lastHeartbeatTime": "2026-11-30T08:59:00Z", "lastTransitionTime": "2026-11-29T08:00:00Z"}
    return {"type": kind, "status": status, "reason": reason, "message": message, **moments}


def node(
    name: str, gpus: int | None = 2, allocatable: int | None = None, *conditions: dict[str, Any], **spec: Any
) -> dict[str, Any]:
    amounts = {"cpu": "16", "memory": "65536Mi", "pods": "110"}
    had = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    has = {} if gpus is None else {"nvidia.com/gpu": str(gpus if allocatable is None else allocatable)}
    kinds = {row["type"] for row in conditions}
    well = [condition(kind, "False") for kind in ("MemoryPressure", "DiskPressure", "PIDPressure") if kind not in kinds]
    well += (
        [condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")] if "Ready" not in kinds else []
    )
    return {
        "metadata": {"name": name, "uid": "u", "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "capacity": {**amounts, "cpu": "16", **had},
            "allocatable": {**amounts, "cpu": "15500m", **has},
            "conditions": [*well, *conditions],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "osImage": "Debian GNU/Linux 13 (trixie)"},
        },
    }


def control_plane(name: str = "head1") -> dict[str, Any]:
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    made = node(name, None, None, taints=[taint])
    made["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    return made


def pod(name: str, where: str | None = None, gpus: int = 0, namespace: str = "alice", **more: Any) -> dict[str, Any]:
    """:param more: `status` and `spec` add to what there is; `why` is what the scheduler says."""
    requests = {"cpu": "1500m", "memory": "2Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    spec = {"containers": [{"name": "main", "image": "i", "resources": {"requests": requests, "limits": requests}}]}
    if where:
        spec["nodeName"] = where  # type: ignore[assignment]
        scheduled = condition("PodScheduled")
        status = {"phase": "Running", "startTime": "2026-11-30T08:00:00Z", "conditions": [scheduled]}
    else:
        scheduled = condition("PodScheduled", "False", "Unschedulable", more.pop("why", ""))
        status = {"phase": "Pending", "conditions": [scheduled]}
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "creationTimestamp": "2026-11-30T07:59:50Z"}
    if "owner" in more:
        kind, owner = more.pop("owner")
        meta["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": kind, "name": owner, "uid": "o"}]
    return {"metadata": meta, "spec": {**spec, **more.get("spec", {})}, "status": {**status, **more.get("status", {})}}


def claim(name: str, *uuids: str, where: str = "gpu1", count: int = 1, namespace: str = "alice") -> dict[str, Any]:
    """A ResourceClaim; one without GPUs waits for them."""
    driver = "gpu.baremetal-gpu"
    rows = [{"request": "gpu", "driver": driver, "pool": where, "device": uuid.lower()} for uuid in uuids]
    exactly = {"deviceClassName": "gpu.baremetal-gpu", "allocationMode": "ExactCount", "count": count}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": rows}}} if rows else {},
    }


def resource_slice(where: str, *uuids: str, **codes: str) -> dict[str, Any]:
    """:param codes: `gpu1="xid_fatal"` for the second one of the UUIDs."""
    devices = []
    for number, uuid in enumerate(uuids):
        row: dict[str, Any] = {"name": uuid.lower(), "attributes": {"uuid": {"string": uuid}, "index": {"int": number}}}
        code = codes.get(f"gpu{number}")
        if code:
            row["taints"] = [{"key": "baremetal-gpu/fatal", "value": code, "effect": "NoSchedule"}]
        devices.append(row)
    pool = {"name": where, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.baremetal-gpu", "nodeName": where, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{where}-gpu.baremetal-gpu"}, "spec": spec}


def namespace(name: str, user: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"baremetal-gpu/user": user} if user else {}}}


def of_job(name: str, claims: dict[str, str]) -> dict[str, Any]:
    """What a pod has of its claims that a template has made."""
    return {
        "spec": {"resourceClaims": [{"name": one, "resourceClaimTemplateName": "t"} for one in claims]},
        "status": {"resourceClaimStatuses": [{"name": k, "resourceClaimName": v} for k, v in claims.items()]},
    }


class Kubectl:
    """Answers `kubectl get --raw PATH`, some rows at a time. `lists` is the path of a list -> its rows."""

    def __init__(self, **lists: list[dict[str, Any]]) -> None:
        core, resource = "/api/v1/", "/apis/resource.k8s.io/v1/"
        self.lists = {f"{core}{kind}": lists.get(kind, []) for kind in ("nodes", "pods", "namespaces")}
        if "resourceslices" in lists:
            self.lists |= {f"{resource}{kind}": lists.get(kind, []) for kind in ("resourceslices", "resourceclaims")}
        self.page = 3
        self.fails: tuple[int, str] | None = None

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        assert argv[:2] == ["kubectl", "--kubeconfig=/etc/kubernetes/admin.conf"]
        if self.fails:
            return self.fails[0], "", self.fails[1]
        path, _mark, query = argv[-1].partition("?")
        if path not in self.lists:
            return 1, "", "Error from server (NotFound): the server could not find the requested resource"
        begin = int(dict(urllib.parse.parse_qsl(query)).get("continue", "0"))
        rows, end = self.lists[path], begin + self.page
        more = {"continue": str(end)} if end < len(rows) else {}
        return 0, json.dumps({"kind": "List", "metadata": more, "items": rows[begin:end]}), ""


def read(about: tuple[str, ...] = (), gpu_nodes: tuple[str, ...] = (), **lists: list[dict[str, Any]]) -> dict[str, Any]:
    """What is reported of a cluster with these objects, by `cluster.read`."""
    return cluster.read(kubectl.Kubectl(Kubectl(**lists).run, 5.0), about, gpu_nodes, NOW)
