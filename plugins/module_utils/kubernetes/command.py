# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon of a node that gives its GPUs to Kubernetes, as one file on the host."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.sd_notify import notify
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import api, grpc_server
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.device_plugin import DevicePlugin
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.dra import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.node_status import NodeStatus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.own_node import OwnNode
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.pod_resources import PodLeases

CONFIG = Path("/etc/baremetal-gpu/kubernetes.json")
# How pods get GPUs: one of the two per node, never both for one GPU.
WAYS = ("device_plugin", "dra")
SHOW_S = 0.5
USAGE_ERROR = 64


@dataclass(frozen=True)
class Settings:
    """`server` is the URL of the API server, `node` the name of this node there. `evicts`: with DRA, a pod that has
    a GPU which turns fatal is evicted. `agent` is the socket of the GPU agent."""

    server: str
    node: str
    way: str = "device_plugin"
    evicts: bool = False
    agent: str = "/run/baremetal-gpu/agent.sock"


def load(path: Path) -> Settings:
    """Raises ValueError and OSError."""
    told: Any = json.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Settings)}
    if not isinstance(told, dict) or set(told) - known or not {"server", "node"} <= set(told):
        raise ValueError(f"give server and node, and of {', '.join(sorted(known))} what else is to be set")
    settings = Settings(**told)
    if settings.way not in WAYS:
        raise ValueError(f"way is {settings.way!r}: give one of {', '.join(WAYS)}")
    return settings


def run(settings: Settings, ended: threading.Event) -> None:
    """Until the event is set."""
    gpus, client = Gpus(held=None), api.Api(api.Settings(settings.server))
    status, leases = NodeStatus(client, settings.node, settings.way == "device_plugin"), PodLeases()
    own = OwnNode(client, settings.node, gpus, settings.agent)
    if settings.way == "dra":
        gives: Any = Driver(gpus, client, settings.node, settings.evicts)
    else:
        gives = DevicePlugin(gpus)
    worker = threading.Thread(target=gives.run, args=(ended,))
    worker.start()
    # It may wait for the API server when all ends.
    threading.Thread(target=own.follow, args=(ended,), daemon=True).start()
    notify("READY=1")
    told, number = "", 0
    while not ended.is_set():
        number = gpus.wait(number, SHOW_S)
        if not worker.is_alive():
            raise CallFailed("the GPUs are not given out any more", "see the traceback above")
        status.show(gpus.found, gpus.problem, time.time())
        own.tell()
        own.hand_on()
        leases.show(time.time())
        problem = gives.problem or gpus.problem or status.problem or own.problem or leases.problem
        if problem != told:
            told = problem
            sys.stderr.write(f"{problem or 'all is well again'}\n")
            notify(f"STATUS={problem or 'gives out GPUs'}")
    worker.join()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-kubernetes", description="Gives the GPUs of this node to Kubernetes.")
    parser.add_argument("--config", type=Path, default=CONFIG, help="(default: %(default)s)")
    asked = parser.parse_args(words)
    if grpc_server.WHY_NOT:
        sys.stderr.write(f"gpu-kubernetes: {grpc_server.WHY_NOT}: install python3-grpcio and python3-protobuf\n")
        return USAGE_ERROR
    try:
        settings = load(asked.config)
    except (OSError, ValueError, TypeError) as why:
        sys.stderr.write(f"gpu-kubernetes: {asked.config} cannot be used: {why}\n")
        return USAGE_ERROR
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_words: ended.set())
    try:
        run(settings, ended)
    except CallFailed as why:
        sys.stderr.write(f"gpu-kubernetes: {why}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
