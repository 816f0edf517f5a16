# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives the GPUs of a node to pods by dynamic resource allocation (DRA), from Kubernetes 1.34 on.

A ResourceSlice has the GPUs with what a claim can select them by. A GPU with a fatal verdict has a taint, so that no
further claim gets it; pods on the others go on, and so does the pod that has it unless `evicts` is set. An API server
that does not keep taints (DRADeviceTaints, on by default from 1.36) gets a slice without that GPU.

Sources: k8s.io/kubelet, pkg/apis/dra/v1 and pkg/apis/pluginregistration/v1; k8s.io/api, resource/v1.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.container.cdi import KIND
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import grpc_server, protobuf
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api, time_text
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu, Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import TAINT

DRIVER = "gpu.baremetal-gpu"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
REGISTRY, PLUGINS = "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins"
PACKAGE, SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1", "v1.DRAPlugin"
HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
# How long kubelet relies on what it heard of a GPU.
HEALTH_S = 60.0
TICK_S = 0.1
# How often it is looked whether the slice is still what it should be, and how soon after a failure.
LOOK_S, RETRY_S = 30.0, 1.0

TABLE: protobuf.Table = {
    "Claim": {1: ("namespace", "string"), 2: ("uid", "string"), 3: ("name", "string")},
    "Device": {
        1: ("request_names", ["string"]),
        2: ("pool_name", "string"),
        3: ("device_name", "string"),
        4: ("cdi_device_ids", ["string"]),
    },
    "NodePrepareResourcesRequest": {1: ("claims", ["Claim"])},
    "NodePrepareResourceResponse": {1: ("devices", ["Device"]), 2: ("error", "string")},
    "NodePrepareResourcesResponse": {1: ("claims", {"string": "NodePrepareResourceResponse"})},
    "NodeUnprepareResourcesRequest": {1: ("claims", ["Claim"])},
    "NodeUnprepareResourceResponse": {1: ("error", "string")},
    "NodeUnprepareResourcesResponse": {1: ("claims", {"string": "NodeUnprepareResourceResponse"})},
}
HEALTH: protobuf.Table = {
    "NodeWatchResourcesRequest": {},
    "DeviceIdentifier": {1: ("pool_name", "string"), 2: ("device_name", "string")},
    "DeviceHealth": {
        1: ("device", "DeviceIdentifier"),
        # UNKNOWN, HEALTHY, UNHEALTHY
        2: ("health", "int32"),
        3: ("last_updated_time", "int64"),
        4: ("health_check_timeout_seconds", "int64"),
        5: ("message", "string"),
    },
    "NodeWatchResourcesResponse": {1: ("devices", ["DeviceHealth"])},
}
REGISTRATION: protobuf.Table = {
    "PluginInfo": {
        1: ("type", "string"),
        2: ("name", "string"),
        3: ("endpoint", "string"),
        4: ("supported_versions", ["string"]),
    },
    "RegistrationStatus": {1: ("plugin_registered", "bool"), 2: ("error", "string")},
    "RegistrationStatusResponse": {},
    "InfoRequest": {},
}


def device_name(uuid: str) -> str:
    """A GPU's name in a slice: a DNS label."""
    return uuid.lower()


def device(gpu: Gpu, since: str, evicts: bool) -> dict[str, Any]:
    """A device of a ResourceSlice. `since`: when a taint was made."""
    attributes: dict[str, Any] = {"uuid": {"string": gpu.uuid}}
    for name, text in (("productName", gpu.model), ("pciAddress", gpu.address), ("architecture", gpu.architecture)):
        if text:
            attributes[name] = {"string": text[:64]}
    for name, number in (("index", gpu.index), ("numaNode", gpu.numa)):
        if number is not None:
            attributes[name] = {"int": number}
    found: dict[str, Any] = {"name": device_name(gpu.uuid), "attributes": attributes}
    if gpu.memory_mib:
        # As the API server writes it: it changes a quantity that could be shorter.
        unit, size = ("Gi", gpu.memory_mib >> 10) if gpu.memory_mib % 1024 == 0 else ("Mi", gpu.memory_mib)
        found["capacity"] = {"memory": {"value": f"{size}{unit}"}}
    if not gpu.is_well:
        effect = "NoExecute" if evicts else "NoSchedule"
        found["taints"] = [{"key": TAINT, "value": gpu.code[:63], "effect": effect, "timeAdded": since}]
    return found


class Slices:
    """The ResourceSlice of a node."""

    def __init__(self, api: Api, node: str, evicts: bool = False) -> None:
        self.api, self.node, self.evicts = api, node, evicts
        self.name = f"{node}-{DRIVER}"
        # UUID -> (code, when its taint was made).
        self._since: dict[str, tuple[str, str]] = {}
        self.keeps_taints = True

    def wanted(self, gpus: Mapping[str, Gpu], now: float) -> list[dict[str, Any]]:
        text = time_text(now)
        rows = []
        for uuid, gpu in sorted(gpus.items()):
            if self._since.get(uuid, ("", ""))[0] != gpu.code:
                self._since[uuid] = gpu.code, text
            if gpu.is_well or self.keeps_taints:
                rows.append(device(gpu, self._since.get(uuid, ("", text))[1], self.evicts))
        return rows

    def publish(self, gpus: Mapping[str, Gpu], now: float) -> None:
        """Make the slice what it should be. Raises CallFailed."""
        found = self._find()
        if found is not None:
            # As the one before us had them.
            for row in found["spec"].get("devices") or ():
                for taint in row.get("taints") or ():
                    self._since.setdefault(_uuid_of(row, gpus), (taint.get("value", ""), taint.get("timeAdded", "")))
        for _attempt in range(2):
            devices = self.wanted(gpus, now)
            if found is None:
                if not devices:
                    return
                found = self.api.create(SLICES, self._slice(devices, 1))
            elif found["spec"].get("devices", []) != devices:
                generation = int(found["spec"]["pool"]["generation"]) + 1
                version = found["metadata"]["resourceVersion"]
                found = self.api.replace(f"{SLICES}/{self.name}", self._slice(devices, generation, version))
            kept = {row["name"] for row in found["spec"].get("devices") or () if row.get("taints")}
            if {row["name"] for row in devices if row.get("taints")} == kept:
                return
            self.keeps_taints = False

    def _find(self) -> dict[str, Any] | None:
        """A node may not ask for a slice by name before there is one, and may list its own."""
        query = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={self.node}"})
        rows = self.api.get(f"{SLICES}?{query}").get("items") or ()
        return next((row for row in rows if row["metadata"]["name"] == self.name), None)

    def _slice(self, devices: list[dict[str, Any]], generation: int, version: str = "") -> dict[str, Any]:
        pool = {"name": self.node, "generation": generation, "resourceSliceCount": 1}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": self.name, **({"resourceVersion": version} if version else {})},
            "spec": {"driver": DRIVER, "nodeName": self.node, "pool": pool, "devices": devices},
        }


def _uuid_of(row: Mapping[str, Any], gpus: Mapping[str, Gpu]) -> str:
    return next((uuid for uuid in gpus if device_name(uuid) == row.get("name")), "")


class Driver:
    """``Driver(gpus, api, node).run(ended)`` serves kubelet until the event is set."""

    def __init__(
        self,
        gpus: Gpus,
        api: Api,
        node: str,
        evicts: bool = False,
        registry: str = REGISTRY,
        plugins: str = PLUGINS,
    ) -> None:
        self.gpus, self.api, self.node = gpus, api, node
        self.slices = Slices(api, node, evicts)
        self.types = protobuf.messages(PACKAGE, TABLE)
        self.registration = protobuf.messages("pluginregistration", REGISTRATION)
        self.health = protobuf.messages("v1alpha1", HEALTH)
        self.directory = os.path.join(plugins, DRIVER)
        self.socket = os.path.join(self.directory, "dra.sock")
        self.registration_socket = os.path.join(registry, f"{DRIVER}-reg.sock")
        self._servers: list[Any] = []
        # What kubelet, and the API server, last said against us; empty if nothing.
        self.refused, self.problem = "", ""

    # What kubelet asks.

    def info(self, _request: Any, _context: Any) -> Any:
        return self.registration["PluginInfo"](
            type="DRAPlugin", name=DRIVER, endpoint=self.socket, supported_versions=[SERVICE, HEALTH_SERVICE]
        )

    def registered(self, request: Any, _context: Any) -> Any:
        self.refused = "" if request.plugin_registered else request.error[:300] or "kubelet does not say why"
        return self.registration["RegistrationStatusResponse"]()

    def prepare(self, request: Any, _context: Any) -> Any:
        response = self.types["NodePrepareResourcesResponse"]()
        for claim in request.claims:
            answer = response.claims[claim.uid]
            try:
                for row in self._allocated(claim):
                    answer.devices.add(
                        request_names=[row["request"]],
                        pool_name=row["pool"],
                        device_name=row["device"],
                        cdi_device_ids=[f"{KIND}={self._usable(row['device'])}"],
                    )
            except (CallFailed, KeyError, TypeError) as why:
                del answer.devices[:]
                answer.error = str(why) if isinstance(why, CallFailed) else f"the claim cannot be read: {why!r}"
        return response

    def _allocated(self, claim: Any) -> list[Mapping[str, Any]]:
        """What the scheduler has given to a claim of ours."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        found = self.api.get(path)
        if found["metadata"]["uid"] != claim.uid:
            raise CallFailed(f"claim {claim.namespace}/{claim.name} is another one by now")
        allocation = (found.get("status") or {}).get("allocation")
        if not allocation:
            raise CallFailed(f"claim {claim.namespace}/{claim.name} has no allocation")
        rows = allocation["devices"]["results"]
        return [row for row in rows if row["driver"] == DRIVER and row["pool"] == self.node]

    def _usable(self, name: str) -> str:
        """The UUID of a device. Raises CallFailed for one that is not to be used."""
        gpu = next((gpu for gpu in self.gpus.found.values() if device_name(gpu.uuid) == name), None)
        if gpu is None:
            raise CallFailed(f"{name[:64]} is not a GPU of {self.node}")
        if not gpu.is_well:
            # It failed after the scheduler had chosen it.
            raise CallFailed(f"{gpu.uuid} is withheld: {gpu.code}. {gpu.text}")
        return gpu.uuid

    def unprepare(self, request: Any, _context: Any) -> Any:
        """A CDI device needs nothing to be undone."""
        response = self.types["NodeUnprepareResourcesResponse"]()
        for claim in request.claims:
            response.claims[claim.uid].SetInParent()
        return response

    def watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """The health of every GPU now, and again at each change: kubelet shows it in the status of a pod."""
        sent, at = -1, 0.0
        while self._servers and context.is_active():
            number = self.gpus.wait(sent, 1.0)
            if number != sent or time.monotonic() >= at + HEALTH_S / 2:
                sent, at = number, time.monotonic()
                rows = [self._health(gpu) for gpu in self.gpus.found.values()]
                yield self.health["NodeWatchResourcesResponse"](devices=rows)

    def _health(self, gpu: Gpu) -> Any:
        text = "" if gpu.is_well else f"{gpu.code}: {gpu.text}"
        found = self.health["DeviceHealth"](
            health=1 if gpu.is_well else 2,
            last_updated_time=int(time.time()),
            health_check_timeout_seconds=int(HEALTH_S),
            message=text,
        )
        found.device.pool_name, found.device.device_name = self.node, device_name(gpu.uuid)
        return found

    # Service.

    def serve(self) -> None:
        """Listen at the sockets. Raises OSError where one cannot be made."""
        files.make_directories(self.directory, 0o750)
        gives: grpc_server.Methods = {
            "NodePrepareResources": (self.prepare, "NodePrepareResourcesRequest", "NodePrepareResourcesResponse"),
            "NodeUnprepareResources": (
                self.unprepare,
                "NodeUnprepareResourcesRequest",
                "NodeUnprepareResourcesResponse",
            ),
        }
        shows: grpc_server.Methods = {
            "NodeWatchResources": (self.watch, "NodeWatchResourcesRequest", ["NodeWatchResourcesResponse"])
        }
        services = {f"{PACKAGE}.DRAPlugin": (self.types, gives), HEALTH_SERVICE: (self.health, shows)}
        self._servers.append(grpc_server.serve(self.socket, services))
        # kubelet finds a plugin by the socket in the registry, so it comes last.
        registers: grpc_server.Methods = {
            "GetInfo": (self.info, "InfoRequest", "PluginInfo"),
            "NotifyRegistrationStatus": (self.registered, "RegistrationStatus", "RegistrationStatusResponse"),
        }
        services = {"pluginregistration.Registration": (self.registration, registers)}
        self._servers.append(grpc_server.serve(self.registration_socket, services))

    def stop(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.registration_socket)
        servers, self._servers = self._servers, []
        for server in reversed(servers):
            server.stop(0).wait()

    def run(self, ended: threading.Event) -> None:
        due = 0.0
        try:
            while not ended.wait(TICK_S):
                if not self._servers or not os.path.exists(self.registration_socket):
                    try:
                        self.stop()
                        self.serve()
                    except OSError as why:
                        self.problem = str(why)
                        ended.wait(RETRY_S)
                        continue
                if not self.gpus.refresh() and time.monotonic() < due:
                    continue
                try:
                    self.slices.publish(self.gpus.found, time.time())
                    self.problem, due = "", time.monotonic() + LOOK_S
                except CallFailed as why:
                    self.problem, due = str(why), time.monotonic() + RETRY_S
                except (KeyError, TypeError, ValueError) as why:
                    self.problem, due = f"the ResourceSlice cannot be read: {why!r}", time.monotonic() + RETRY_S
        finally:
            self.stop()
