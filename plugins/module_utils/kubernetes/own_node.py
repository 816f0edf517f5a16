# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node and the reconciler tell each other by the node's own object; see names.py.

With the credentials of the node's kubelet, which may read and write this object alone. The verdict is written at once
when it changes, and a heartbeat with it: as long as the agent's report can be relied on.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import described
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import orders, uuid_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object, mapping_of, text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api, time_text
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    HEARD,
    HELD,
    NODES,
    ORDERS,
    VERDICT,
    VERDICT_AT_MOST,
)

# The reconciler takes a node for silent after three heartbeats.
HEARTBEAT_S, RETRY_S = 60.0, 1.0
# The agent is told again what it was told: it may have been restarted.
AGAIN_S = 30.0
ANSWER_AT_MOST = 64 << 10
_held = mapping_of(uuid_text, text(r"[A-Za-z0-9_.-]{1,80}", 80, "a code"))


class OwnNode:
    """`tell` and `hand_on` are called again and again; `follow` is a thread's work."""

    def __init__(self, api: Api, node: str, gpus: Gpus, agent: str, answer: str = described.ANSWER) -> None:
        self.api, self.node, self.gpus, self.agent, self.answer = api, node, gpus, agent, answer
        self._told, self._tell_at = "", 0.0
        self._orders, self._heard, self._hand_on_at = "", "", 0.0
        # Why the verdict is not told, what is held is not known, or the agent does not hear; each empty for nothing.
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str:
        return "; ".join(filter(None, self._problems.values()))

    # What the node says.

    def tell(self) -> None:
        """The verdict, where it is another one or a heartbeat is due."""
        result, now = self.gpus.result, time.monotonic()
        if result is None:
            return
        minors = {uuid: gpu.minor for uuid, gpu in self.gpus.found.items()}
        wanted = _document(self.node, result, minors, self.answer)
        if now < self._tell_at and (wanted == self._told or self._problems.get("tell")):
            return
        notes = {VERDICT: wanted, HEARD: time_text(time.time())}
        self._tell_at = now + RETRY_S
        with self._noted("tell", "the verdict cannot be published"):
            self.api.patch(f"{NODES}/{self.node}", {"metadata": {"annotations": notes}})
            self._told, self._tell_at = wanted, now + HEARTBEAT_S

    @contextlib.contextmanager
    def _noted(self, what: str, words: str) -> Iterator[None]:
        """What fails is a problem until it succeeds."""
        try:
            yield
            self._problems[what] = ""
        except (CallFailed, OSError, ValueError, KeyError, TypeError) as why:
            self._problems[what] = f"{words}: {one_line(why, 300)}"

    # What the reconciler says.

    def follow(self, ended: threading.Event) -> None:
        """Until the event is set: what is held back, and what the agent is to hear."""
        while not ended.is_set():
            with self._noted("follow", "what the reconciler wrote cannot be read"):
                self._watch(ended)
            ended.wait(RETRY_S)

    def _watch(self, ended: threading.Event) -> None:
        query = {"fieldSelector": f"metadata.name={self.node}"}
        found = self.api.get(f"{NODES}?{urllib.parse.urlencode(query)}")
        for node in found["items"]:
            self._take(node)
        version = str(found["metadata"]["resourceVersion"])
        while not ended.is_set():
            for kind, node in self.api.watch(NODES, version, **query):
                version = str(node["metadata"]["resourceVersion"])
                if kind in ("ADDED", "MODIFIED"):
                    self._take(node)

    def _take(self, node: Mapping[str, Any]) -> None:
        notes = node["metadata"].get("annotations") or {}
        self._orders = str(notes.get(ORDERS) or "")
        try:
            self.gpus.held = _held(json_object(notes.get(HELD) or "{}"), HELD)
            self._problems["follow"] = ""
        except Malformed as why:
            # What was held stays so.
            self.gpus.held = self.gpus.held or {}
            self._problems["follow"] = f"the annotation of node {self.node} is ignored: {why}"

    def hand_on(self) -> None:
        """To the agent: an order, and what an operator says is mended."""
        said, now = self._orders, time.monotonic()
        if not said or (said == self._heard and now < self._hand_on_at):
            return
        self._heard, self._hand_on_at = said, now + RETRY_S
        with self._noted("agent", "the agent does not hear the reconciler"):
            self._ask({"do": "hear", "orders": orders(said.encode())})
            self._hand_on_at = now + AGAIN_S

    def _ask(self, request: Mapping[str, Any]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
            to.settimeout(5.0)
            to.connect(self.agent)
            to.sendall(json.dumps(request).encode())
            with to.makefile("rb") as answers:
                answer = json_object(answers.readline(ANSWER_AT_MOST))
        if "error" in answer:
            raise CallFailed(one_line(answer["error"], 200))


def _document(node: str, result: Mapping[str, Any], minors: Mapping[str, int | None], answer: str) -> str:
    """The verdict as text: without the words of reasons where they are too many."""
    told = described.describe(node, result, answer)
    for row in told["devices"]:
        # By it the metrics of the cluster name a GPU.
        row["minor"] = minors.get(row["uuid"])
    wanted = json.dumps(told, separators=(",", ":"))
    if len(wanted) > VERDICT_AT_MOST:
        for part in (told, *told["devices"]):
            for reason in part["reasons"]:
                reason["text"] = ""
        wanted = json.dumps(told, separators=(",", ":"))
    return wanted
