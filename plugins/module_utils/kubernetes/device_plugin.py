# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives the GPUs of a node to kubelet, by its device plugin interface v1beta1.

The resource is nvidia.com/gpu, a device is a GPU by its UUID, and a container gets it by its name in the CDI
specification. A GPU with a fatal verdict is Unhealthy: kubelet gives it to no more pods, and those that have it and the
others go on. Source: k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.container.cdi import KIND
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import grpc_server, protobuf
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu, Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import RESOURCE

with contextlib.suppress(ImportError):
    # Without it, grpc_server.WHY_NOT says so.
    import grpc

VERSION = "v1beta1"
DIRECTORY = "/var/lib/kubelet/device-plugins"
KUBELET, OURS = "kubelet.sock", "baremetal-gpu.sock"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
# How often the report and kubelet's socket are looked at.
TICK_S = 0.1
CALL_S = 5.0
# All sets of GPUs are compared up to so many; then one GPU after the other is chosen.
SETS_AT_MOST = 20000

_DEVICES = {1: ("devices_ids", ["string"])}
TABLE: protobuf.Table = {
    "Empty": {},
    "DevicePluginOptions": {1: ("pre_start_required", "bool"), 2: ("get_preferred_allocation_available", "bool")},
    "RegisterRequest": {
        1: ("version", "string"),
        2: ("endpoint", "string"),
        3: ("resource_name", "string"),
        4: ("options", "DevicePluginOptions"),
    },
    "NUMANode": {1: ("ID", "int64")},
    "TopologyInfo": {1: ("nodes", ["NUMANode"])},
    "Device": {1: ("ID", "string"), 2: ("health", "string"), 3: ("topology", "TopologyInfo")},
    "ListAndWatchResponse": {1: ("devices", ["Device"])},
    "ContainerPreferredAllocationRequest": {
        1: ("available_deviceIDs", ["string"]),
        2: ("must_include_deviceIDs", ["string"]),
        3: ("allocation_size", "int32"),
    },
    "PreferredAllocationRequest": {1: ("container_requests", ["ContainerPreferredAllocationRequest"])},
    "ContainerPreferredAllocationResponse": {1: ("deviceIDs", ["string"])},
    "PreferredAllocationResponse": {1: ("container_responses", ["ContainerPreferredAllocationResponse"])},
    "ContainerAllocateRequest": _DEVICES,
    "AllocateRequest": {1: ("container_requests", ["ContainerAllocateRequest"])},
    "CDIDevice": {1: ("name", "string")},
    "ContainerAllocateResponse": {5: ("cdi_devices", ["CDIDevice"])},
    "AllocateResponse": {1: ("container_responses", ["ContainerAllocateResponse"])},
    "PreStartContainerRequest": _DEVICES,
    "PreStartContainerResponse": {},
}


def preferred(gpus: Mapping[str, Gpu], available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """The GPUs that are nearest to one another, with those that must be among them."""
    chosen = list(dict.fromkeys(must))
    left = [uuid for uuid in dict.fromkeys(available) if uuid not in chosen]
    missing = min(size - len(chosen), len(left))
    if missing <= 0:
        return chosen[:size]

    def near(uuids: Sequence[str]) -> int:
        return sum(gpus[one].scores.get(other, 0) for one, other in itertools.combinations(uuids, 2) if one in gpus)

    sets = list(itertools.islice(itertools.combinations(left, missing), SETS_AT_MOST + 1))
    if len(sets) <= SETS_AT_MOST:
        return [*chosen, *max(sets, key=lambda row: near([*chosen, *row]))]
    for _number in range(missing):
        best = max(left, key=lambda uuid: near([*chosen, uuid]))
        chosen.append(best)
        left.remove(best)
    return chosen


class DevicePlugin:
    """``DevicePlugin(gpus).run(ended)`` serves kubelet until the event is set."""

    def __init__(self, gpus: Gpus, directory: str = DIRECTORY) -> None:
        self.gpus, self.directory = gpus, directory
        self.types = protobuf.messages(VERSION, TABLE)
        self._ended = threading.Event()
        self._server: Any = None
        # What stops kubelet from using us; empty if nothing does.
        self.problem = ""

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    # What kubelet asks.

    def options(self, _request: Any, _context: Any) -> Any:
        return self.types["DevicePluginOptions"](get_preferred_allocation_available=True)

    def watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """The GPUs now, and again at each change."""
        sent = -1
        while not self._ended.is_set() and context.is_active():
            number = self.gpus.wait(sent, 1.0)
            if number != sent:
                sent = number
                rows = [self._device(gpu) for gpu in self.gpus.found.values()]
                yield self.types["ListAndWatchResponse"](devices=rows)

    def _device(self, gpu: Gpu) -> Any:
        device = self.types["Device"](ID=gpu.uuid, health=HEALTHY if gpu.is_well else UNHEALTHY)
        if gpu.numa is not None:
            device.topology.nodes.add(ID=gpu.numa)
        return device

    def prefer(self, request: Any, _context: Any) -> Any:
        response = self.types["PreferredAllocationResponse"]()
        for row in request.container_requests:
            chosen = preferred(
                self.gpus.found, row.available_deviceIDs, row.must_include_deviceIDs, row.allocation_size
            )
            response.container_responses.add(deviceIDs=chosen)
        return response

    def allocate(self, request: Any, context: Any) -> Any:
        response = self.types["AllocateResponse"]()
        for row in request.container_requests:
            given = response.container_responses.add()
            for uuid in row.devices_ids:
                gpu = self.gpus.found.get(uuid)
                if gpu is None:
                    context.abort(grpc.StatusCode.NOT_FOUND, f"{uuid[:64]} is not a GPU of this node")
                elif not gpu.is_well:
                    # It failed after kubelet had chosen it.
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{uuid} is withheld: {gpu.code}. {gpu.text}")
                given.cdi_devices.add(name=f"{KIND}={uuid}")
        return response

    def before_start(self, _request: Any, _context: Any) -> Any:
        return self.types["PreStartContainerResponse"]()

    # Service.

    def serve(self) -> None:
        """Listen at a socket of ours, anew. Raises OSError where that cannot be made."""
        self.stop()
        methods: grpc_server.Methods = {
            "GetDevicePluginOptions": (self.options, "Empty", "DevicePluginOptions"),
            "ListAndWatch": (self.watch, "Empty", ["ListAndWatchResponse"]),
            "GetPreferredAllocation": (self.prefer, "PreferredAllocationRequest", "PreferredAllocationResponse"),
            "Allocate": (self.allocate, "AllocateRequest", "AllocateResponse"),
            "PreStartContainer": (self.before_start, "PreStartContainerRequest", "PreStartContainerResponse"),
        }
        self._server = grpc_server.serve(self.path(OURS), {f"{VERSION}.DevicePlugin": (self.types, methods)})

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def register(self) -> None:
        """Make us known to kubelet. Raises grpc.RpcError."""
        options = self.types["DevicePluginOptions"](get_preferred_allocation_available=True)
        request = self.types["RegisterRequest"](version=VERSION, endpoint=OURS, resource_name=RESOURCE, options=options)
        grpc_server.call(self.path(KUBELET), f"/{VERSION}.Registration/Register", request, self.types["Empty"], CALL_S)

    def run(self, ended: threading.Event) -> None:
        known: tuple[int, ...] | None = None
        try:
            while not ended.wait(TICK_S):
                self.gpus.refresh()
                now = self._sockets()
                # kubelet forgets its plugins when it starts, and removes their sockets.
                if now == known and not self.problem:
                    continue
                try:
                    self.serve()
                    self.register()
                    known, self.problem = self._sockets(), ""
                except (OSError, grpc.RpcError) as why:
                    self.problem = str(why.details() if isinstance(why, grpc.RpcError) else why)
                    ended.wait(1.0)
        finally:
            self._ended.set()
            self.stop()

    def _sockets(self) -> tuple[int, ...]:
        return tuple(_inode(self.path(name)) for name in (KUBELET, OURS))


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
