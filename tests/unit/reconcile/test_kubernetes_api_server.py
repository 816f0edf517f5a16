# SPDX-License-Identifier: GPL-3.0-or-later
"""A real API server, where the stand-in is used elsewhere: what it lets nodes and the reconciler do, and how it does
what they ask."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered, Api
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    CORDONED_BY,
    HELD,
    NODES,
    TAINT,
    VERDICT,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.backend import KubernetesBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.rights import USER
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.shapes import (
    KubernetesNode,
    KubernetesStep,
)
from tests.local_kubernetes import LocalKubernetes

pytestmark = pytest.mark.slow

PATH = f"{NODES}/n1"
PODS = "/api/v1/namespaces/default/pods"
THEIRS = {"key": "site/rack", "value": "7", "effect": "NoSchedule"}


@pytest.fixture
def server(api_server: LocalKubernetes) -> LocalKubernetes:
    api_server.reset()
    for name in ("n1", "n2"):
        api_server.put(f"{NODES}/{name}", {"spec": {"taints": [THEIRS]}})
    return api_server


@pytest.fixture
def backend(server: LocalKubernetes) -> KubernetesBackend:
    return KubernetesBackend(server.caller(USER))


def node(server: LocalKubernetes) -> Api:
    return server.caller("system:node:n1/system:nodes")


def seen(backend: KubernetesBackend) -> KubernetesNode:
    found: KubernetesNode = backend.look({}, {"n1": plan.empty("n1")}, lambda *_words: None)["n1"].rows[0]
    return found


def step(kind: str, **details: Any) -> KubernetesStep:
    return KubernetesStep(kind, "why", details=details)


def pod(server: LocalKubernetes, name: str, **labels: str) -> dict[str, Any]:
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": "n1", "containers": [container], "terminationGracePeriodSeconds": 30}
    server.put(f"{PODS}/{name}", {"metadata": {"labels": labels}, "spec": spec})
    # As its kubelet would. The budget of one that does not run counts for nothing.
    ready = {"type": "Ready", "status": "True"}
    return server.admin.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [ready]}})


def test_a_node_writes_its_verdict_and_nothing_else(server: LocalKubernetes) -> None:
    mine = node(server)
    found = mine.patch(PATH, {"metadata": {"annotations": {VERDICT: "{}"}}})
    assert found["metadata"]["annotations"][VERDICT] == "{}"
    for path, change in (
        (f"{NODES}/n2", {"metadata": {"annotations": {VERDICT: "{}"}}}),
        (PATH, {"spec": {"taints": []}}),
        (PATH, {"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}),
    ):
        with pytest.raises(Answered) as failure:
            mine.patch(path, change)
        assert failure.value.status == 403
    with pytest.raises(Answered):
        mine.get(NODES)


def test_a_node_watches_its_own_object(server: LocalKubernetes, backend: KubernetesBackend) -> None:
    mine = node(server)
    query = {"fieldSelector": "metadata.name=n1"}
    version = mine.get(f"{NODES}?fieldSelector=metadata.name%3Dn1")["metadata"]["resourceVersion"]
    backend.perform("n1", step("hold", held={"GPU-1": "xid_79"}))
    kind, found = next(mine.watch(NODES, version, **query))
    assert (kind, json.loads(found["metadata"]["annotations"][HELD])) == ("MODIFIED", {"GPU-1": "xid_79"})
    backend.perform("n1", step("release", held={}))
    assert seen(backend).held == {}


def test_a_version_that_is_too_old_or_none_is_answered(server: LocalKubernetes) -> None:
    with pytest.raises(Answered):
        next(node(server).watch(NODES, "nonsense", fieldSelector="metadata.name=n1"))


def test_a_cordon_and_its_end_leave_the_taints_of_others(server: LocalKubernetes, backend: KubernetesBackend) -> None:
    before = server.admin.get(PATH)["spec"]["taints"]
    assert THEIRS in before
    backend.perform("n1", step("cordon", code="driver_version_mismatch"))
    row = seen(backend)
    assert (row.is_cordoned, row.ours, row.theirs) == (True, True, False)
    spec = server.admin.get(PATH)["spec"]
    assert spec["taints"] == [*before, {"key": TAINT, "value": "driver_version_mismatch", "effect": "NoSchedule"}]
    events = server.admin.get("/api/v1/namespaces/default/events")["items"]
    assert "GpuHostCordoned" in {one["reason"] for one in events}
    backend.perform("n1", step("uncordon"))
    found = server.admin.get(PATH)
    assert found["spec"] == {"taints": before}
    assert CORDONED_BY not in found["metadata"].get("annotations", {})


def test_a_change_that_another_has_overtaken_is_refused(server: LocalKubernetes) -> None:
    reconciler = server.caller(USER)
    version = reconciler.get(PATH)["metadata"]["resourceVersion"]
    server.admin.patch(PATH, {"metadata": {"annotations": {"a": "b"}}})
    with pytest.raises(Answered) as failure:
        reconciler.patch(PATH, {"metadata": {"resourceVersion": version, "annotations": {"a": "c"}}})
    assert failure.value.status == 409


def test_pods_are_evicted_as_their_budgets_allow_it(server: LocalKubernetes, backend: KubernetesBackend) -> None:
    backend.perform("n1", step("hold", held={"GPU-1": "xid_79"}))
    kept, free = pod(server, "kept", app="kept"), pod(server, "free")
    server.admin.create(
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}},
    )
    pods = seen(backend).pods
    assert pods is not None
    # kubelet tells nothing of their GPUs here.
    assert {one.name: one.gpus for one in pods} == {"default/kept": None, "default/free": None}
    both = [{"name": f"default/{one['metadata']['name']}", "uid": one["metadata"]["uid"]} for one in (kept, free)]
    with pytest.raises(CallFailed, match="a PodDisruptionBudget holds default/kept"):
        backend.perform("n1", step("evict", pods=both))
    pods = seen(backend).pods
    assert pods is not None
    assert {one.name: one.ends for one in pods} == {"default/kept": False, "default/free": True}
    server.admin.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/b")
    # One of the same name that came meanwhile stays.
    backend.perform("n1", step("evict", pods=[{"name": "default/kept", "uid": "of-the-one-before"}]))
    found = server.admin.get(f"{PODS}/kept")
    assert "deletionTimestamp" not in found["metadata"]


def test_the_reconciler_has_no_other_rights(server: LocalKubernetes) -> None:
    pod(server, "p1")
    reconciler = server.caller(USER)
    for call in (
        lambda: reconciler.delete(f"{PODS}/p1"),
        lambda: reconciler.get("/api/v1/namespaces/kube-system/configmaps"),
        lambda: reconciler.get("/api/v1/namespaces/baremetal-gpu/secrets"),
        lambda: reconciler.patch(f"{PATH}/status", {"status": {}}),
        lambda: reconciler.delete(PATH),
    ):
        with pytest.raises(Answered) as failure:
            call()
        assert failure.value.status == 403
