# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kubernetes shows of the GPUs of a node: the condition GpuHealthy, an event for each change of a GPU, and fewer
allocatable GPUs as soon as one is withheld.

With the credentials of the node's kubelet, which may do this for its own node alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api, time_text
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import CONDITION, NODES, RESOURCE

# The controllers of Kubernetes renew a condition as seldom where nothing changes.
HEARTBEAT_S = 300.0
RETRY_S = 5.0
TEXT_AT_MOST = 1000


def condition(gpus: Mapping[str, Gpu], problem: str) -> tuple[str, str, str]:
    """(status, reason, message)."""
    withheld = [gpu for gpu in gpus.values() if not gpu.is_well]
    if withheld:
        texts = "; ".join(f"{gpu.uuid}: {gpu.code}, {gpu.text}" for gpu in withheld)
        return "False", "GpuWithheld", f"{len(withheld)} of {len(gpus)} GPUs are withheld: {texts}"[:TEXT_AT_MOST]
    if problem:
        return "Unknown", "NoReport", f"the report of the GPU agent cannot be used: {problem}"[:TEXT_AT_MOST]
    return "True", "GpusWell", f"{len(gpus)} GPUs may be given out"


class NodeStatus:
    """`show` writes what changed. Nothing waits for it: the GPUs are withheld whether or not it can be shown.

    :param of_plugin: whether a device plugin gives the GPUs to pods. kubelet knows then at once that a GPU is withheld,
        and reports it only every 10 s. Until then the scheduler would send pods that kubelet has to refuse.
    """

    def __init__(self, api: Api, node: str, of_plugin: bool = False) -> None:
        self.api, self.node, self.of_plugin = api, node, of_plugin
        self._shown: tuple[str, str, str] | None = None
        self._codes: dict[str, str] = {}
        self._since, self._due = 0.0, 0.0
        # Why it cannot be shown; empty if it can.
        self.problem = ""

    def show(self, gpus: Mapping[str, Gpu], problem: str, now: float) -> None:
        wanted = condition(gpus, problem)
        if now < self._due and (wanted == self._shown or self.problem):
            return
        try:
            if self._shown is None or wanted[0] != self._shown[0]:
                self._since = now
            self._patch(wanted, gpus, now)
            self._tell(gpus, now)
            self._shown, self._due, self.problem = wanted, now + HEARTBEAT_S, ""
        except CallFailed as why:
            self._due, self.problem = now + RETRY_S, str(why)

    def _patch(self, wanted: tuple[str, str, str], gpus: Mapping[str, Gpu], now: float) -> None:
        status, reason, message = wanted
        row = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": time_text(now),
            "lastTransitionTime": time_text(self._since),
        }
        written = {"conditions": [row], **(self._fewer(gpus) if self.of_plugin else {})}
        self.api.patch(f"{NODES}/{self.node}/status", {"status": written})

    def _fewer(self, gpus: Mapping[str, Gpu]) -> dict[str, Any]:
        """What is allocatable, where that is less than the node says. Only kubelet says that it is more: it has to have
        the GPU first."""
        given = (self.api.get(f"{NODES}/{self.node}").get("status") or {}).get("allocatable") or {}
        well = sum(gpu.is_well for gpu in gpus.values())
        says = str(given.get(RESOURCE, ""))
        return {"allocatable": {RESOURCE: str(well)}} if says.isdecimal() and int(says) > well else {}

    def _tell(self, gpus: Mapping[str, Gpu], now: float) -> None:
        """An event for each GPU that is withheld now and was not, or the other way round."""
        for name, gpu in gpus.items():
            before = self._codes.get(name)
            if gpu.code != (before or ""):
                reason = "GpuWithheld" if gpu.code else "GpuGivenOut"
                text = f"{name}: {gpu.code}, {gpu.text}" if gpu.code else f"{name} is well again"
                create_event(self.api, self.node, reason, text, "Warning" if gpu.code else "Normal", now)
            self._codes[name] = gpu.code


def create_event(api: Api, node: str, reason: str, message: str, kind: str, now: float) -> None:
    """An event of a node; `kind` is Normal or Warning. Raises CallFailed."""
    event: dict[str, Any] = {
        "metadata": {"name": f"{node}.{uuid.uuid4().hex[:16]}", "namespace": "default"},
        # As kubelet does it: the UID of a node in its events is its name.
        "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": node, "uid": node},
        "reason": reason,
        "message": message[:TEXT_AT_MOST],
        "type": kind,
        "source": {"component": "baremetal-gpu", "host": node},
        "firstTimestamp": time_text(now),
        "lastTimestamp": time_text(now),
        "count": 1,
    }
    api.create("/api/v1/namespaces/default/events", event)
