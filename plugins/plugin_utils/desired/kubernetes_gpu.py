# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon that gives the GPUs of a node to Kubernetes, and what the cluster has to know of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import DRIVER, RESOURCE
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

ROLE = "kubernetes_gpu"
PROGRAM = "/usr/libexec/baremetal-gpu/gpu-kubernetes"
CONFIG = "/etc/baremetal-gpu/kubernetes.json"
UNIT = "baremetal-gpu-kubernetes.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
PACKAGES = ("python3-grpcio", "python3-protobuf")
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the variables of the role.
    :param facts: of them `gpu`.
    :param peers: ``host``, its name, and ``server``, host:port of the API server; ``has``, the text of the daemon's
        file of settings, and ``pods``, the pods of the node as the API has them, both empty where they were not read.
    :return: Parts: `objects`, the labels of the node, and what the cluster has of all nodes with GPUs; `switches`,
        whether pods are to get GPUs in another way than before.
    """
    switches = _way_of(peers["has"]) not in ("", params["way"]) or params["state"] == "absent"
    users = [_name(pod) for pod in peers["pods"] if _has_gpus(pod)]
    if switches and users:
        return Plan(problems=(_in_use(peers["host"], users),), parts={"objects": [], "switches": True})
    if params["state"] == "absent":
        files = [doc.Absent(path) for path in (UNIT_PATH, CONFIG, PROGRAM)]
        document = doc.Document(files=files, units=[doc.Unit.stopped(UNIT)])
        return Plan(document, parts={"objects": [], "switches": bool(peers["has"])})
    config = {
        "server": f"https://{peers['server']}",
        "node": peers["host"],
        "way": params["way"],
        "evicts": params["evicts"],
    }
    text = json.dumps(config, indent=2, sort_keys=True)
    document = doc.Document(
        packages=[doc.Package(name) for name in PACKAGES],
        files=[
            *map(doc.Directory, ("/usr/libexec/baremetal-gpu", "/etc/baremetal-gpu")),
            doc.File(PROGRAM, bundle("kubernetes.command"), "0755"),
            doc.File(CONFIG, f"{text}\n"),
            doc.File(UNIT_PATH, render(ROLE, f"{UNIT}.j2", program=PROGRAM)),
        ],
        units=[doc.Unit.running(UNIT, [PROGRAM, CONFIG, UNIT_PATH])],
    )
    objects = [_labels(peers["host"], facts["gpu"]["devices"] if "gpu" in facts else [])]
    objects += [device_class()] if params["way"] == "dra" else []
    return Plan(document, parts={"objects": objects, "switches": switches})


def _way_of(text: str) -> str:
    """The way in which pods of the node get GPUs now; empty where there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("way", "")) if isinstance(found, dict) else ""


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}"


def _has_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod that has not ended was given GPUs, in either way."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    containers = [*pod["spec"].get("containers", ()), *pod["spec"].get("initContainers", ())]
    limits = [(one.get("resources") or {}).get("limits") or {} for one in containers]
    return bool(pod["spec"].get("resourceClaims")) or any(RESOURCE in one for one in limits)


def _in_use(host: str, users: Sequence[str]) -> Problem:
    return Problem(
        "gpus_in_use",
        host,
        f"pods have its GPUs ({', '.join(users)}), and what gives them out in another way would give them again",
        ", ".join(users),
        f"run `gpuops drain {host}`, then this again, then `gpuops restore {host}`",
    )


def _labels(host: str, devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The node with the labels that NVIDIA's and the node feature discovery give it, by which people select nodes.

    They describe one model; a node with several has those of the first.
    """
    first = devices[0] if devices else {}
    labels = {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(len(devices)),
        "nvidia.com/gpu.product": _NOT_IN_LABELS.sub("-", str(first.get("name") or "unknown"))[:63].strip("-_."),
        "nvidia.com/gpu.memory": str(int(first.get("memory_mib") or 0)),
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host, "labels": labels}}


def device_class() -> dict[str, Any]:
    """By this name a ResourceClaim requests a GPU."""
    expression = f'device.driver == "{DRIVER}"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
