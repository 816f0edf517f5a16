# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a cluster as one document: nodes, pods, and what is wrong with them.

kubectl asks for it on a control plane. Pods have the words of jobs, as those of other schedulers. Sources:
kubernetes.io/docs/reference/kubernetes-api, and k8s.io/api, core/v1 and resource/v1.
"""

from __future__ import annotations

import calendar
import re
import time
import urllib.parse
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    Shape,
    flag,
    json_object,
    list_of,
    mapping_of,
    object_of,
    or_null,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import diagnosis, maintenance
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    CONDITION,
    DRIVER,
    RESOURCE,
    SLICES,
    TAINT,
    USER_LABEL,
    VERDICT,
    VERDICT_AT_MOST,
)

# Of an answer; then the next ones are asked for.
PAGE = 500
BYTES_AT_MOST = 32 << 20
PAGES_AT_MOST = 60
WAITING_AT_MOST = 500
HAS_GPUS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
# Pods with GPUs tolerate a taint with this key where the API server adds that (ExtendedResourceToleration).
GPU_TAINT = RESOURCE
CLOSING = ("NoSchedule", "NoExecute")
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{1,59}")
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE]([+-]?\d{1,2}))?([KMGTPE]i|[numkMGTPE])?")
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


# --- What the API says ---------------------------------------------------------------------------------------------


def _listed(shape: Shape) -> Shape:
    return or_null(list_of(shape, 10000))


_NAME = text(r"[a-z0-9]([a-z0-9.:-]*[a-z0-9])?", 253, "a name of Kubernetes")
_WORD, _SENTENCE = text(at_most=253), text(at_most=1000)
_AMOUNTS = or_null(mapping_of(_WORD, text(at_most=40)))


def _meta(annotation: Shape) -> Shape:
    return object_of(
        {"name": _NAME},
        {
            "namespace": _NAME,
            "labels": or_null(mapping_of(_WORD, _WORD)),
            "annotations": or_null(mapping_of(_WORD, annotation)),
            "creationTimestamp": or_null(_WORD),
            "deletionTimestamp": or_null(_WORD),
            "ownerReferences": _listed(object_of({"kind": _WORD, "name": _WORD})),
        },
    )


_META = _meta(_SENTENCE)
_CONDITION = object_of(
    {"type": _WORD, "status": _WORD},
    {"reason": _WORD, "message": _SENTENCE, "lastHeartbeatTime": or_null(_WORD), "lastTransitionTime": or_null(_WORD)},
)
_TAINT = object_of({"key": _WORD, "effect": _WORD}, {"value": _WORD})
_NODE = object_of(
    # Its verdict is long.
    {"metadata": _meta(text(at_most=VERDICT_AT_MOST))},
    {
        "spec": object_of({}, {"unschedulable": flag, "taints": _listed(_TAINT)}),
        "status": object_of(
            {},
            {
                "capacity": _AMOUNTS,
                "allocatable": _AMOUNTS,
                "conditions": _listed(_CONDITION),
                "nodeInfo": object_of({}, {"kubeletVersion": _WORD}),
            },
        ),
    },
)
_CONTAINER = object_of({}, {"restartPolicy": _WORD, "resources": object_of({}, {"requests": _AMOUNTS})})
_WAITING = object_of({}, {"waiting": or_null(object_of({}, {"reason": _WORD, "message": _SENTENCE}))})
_ALLOCATED = object_of({}, {"name": _WORD, "resources": _listed(object_of({}, {"resourceID": _WORD}))})
_STATE = object_of({}, {"state": _WAITING, "allocatedResourcesStatus": _listed(_ALLOCATED)})
_MINORS = object_of(
    {}, {"devices": list_of(object_of({}, {"uuid": or_null(_WORD), "minor": or_null(whole(0, 65535))}))}
)
_POD = object_of(
    {"metadata": _META},
    {
        "spec": object_of(
            {},
            {
                "nodeName": _NAME,
                "containers": _listed(_CONTAINER),
                "initContainers": _listed(_CONTAINER),
                "resourceClaims": _listed(object_of({"name": _WORD}, {"resourceClaimName": or_null(_WORD)})),
                "activeDeadlineSeconds": or_null(whole()),
            },
        ),
        "status": object_of(
            {},
            {
                "phase": _WORD,
                "startTime": or_null(_WORD),
                "conditions": _listed(_CONDITION),
                "containerStatuses": _listed(_STATE),
                "initContainerStatuses": _listed(_STATE),
                "resourceClaimStatuses": _listed(object_of({"name": _WORD}, {"resourceClaimName": or_null(_WORD)})),
                "extendedResourceClaimStatus": or_null(object_of({}, {"resourceClaimName": _WORD})),
            },
        ),
    },
)
_COUNT = object_of({}, {"count": whole(0, 1000), "deviceClassName": _WORD})
_RESULT = object_of({"driver": _WORD, "pool": _WORD, "device": _WORD})
_ALLOCATION = object_of({}, {"devices": object_of({}, {"results": _listed(_RESULT)})})
_REQUEST = object_of({}, {"exactly": or_null(_COUNT), "firstAvailable": _listed(_COUNT)})
_CLAIM = object_of(
    {"metadata": _META},
    {
        "spec": object_of({}, {"devices": object_of({}, {"requests": _listed(_REQUEST)})}),
        "status": object_of({}, {"allocation": or_null(_ALLOCATION)}),
    },
)
_DEVICE = object_of(
    {"name": _WORD},
    {
        "attributes": or_null(mapping_of(_WORD, object_of({}, {"string": _WORD}))),
        "taints": _listed(object_of({"key": _WORD, "effect": _WORD}, {"value": _WORD})),
    },
)
_SLICE = object_of(
    {"spec": object_of({"driver": _WORD}, {"nodeName": or_null(_WORD), "devices": _listed(_DEVICE)})},
)
_NAMESPACE = object_of({"metadata": _META})


def rows(kubectl: Kubectl, path: str, shape: Shape, selector: str = "") -> list[dict[str, Any]]:
    """All objects of a list; none where the API server does not know their kind. Raises CallFailed."""
    found: list[dict[str, Any]] = []
    query = {"limit": str(PAGE), **({"fieldSelector": selector} if selector else {})}
    page = object_of({"items": _listed(shape)}, {"metadata": object_of({}, {"continue": text(at_most=10000)})})
    for _number in range(PAGES_AT_MOST):
        answer = kubectl.raw(f"{path}?{urllib.parse.urlencode(query)}")
        if answer is None:
            return []
        try:
            told = page(json_object(answer, BYTES_AT_MOST), "it")
        except Malformed as why:
            raise CallFailed(f"what the API server answers {path} cannot be read: {why}") from why
        found += told["items"] or ()
        if not told.get("metadata", {}).get("continue"):
            return found
        query["continue"] = told["metadata"]["continue"]
    raise CallFailed(f"{path} has more than {len(found)} rows", "delete what is not needed any more")


def seconds(told: str | None) -> float | None:
    """A time of the API in Unix seconds; None for what is none."""
    try:
        return float(calendar.timegm(time.strptime(str(told), "%Y-%m-%dT%H:%M:%SZ")))
    except (ValueError, OverflowError):
        return None


def quantity(told: str | None) -> float:
    """An amount such as 500m, 2 or 4Gi; 0 for what is none."""
    found = _QUANTITY.fullmatch(told or "")
    if found is None:
        return 0.0
    number, power, unit = found.groups()
    scale = 1024.0 ** ("KMGTPE".index(unit[0]) + 1) if unit and unit.endswith("i") else _UNITS.get(unit or "", 1.0)
    return float(number) * 10.0 ** int(power or 0) * scale


# --- Nodes and pods ------------------------------------------------------------------------------------------------


def _part(row: Mapping[str, Any], *names: str) -> Any:
    """A part of an object, of which any may be missing."""
    found: Any = row
    for name in names:
        found = (found or {}).get(name)
    return found


def _condition(row: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in _part(row, "status", "conditions") or () if one["type"] == kind), {})


def asked(pod: Mapping[str, Any], resource: str) -> float:
    """What a pod asks for: its containers together, or the one before them that asks for more."""

    def of(container: Mapping[str, Any]) -> float:
        return quantity((_part(container, "resources", "requests") or {}).get(resource))

    first = _part(pod, "spec", "initContainers") or ()
    beside = sum(of(one) for one in first if one.get("restartPolicy") == "Always")
    together = sum(of(one) for one in _part(pod, "spec", "containers") or ())
    return max([together + beside, *(of(one) + beside for one in first if one.get("restartPolicy") != "Always")])


class Claims:
    """ResourceClaims: the GPUs that the scheduler has given, and how many are asked for."""

    def __init__(self, claims: Iterable[Mapping[str, Any]], slices: Iterable[Mapping[str, Any]]) -> None:
        self._claims = {(one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in claims}
        # Node -> name of a device -> its UUID, and the code of what is wrong with it.
        self.devices: dict[str, dict[str, tuple[str | None, str]]] = {}
        for one in slices:
            spec = one["spec"]
            if spec["driver"] == DRIVER and spec.get("nodeName"):
                self.devices.setdefault(spec["nodeName"], {}).update(map(_device, spec.get("devices") or ()))
        # Node -> the devices that claims have there.
        self.given: dict[str, set[str]] = {}
        for claim in self._claims.values():
            for pool, device in _results(claim):
                self.given.setdefault(pool, set()).add(device)

    def of(self, pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        made = {
            row["name"]: row.get("resourceClaimName") for row in _part(pod, "status", "resourceClaimStatuses") or ()
        }
        names = [
            row.get("resourceClaimName") or made.get(row["name"]) for row in _part(pod, "spec", "resourceClaims") or ()
        ]
        names.append(_part(pod, "status", "extendedResourceClaimStatus", "resourceClaimName"))
        keys = [(pod["metadata"].get("namespace"), name) for name in dict.fromkeys(names) if name]
        return [self._claims[key] for key in keys if key in self._claims]

    def uuids(self, pod: Mapping[str, Any]) -> list[str | None]:
        """The GPUs of a pod; None for one that no slice has any more."""
        places = dict.fromkeys(place for claim in self.of(pod) for place in _results(claim))
        return [self.devices.get(node, {}).get(device, (None, ""))[0] for node, device in places]

    def count(self, pod: Mapping[str, Any]) -> int:
        """How many GPUs the claims of a pod have or ask for."""
        return sum(len(_results(claim)) or _wanted(claim) for claim in self.of(pod))


def _device(row: Mapping[str, Any]) -> tuple[str, tuple[str | None, str]]:
    uuid = _part(row, "attributes", "uuid", "string")
    code = next((one.get("value") or "fatal" for one in row.get("taints") or () if one["key"] == TAINT), "")
    return row["name"], (uuid, code)


def _results(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = _part(claim, "status", "allocation", "devices", "results") or ()
    return [(row["pool"], row["device"]) for row in rows if row["driver"] == DRIVER]


def _wanted(claim: Mapping[str, Any]) -> int:
    found = 0
    for request in _part(claim, "spec", "devices", "requests") or ():
        row = request.get("exactly") or next(iter(request.get("firstAvailable") or ()), None)
        if row and "gpu" in row.get("deviceClassName", ""):
            found += row.get("count", 1)
    return found


def node_row(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], claims: Claims) -> dict[str, Any]:
    """A node, in the words of other schedulers' where they have some.

    :param pods: those that have resources there.
    """
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    ready, health = _condition(node, "Ready"), _condition(node, CONDITION)
    is_ready, is_closed = ready.get("status") == "True", _part(node, "spec", "unschedulable") is True
    taints = [row for row in _part(node, "spec", "taints") or () if row["effect"] in CLOSING]
    closing = [row["key"] for row in taints if row["key"] != GPU_TAINT]
    takes_jobs = is_ready and not is_closed and not closing
    has, gives = _part(node, "status", "capacity") or {}, _part(node, "status", "allocatable") or {}
    devices, given = claims.devices.get(name, {}), claims.given.get(name, set())
    by_plugin, allocatable = int(quantity(has.get(RESOURCE))), int(quantity(gives.get(RESOURCE)))
    withheld = {uuid for uuid, code in devices.values() if code and uuid}
    if health.get("status") == "False":
        # Known at once, while kubelet tells every 10 s what is allocatable.
        withheld.update(_UUID.findall(health.get("message", "")))
    held = max(by_plugin - allocatable, len(withheld), sum(1 for _uuid, code in devices.values() if code))
    used = int(sum(asked(pod, RESOURCE) for pod in pods if not _part(pod, "status", "extendedResourceClaimStatus")))
    free = max(by_plugin - held - used, 0)
    free += sum(1 for device, (uuid, code) in devices.items() if not code and device not in given)
    # Where the API server keeps no taints, the slice is without those that are withheld.
    unlisted = len(withheld - {uuid for uuid, _code in devices.values()}) if devices else 0
    cpus, memory = quantity(gives.get("cpu")), quantity(gives.get("memory")) / 2**20
    return {
        "name": name,
        "state": ("Ready" if is_ready else "Unknown" if ready.get("status") == "Unknown" else "NotReady")
        + (",SchedulingDisabled" if is_closed else ""),
        "reason": "" if is_ready else one_line(ready.get("message") or "it has not reported yet", 500),
        "control_plane": diagnosis.CONTROL_PLANE in labels,
        "version": _part(node, "status", "nodeInfo", "kubeletVersion") or "",
        "in_service": is_ready,
        "drained": is_closed,
        "cordoned_by": maintenance.reasons(node),
        "closed_by": closing,
        "takes_jobs": takes_jobs,
        "way": "dra" if devices else "device_plugin" if RESOURCE in has else "",
        "gpus": by_plugin + len(devices) + unlisted,
        "gpus_used": used + len(given & set(devices)),
        "gpus_free": free if takes_jobs else 0,
        "gpus_held": held,
        "withheld": sorted(withheld),
        "minors": _minors(node),
        "is_gpu_node": bool(health) or any(labels.get(label) == "true" for label in HAS_GPUS),
        "gpu_health": {key: health.get(key, "") for key in ("status", "reason", "message")} if health else None,
        "gpu_health_at": seconds(health.get("lastHeartbeatTime")),
        "pressures": [
            row["type"]
            for row in _part(node, "status", "conditions") or ()
            if row["status"] == "True" and row["type"] in diagnosis.PRESSURES
        ],
        "cpus": int(cpus),
        "free_cpus": max(int(cpus - sum(asked(pod, "cpu") for pod in pods)), 0),
        "memory_mib": int(memory),
        "free_memory_mib": max(int(memory - sum(asked(pod, "memory") for pod in pods) / 2**20), 0),
    }


def _minors(node: Mapping[str, Any]) -> dict[str, int]:
    """UUID -> the number of the device file of each GPU, as the node says it with its verdict."""
    told = (node["metadata"].get("annotations") or {}).get(VERDICT, "{}")
    try:
        devices = _MINORS(json_object(told), VERDICT).get("devices", ())
    except Malformed:
        return {}
    return {row["uuid"]: row["minor"] for row in devices if row.get("uuid") and row.get("minor") is not None}


def _allocated(pod: Mapping[str, Any]) -> list[str]:
    """The GPUs that kubelet has given a pod by a device plugin; it says so from 1.36 on."""
    statuses = [
        row for kind in ("initContainerStatuses", "containerStatuses") for row in _part(pod, "status", kind) or ()
    ]
    resources = [row for status in statuses for row in status.get("allocatedResourcesStatus") or ()]
    ids = [
        one.get("resourceID", "") for row in resources if row.get("name") == RESOURCE for one in row["resources"] or ()
    ]
    return [uuid for uuid in dict.fromkeys(ids) if _UUID.fullmatch(uuid)]


def _hindrance(pod: Mapping[str, Any]) -> tuple[str, str]:
    """(reason, message) of the first container that waits; empty where none does."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for row in _part(pod, "status", kind) or ():
            waiting = _part(row, "state", "waiting")
            if waiting:
                return waiting.get("reason", ""), waiting.get("message", "")
    return "", ""


def is_system(pod: Mapping[str, Any]) -> bool:
    """Whether it belongs to the cluster or to a node, and not to a user."""
    owners = {row["kind"] for row in pod["metadata"].get("ownerReferences") or ()}
    return str(pod["metadata"].get("namespace")).startswith("kube-") or bool(owners & {"Node", "DaemonSet"})


def job_row(pod: Mapping[str, Any], claims: Claims, users: Mapping[str, str]) -> dict[str, Any]:
    meta, node = pod["metadata"], _part(pod, "spec", "nodeName")
    namespace = meta.get("namespace") or ""
    owner = next(iter(meta.get("ownerReferences") or ()), None)
    scheduled, (stopped, _message) = _condition(pod, "PodScheduled"), _hindrance(pod)
    uuids = [*claims.uuids(pod), *_allocated(pod)]
    asks = 0 if _part(pod, "status", "extendedResourceClaimStatus") else int(asked(pod, RESOURCE))
    gpus = asks + claims.count(pod)
    started, limit = seconds(_part(pod, "status", "startTime")), _part(pod, "spec", "activeDeadlineSeconds")
    state = "Terminating" if meta.get("deletionTimestamp") else stopped or _part(pod, "status", "phase") or ""
    return {
        "id": f"{namespace}/{meta['name']}",
        "name": owner["name"] if owner else meta["name"],
        "user": users.get(namespace, ""),
        "account": "",
        "partition": namespace,
        "qos": "",
        "state": state,
        "waits": not node,
        "reason": "" if node else scheduled.get("reason") or "NotConsidered",
        "waits_for": "" if node else diagnosis.waits_for(scheduled.get("reason", ""), scheduled.get("message", "")),
        "cpus": int(-(-asked(pod, "cpu") // 1)),
        "gpus": gpus,
        "submitted": seconds(meta.get("creationTimestamp")),
        "started": started if node else None,
        "ends": started + limit if node and started and limit else None,
        "holder": False,
        "nodes": [{"name": node, "gpus": (uuids + [None] * gpus)[: max(gpus, len(uuids))]}] if node else [],
    }


# --- The cluster ---------------------------------------------------------------------------------------------------


def read(
    kubectl: Kubectl, about: Collection[str] = (), gpu_nodes: Collection[str] = (), now: float | None = None
) -> dict[str, Any]:
    """The document. Raises CallFailed.

    :param about: nodes; with some, only their problems are told, and no pod is looked at.
    :param gpu_nodes: nodes that are known to have GPUs, whatever they tell.
    """
    now = time.time() if now is None else now
    nodes = rows(kubectl, "/api/v1/nodes", _NODE)
    alive = "status.phase!=Succeeded,status.phase!=Failed"
    pods = [] if about else rows(kubectl, "/api/v1/pods", _POD, alive)
    slices = rows(kubectl, SLICES, _SLICE, f"spec.driver={DRIVER}")
    claims = Claims(rows(kubectl, "/apis/resource.k8s.io/v1/resourceclaims", _CLAIM) if pods and slices else (), slices)
    users = {
        row["metadata"]["name"]: (row["metadata"].get("labels") or {}).get(USER_LABEL, "")
        for row in (rows(kubectl, "/api/v1/namespaces", _NAMESPACE) if pods else ())
    }
    there: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        there.setdefault(_part(pod, "spec", "nodeName") or "", []).append(pod)
    found = sorted((node_row(one, there.get(one["metadata"]["name"], ()), claims) for one in nodes), key=_name)
    for row in found:
        row["is_gpu_node"] = row["is_gpu_node"] or row["name"] in gpu_nodes
    jobs = [(job_row(pod, claims, users), pod) for pod in pods]
    shown = [row for row, pod in jobs if not is_system(pod) or (row["gpus"] and row["nodes"])]
    waiting = sorted((row for row in shown if row["waits"]), key=lambda row: row["submitted"] or 0.0)
    problems = [one for row in found if not about or row["name"] in about for one in diagnosis.node_problems(row, now)]
    if not about:
        most = max((row["gpus"] for row in found), default=0)
        for row, pod in jobs:
            scheduled, hindrance = _condition(pod, "PodScheduled"), _hindrance(pod)
            problems += diagnosis.pod_problems(row, scheduled.get("message", ""), hindrance, most, is_system(pod))
    return {
        "nodes": found,
        "jobs": [row for row in shown if not row["waits"]] + waiting[:WAITING_AT_MOST],
        "waiting_total": len(waiting),
        "problems": [one.as_dict() for one in diagnosis.shortened(problems)],
    }


def _name(row: Mapping[str, Any]) -> str:
    return str(row["name"])
