# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for kubelet as device plugins see it. It refuses what kubelet refuses.

Made from kubelet's documentation of device plugins; its messages are its own, so that it does not agree with the
product by construction.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

SUPPORTED = "v1beta1"
RESOURCE = re.compile(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")


def fields(data: bytes) -> list[tuple[int, Any]]:
    """(number, value) of each field of a message: bytes, or an int."""
    found, place = [], 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        elif key & 7 == 2:
            size = varint()
            found.append((key >> 3, data[place : place + size]))
            place += size
        else:
            raise ValueError(f"wire type {key & 7}")
    return found


def texts(data: bytes, number: int) -> list[str]:
    return [value.decode() for key, value in fields(data) if key == number]


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


class Kubelet:
    """`devices` is what the plugin has reported last: id -> (health, NUMA nodes)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.devices: dict[str, tuple[str, list[int]]] = {}
        self.resource = ""
        self.registered = 0
        self.refused: list[str] = []
        self.channel: Any = None
        self._server: Any = None
        self.start()

    def start(self) -> None:
        """As kubelet does when it starts: it removes the sockets of all plugins."""
        for path in self.directory.glob("*.sock"):
            path.unlink()
        server = grpc.server(ThreadPoolExecutor(4))
        register = grpc.unary_unary_rpc_method_handler(self._register)
        service = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})
        server.add_generic_rpc_handlers((service,))
        assert server.add_insecure_port(f"unix://{self.directory}/kubelet.sock")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._server.stop(0).wait()

    def restart(self) -> None:
        self.stop()
        self.devices = {}
        self.start()

    def _register(self, data: bytes, context: Any) -> bytes:
        (version,), (endpoint,), (resource,) = (texts(data, number) for number in (1, 2, 3))
        why = ""
        if version != SUPPORTED:
            why = f"requested API version {version!r} is not supported"
        elif "/" in endpoint or not (self.directory / endpoint).exists():
            why = f"no socket {endpoint!r}"
        elif not RESOURCE.match(resource) or resource.partition("/")[0].endswith("kubernetes.io"):
            why = f"the ResourceName {resource!r} is invalid"
        if why:
            self.refused.append(why)
            context.abort(grpc.StatusCode.UNKNOWN, why)
        self.resource, self.registered = resource, self.registered + 1
        self.channel = grpc.insecure_channel(f"unix://{self.directory}/{endpoint}")
        threading.Thread(target=self._watch, args=(self.channel,), daemon=True).start()
        return b""

    def _watch(self, channel: Any) -> None:
        try:
            for message in channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b""):
                found = {}
                for number, device in fields(message):
                    assert number == 1
                    (name,), (health,) = texts(device, 1), texts(device, 2)
                    assert 0 < len(name) <= 63
                    assert health in ("Healthy", "Unhealthy")
                    topologies = [value for key, value in fields(device) if key == 3]
                    nodes = [dict(fields(node)).get(1, 0) for row in topologies for _key, node in fields(row)]
                    found[name] = (health, nodes)
                self.devices = found
        except (grpc.RpcError, ValueError):
            # As kubelet: without its plugin every device is unhealthy.
            self.devices = {name: ("Unhealthy", nodes) for name, (_health, nodes) in self.devices.items()}

    def ask(self, method: str, data: bytes) -> bytes:
        answer: bytes = self.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(data, timeout=10)
        return answer

    def allocate(self, *ids: str) -> list[str]:
        """The names of CDI devices that a container with these devices gets. Raises grpc.RpcError."""
        row = b"".join(field(1, one) for one in ids)
        (container,) = (value for key, value in fields(self.ask("Allocate", field(1, row))) if key == 1)
        return [name for key, device in fields(container) if key == 5 for name in texts(device, 1)]

    def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        row = b"".join(field(1, one) for one in available) + b"".join(field(2, one) for one in must) + field(3, size)
        (container,) = (value for _key, value in fields(self.ask("GetPreferredAllocation", field(1, row))))
        return texts(container, 1)

    def healthy(self) -> set[str]:
        return {name for name, (health, _nodes) in self.devices.items() if health == "Healthy"}


class PodResources:
    """Kubelet's list of who has which device: `plugin` is (namespace, pod, container) -> ids of devices, `cdi` the same
    with names of CDI devices, which claims have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plugin: dict[tuple[str, str, str], list[str]] = {}
        self.cdi: dict[tuple[str, str, str], list[str]] = {}
        # Pods without a device are listed, too.
        self.bare = [("kube-system", "kube-proxy-abcde")]
        self.asked = 0
        self._server: Any = None
        self.start()

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
        server.add_generic_rpc_handlers((service,))
        assert server.add_insecure_port(f"unix://{self.path}")
        server.start()
        self._server = server

    def stop(self) -> None:
        self._server.stop(0).wait()

    def _list(self, data: bytes, context: Any) -> bytes:
        if data:
            context.abort(grpc.StatusCode.INTERNAL, "the request has fields that it does not know")
        self.asked += 1
        containers: dict[tuple[str, str], dict[str, bytes]] = {pod: {} for pod in self.bare}
        for (namespace, pod, name), ids in self.plugin.items():
            # Each with its NUMA node, in rows of one resource each, as kubelet has them.
            rows = b"".join(
                field(2, field(1, "nvidia.com/gpu") + field(2, one) + field(3, field(1, field(1, 0)))) for one in ids
            )
            containers.setdefault((namespace, pod), {})[name] = rows + field(3, 0) + field(3, 1)
        for (namespace, pod, name), names in self.cdi.items():
            device = b"".join(field(1, field(1, one)) for one in names) + field(2, "gpu.baremetal-gpu")
            row = field(5, field(2, "claim") + field(3, namespace) + field(4, device))
            made = containers.setdefault((namespace, pod), {})
            made[name] = made.get(name, b"") + row
        pods = (
            field(1, pod) + field(2, namespace) + b"".join(field(3, field(1, name) + row) for name, row in rows.items())
            for (namespace, pod), rows in containers.items()
        )
        return b"".join(field(1, pod) for pod in pods)
