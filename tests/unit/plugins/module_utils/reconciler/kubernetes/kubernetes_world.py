# SPDX-License-Identifier: GPL-3.0-or-later
"""One node of Kubernetes with its daemon and kubelet, at the stand-in for the API server, for what the reconciler
decides.

`wrong` collects what must never happen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import HELD, NODES
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.backend import KubernetesBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.rights import USER, manifests
from tests.simulators.kube_api import KubeObjects, rights_of

NODE = "n1"
PATH = f"{NODES}/{NODE}"
READY = {"type": "Ready", "status": "True"}


class Killed(Exception):
    """The reconciler was killed at this point."""


@dataclass
class Caller:
    """kubernetes/api.py without a connection, as the reconciler's user; `cut` is after how many writes it is cut."""

    objects: KubeObjects
    user: str = USER
    cut: int | None = None
    calls: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        if method != "GET" and "/events" not in path:
            self.calls.append(f"{method} {path}")
            if self.cut is not None:
                self.cut -= 1
                if self.cut < 0:
                    self.cut = None
                    raise Killed(path)
        status, found = self.objects.serve(method, path, body, kind, self.user)
        if status >= 300:
            raise Answered(status, f"{method} {path}: {status} {found['message']}")
        return found

    def get(self, path: str) -> dict[str, Any]:
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.call("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.call("PUT", path, body)

    def delete(self, path: str) -> dict[str, Any]:
        return self.call("DELETE", path)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.call("PATCH", path, body, "application/strategic-merge-patch+json")


def kept(memory: dict[str, Any]) -> dict[str, Any]:
    """A memory as the next reconciler reads it."""
    found: dict[str, Any] = rows.node(plan, NODE, json.dumps({"memory": memory, "last": []}).encode())["memory"]
    return found


@dataclass
class KubernetesWorld:
    gpus: int = 4
    policy: Policy = field(default_factory=lambda: Policy(mode="act"))
    now: float = 1_800_000_000.0
    # Whether kubelet tells which GPU a pod has.
    tells: bool = True

    def __post_init__(self) -> None:
        self.uuids = [f"GPU-{number}" for number in range(self.gpus)]
        self.fatal: set[int] = set()
        self.action = "reboot"
        self.node_codes: list[str] = []
        self.session, self.boot = True, 1
        self.answer: dict[str, Any] | None = None
        self.numbers = itertools.count(1)
        self.api = KubeObjects(rights=rights_of(manifests("baremetal-gpu")))
        self.api.put(PATH, {"spec": {}, "status": {"conditions": [READY]}})
        self.caller = Caller(self.api)
        self.backend = KubernetesBackend(self.caller)  # type: ignore[arg-type]  # the same methods
        self.wrong: list[str] = []
        self.said: list[str] = []
        self.memory = plan.empty(NODE)

    # What is in Kubernetes.

    def node_object(self) -> dict[str, Any]:
        return self.api.objects[PATH]

    def notes(self) -> dict[str, str]:
        found: dict[str, str] = self.node_object()["metadata"].get("annotations") or {}
        return found

    def change(self, **spec: Any) -> None:
        """As an operator does it."""
        node = self.node_object()
        self.api.put(PATH, {**node, "spec": {**node["spec"], **spec}})

    @property
    def cordoned(self) -> bool:
        return bool(self.node_object()["spec"].get("unschedulable"))

    def pods(self) -> dict[str, set[int]]:
        """Path -> the GPUs that it has."""
        found = {}
        for path, one in self.api.objects.items():
            if "/pods/" in path:
                found[path] = set(one["gpus"])
        return found

    def withheld(self) -> set[int]:
        """What the node's daemon gives to no pod: by its agent's verdict, and by the reconciler's word."""
        held = json.loads(self.notes().get(HELD, "{}"))
        return self.fatal | {number for number, uuid in enumerate(self.uuids) if uuid in held}

    def free(self) -> set[int]:
        used = set().union(*self.pods().values()) if self.pods() else set()
        whole = set(range(self.gpus)) if self.node_codes or self.cordoned else set()
        return set(range(self.gpus)) - used - self.withheld() - whole

    def launch(self, controller: str = "Job", name: str = "") -> str:
        """A pod with one GPU; its path, empty if none is free."""
        free = sorted(self.free())
        if not free:
            return ""
        return self.run_pod(free[:1], controller, name)

    def run_pod(self, gpus: list[int], controller: str = "Job", name: str = "", **about: Any) -> str:
        name = name or f"p{next(self.numbers)}"
        path = f"/api/v1/namespaces/default/pods/{name}"
        owners = [{"kind": controller, "name": "owner", "controller": True}] if controller else []
        found = [{"resourceID": self.uuids[gpu], "health": "Healthy"} for gpu in gpus]
        statuses = [{"allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": found}]}]
        limits = {"nvidia.com/gpu": str(len(gpus))} if gpus else {}
        self.api.put(
            path,
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"u-{name}",
                    "ownerReferences": owners,
                    **about,
                },
                "spec": {"nodeName": NODE, "containers": [{"resources": {"limits": limits}}]},
                "status": {"phase": "Running", "containerStatuses": statuses if self.tells else [{}]},
                "gpus": gpus,
            },
        )
        return path

    # The node and the reconciler.

    def reboot(self) -> None:
        """Pods with a controller begin anew elsewhere."""
        self.boot += 1
        for path in self.pods():
            self.api.remove(path)

    def verdict(self) -> dict[str, Any] | None:
        if not self.session:
            return None
        reason = [{"code": "xid_79", "verdict": "fatal", "action": self.action, "text": "Xid 79"}]
        return {
            "schema": 1,
            "host": NODE,
            "boot_id": str(self.boot),
            "time": self.now,
            "verdict": "fatal" if self.fatal else "ok",
            "reasons": [{"code": code, "verdict": "fatal", "action": "inspect"} for code in self.node_codes],
            "devices": [
                {
                    "uuid": uuid,
                    "index": position,
                    "pci_address": f"0000:0{position}:00.0",
                    "verdict": "fatal" if position in self.fatal else "ok",
                    "reasons": reason if position in self.fatal else [],
                }
                for position, uuid in enumerate(self.uuids)
            ],
            "order": self.answer,
        }

    def node(self) -> Node:
        verdict = self.verdict()
        usable = {NODE: verdict} if verdict else {}
        seen = self.backend.look(usable, {NODE: self.memory}, lambda *words: self.said.append(": ".join(words)))
        return Node(NODE, verdict, seen[NODE].rows[0] if NODE in seen else None)

    def step(self, held: str = "") -> str:
        """Look, decide and take the step: its kind, or why there is none, in brackets."""
        node = self.node()
        self.memory = plan.observe(self.memory, node, self.policy, self.now)
        decision = plan.decide(self.memory, node, self.policy, self.now)
        decision = plan.hold_back(decision, self.memory, self.policy, held, self.now)
        if decision.step is None:
            return f"({decision.why})"
        self.memory = kept(plan.begin(self.memory, decision.step, self.now))
        error = None
        try:
            self.backend.perform(NODE, decision.step)
        except CallFailed as why:
            error = str(why)
        self.memory = kept(plan.end(self.memory, error, self.now))
        return decision.step.kind

    def turn(self, steps: int = 6) -> list[str]:
        """Steps until there is none."""
        kinds: list[str] = []
        while len(kinds) < steps and not (kinds and kinds[-1].startswith("(")):
            kinds.append(self.step())
            self.now += 0.25
        return kinds

    def settle(self, turns: int = 40) -> str:
        """Let time pass until nothing is done any more; what is waited for then."""
        quiet = 0
        for _number in range(turns):
            self.now += 30.0
            kinds = self.turn()
            quiet = quiet + 1 if len(kinds) == 1 else 0
            if quiet == 4:
                return kinds[0]
        raise AssertionError(f"it goes on without an end: {self.caller.calls[-20:]}")
