# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of the Container Runtime Interface, by which a kubelet has containerd run containers.

Debian has no crictl and no nerdctl, and containerd's own `ctr` knows no CDI before version 2. Run on a machine as root
with a request as JSON in the first argument; prints what came of it as JSON:

    {"image": …, "runs": [{"cdi_devices": [name, …], "annotations": {…}, "memory_bytes": n, "cpu_quota": n,
                           "cpu_period": n, "scripts": [text, …]}]}

Every run is one container in a pod of its own on the host's network, with the host's /usr, in which the shell scripts
run one after the other; systemd reads its units again between them. A run gives `{"output": [text, …]}` or
`{"error": text}`.

The messages are written and read by hand (kubernetes/cri-api, pkg/apis/runtime/v1/api.proto), because Debian has gRPC
for Python but not the code that is generated from that file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SOCKET = "unix:///run/containerd/containerd.sock"
NODE_NETWORK = 2
# Numbers of the fields, from api.proto.
POD = {"metadata": 1, "linux": 8}
CONTAINER = {"metadata": 1, "image": 2, "mounts": 7, "annotations": 10, "linux": 15, "cdi_devices": 17}


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: Any) -> bytes:
    """One field: text or a message by its length, a number as it is; of a list each."""
    if isinstance(value, list):
        return b"".join(field(number, one) for one in value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def read(data: bytes) -> dict[int, Any]:
    """The fields of a message; of one that repeats, the last."""
    found: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        value: Any = number()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found[key >> 3] = value
    return found


def entry(key: str, value: str) -> bytes:
    return field(1, key) + field(2, value)


class Runtime:
    """containerd's runtime service."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def call(self, name: str, message: bytes) -> dict[int, Any]:
        method = self.channel.unary_unary(
            f"/runtime.v1.RuntimeService/{name}", request_serializer=bytes, response_deserializer=bytes
        )
        return read(method(message, timeout=60))

    def run(self, name: str, image: str, wanted: dict[str, Any]) -> list[str]:
        """Outputs of the commands."""
        metadata = field(1, name) + field(2, name) + field(3, "tests")
        namespaces = field(1, field(1, NODE_NETWORK))
        pod = field(POD["metadata"], metadata) + field(POD["linux"], field(2, namespaces))
        resources = b"".join(
            field(number, wanted[key])
            for number, key in ((1, "cpu_period"), (2, "cpu_quota"), (4, "memory_bytes"))
            if key in wanted
        )
        container = field(CONTAINER["metadata"], field(1, name)) + field(CONTAINER["image"], field(1, image))
        container += field(CONTAINER["mounts"], field(1, "/usr") + field(2, "/usr") + field(3, 1))
        container += field(CONTAINER["annotations"], [entry(*row) for row in wanted.get("annotations", {}).items()])
        container += field(CONTAINER["linux"], field(1, resources))
        container += field(CONTAINER["cdi_devices"], [field(1, device) for device in wanted.get("cdi_devices", [])])
        sandbox = self.call("RunPodSandbox", field(1, pod))[1]
        try:
            made = self.call("CreateContainer", field(1, sandbox) + field(2, container) + field(3, pod))[1]
            self.call("StartContainer", field(1, made))
            return [self.execute(made, script) for script in wanted["scripts"]]
        finally:
            self.call("StopPodSandbox", field(1, sandbox))
            self.call("RemovePodSandbox", field(1, sandbox))

    def execute(self, container: bytes, script: str) -> str:
        done = self.call("ExecSync", field(1, container) + field(2, ["/bin/sh", "-c", script]) + field(3, 30))
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        text = (done.get(1, b"") + done.get(2, b"")).decode(errors="replace")
        return text + (f"[ended with {done[3]}]" if done.get(3) else "")


def main() -> None:
    import grpc  # On the machine only.

    request = json.loads(sys.argv[1])
    results: list[dict[str, Any]] = []
    with grpc.insecure_channel(SOCKET) as channel:
        for number, wanted in enumerate(request["runs"]):
            try:
                results.append({"output": Runtime(channel).run(f"run-{number}", request["image"], wanted)})
            except grpc.RpcError as error:
                results.append({"error": error.details()})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
