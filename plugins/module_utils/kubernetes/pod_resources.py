# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pod has which GPU, as kubelet tells it, in a file for those who look at the node.

Source: k8s.io/kubelet, pkg/apis/podresources/v1; what claims have is in it from Kubernetes 1.34 on.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import grpc_server, node, protobuf

with contextlib.suppress(ImportError):
    # Without it, grpc_server.WHY_NOT says so.
    import grpc

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
METHOD = "/v1.PodResourcesLister/List"
LOOK_S, CALL_S = 5.0, 2.0
TABLE: protobuf.Table = {
    "ListPodResourcesRequest": {},
    "CDIDevice": {1: ("name", "string")},
    "ClaimResource": {1: ("cdi_devices", ["CDIDevice"])},
    "DynamicResource": {4: ("claim_resources", ["ClaimResource"])},
    "ContainerDevices": {1: ("resource_name", "string"), 2: ("device_ids", ["string"])},
    "ContainerResources": {2: ("devices", ["ContainerDevices"]), 5: ("dynamic_resources", ["DynamicResource"])},
    "PodResources": {1: ("name", "string"), 2: ("namespace", "string"), 3: ("containers", ["ContainerResources"])},
    "ListPodResourcesResponse": {1: ("pod_resources", ["PodResources"])},
}
# The id of a device, and the end of the name of a CDI device.
_UUID = re.compile(rf"(?:^|=)({node.UUID})$")


def _names(container: Any) -> Iterable[str]:
    for row in container.devices:
        yield from row.device_ids
    for row in container.dynamic_resources:
        for part in row.claim_resources:
            yield from (device.name for device in part.cdi_devices)


def rows(pods: Iterable[Any]) -> list[dict[str, Any]]:
    """Those that have GPUs."""
    found = []
    for pod in pods:
        names = [_UUID.search(name) for container in pod.containers for name in _names(container)]
        gpus = sorted({name[1] for name in names if name})
        if gpus:
            found.append({"namespace": pod.namespace, "name": pod.name, "gpus": gpus})
    return sorted(found, key=lambda row: (row["namespace"], row["name"]))


class PodLeases:
    """`show` writes the file where it changes. What kubelet does not tell leaves it as it is, until it is too old."""

    def __init__(self, socket: str = SOCKET, path: str = node.LEASES) -> None:
        self.socket, self.path = socket, path
        self.types = protobuf.messages("v1", TABLE)
        self._written: list[dict[str, Any]] | None = None
        self._at, self._due = 0.0, 0.0
        # Why it cannot be shown; empty if it can.
        self.problem = ""

    def show(self, now: float) -> None:
        if self._due - LOOK_S <= now < self._due:
            return
        self._due = now + LOOK_S
        try:
            request, response = self.types["ListPodResourcesRequest"](), self.types["ListPodResourcesResponse"]
            told = rows(grpc_server.call(self.socket, METHOD, request, response, CALL_S).pod_resources)
            is_old = not self._at <= now < self._at + node.WRITTEN_S
            if told != self._written or is_old or not os.path.exists(self.path):
                files.make_directories(os.path.dirname(self.path))
                # Names of pods are not for everyone on the host.
                files.write(self.path, node.leases_text(told, now), 0o640, durable=False)
                self._written, self._at = told, now
            self.problem = ""
        except (OSError, grpc.RpcError) as why:
            detail = why.details() if isinstance(why, grpc.RpcError) else why
            self.problem = f"which pod has which GPU is not known: {detail}"[:300]
