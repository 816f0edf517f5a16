# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of Kubernetes as its API server sees it: the daemon's part with the rights of its kubelet, and its agent."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import published
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import NODES, VERDICT
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.own_node import OwnNode
from tests.simulators.kube_api import NODE_USER, KubeApi
from tests.unit.plugins.module_utils.kubernetes.agent_report import Agent, certificate, client


class Node(Agent):
    """A node with its report, its object, and the socket of its agent."""

    def __init__(self, base: Path, api: KubeApi, certificates: Path, name: str = "n1") -> None:
        super().__init__(base / "root")
        self.api, self.name, self.path = api, name, f"{NODES}/{name}"
        self.api.put(self.path, {"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        known = str(client(certificates, f"{NODE_USER}{name}"))
        self.caller = Api(Settings(self.api.url, str(certificate(certificates)[0]), known))
        self.gpus = Gpus(str(self.root), held=None)
        self.answer = base / "answer.json"
        self.own = OwnNode(self.caller, name, self.gpus, str(base / "agent.sock"), str(self.answer))
        self.heard: list[dict[str, Any]] = []
        self.refuses = ""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(base / "agent.sock"))
        self.listener.listen()
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        threading.Thread(target=self.own.follow, args=(self.ended,), daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _address = self.listener.accept()
            except OSError:
                return
            with peer:
                self.heard.append(json.loads(peer.recv(1 << 16)))
                answer = {"error": self.refuses} if self.refuses else {"heard": True}
                peer.sendall(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        self.ended.set()
        self.listener.close()

    def note(self, **notes: str | None) -> None:
        """As the reconciler writes them."""
        node = self.api.objects[self.path]
        found = {**node["metadata"].get("annotations", {}), **notes}
        kept = {key: value for key, value in found.items() if value is not None}
        self.api.put(self.path, {**node, "metadata": {**node["metadata"], "annotations": kept}})

    def notes(self) -> dict[str, str]:
        found: dict[str, str] = self.api.objects[self.path]["metadata"].get("annotations", {})
        return found

    def say(self) -> None:
        """The agent reports, and the daemon has it."""
        self.says()
        self.gpus.refresh()
        self.own.tell()

    def told(self) -> dict[str, Any]:
        """What a reconciler makes of the node's word."""
        found = published.read(self.name, self.notes()[VERDICT].encode())
        assert isinstance(found, dict), found
        return found

    def free(self) -> set[str]:
        self.gpus.refresh()
        return {uuid for uuid, gpu in self.gpus.found.items() if gpu.is_well}
