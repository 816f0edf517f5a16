# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator is told of a cluster, from objects that are made by hand in the shapes of the API."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import cluster, diagnosis, kubectl
from tests.unit.plugins.module_utils.kubernetes.cluster_objects import (
    CNI,
    NOW,
    UNPLUGGED,
    UUIDS,
    Kubectl,
    claim,
    condition,
    control_plane,
    namespace,
    node,
    of_job,
    pod,
    read,
    resource_slice,
)


def row(found: dict[str, Any], name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = found["nodes"]
    return next(one for one in rows if one["name"] == name)


def codes(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["subject"], one["code"]) for one in found["problems"]]


@pytest.mark.parametrize(
    ("told", "number"),
    [("500m", 0.5), ("2", 2.0), ("1.5", 1.5), ("4Gi", 4.0 * 2**30), ("1k", 1000.0), ("12e3", 12000.0), ("1E", 1e18)],
)
def test_amounts(told: str, number: float) -> None:
    assert cluster.quantity(told) == pytest.approx(number)


@pytest.mark.parametrize("told", [None, "", "many", "1Gib", "-1", "1e999"])
def test_what_is_no_amount_is_nothing(told: str | None) -> None:
    assert cluster.quantity(told) == 0.0


def test_gpus_are_counted_by_node_with_what_pods_have() -> None:
    found = read(
        nodes=[control_plane(), node("gpu1"), node("gpu2"), node("cpu1", None)],
        pods=[pod("train-0", "gpu1", 1, owner=("Job", "train")), pod("web", "cpu1")],
        namespaces=[namespace("alice", "alice")],
    )
    gpu1 = row(found, "gpu1")
    assert {key: gpu1[key] for key in ("state", "way", "gpus", "gpus_used", "gpus_free", "gpus_held")} == {
        "state": "Ready",
        "way": "device_plugin",
        "gpus": 2,
        "gpus_used": 1,
        "gpus_free": 1,
        "gpus_held": 0,
    }
    assert (gpu1["cpus"], gpu1["free_cpus"], gpu1["free_memory_mib"]) == (15, 14, 63488)
    assert row(found, "cpu1")["way"] == ""
    head = row(found, "head1")
    assert (head["control_plane"], head["takes_jobs"]) == (True, False)
    assert head["closed_by"] == ["node-role.kubernetes.io/control-plane"]
    first = found["jobs"][0]
    told = {key: first[key] for key in ("id", "name", "user", "partition", "gpus", "cpus", "state", "waits")}
    assert told == {
        "id": "alice/train-0",
        "name": "train",
        "user": "alice",
        "partition": "alice",
        "gpus": 1,
        "cpus": 2,
        "state": "Running",
        "waits": False,
    }
    # The device plugin's GPUs are known to the node alone.
    assert first["nodes"] == [{"name": "gpu1", "gpus": [None]}]
    assert first["started"] == NOW - 3600
    assert found["problems"] == []


def test_a_pod_asks_for_what_its_containers_need_at_the_same_time() -> None:
    def container(gpus: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"nvidia.com/gpu": gpus}}, **more}

    one = pod("p", spec={"containers": [container("1"), container("2")], "initContainers": [container("4")]})
    assert cluster.asked(one, "nvidia.com/gpu") == 4
    one["spec"]["initContainers"] = [container("1", restartPolicy="Always"), container("1")]
    assert cluster.asked(one, "nvidia.com/gpu") == 4


def test_the_gpus_of_a_claim_are_known_by_their_uuids() -> None:
    found = read(
        nodes=[node("gpu1", None)],
        pods=[pod("a-0", "gpu1", **of_job("a", {"gpu": "a-0-gpu-x"})), pod("b-0", **of_job("b", {"gpu": "b-0-gpu-y"}))],
        resourceslices=[resource_slice("gpu1", *UUIDS[:3], gpu1="xid_fatal")],
        resourceclaims=[claim("a-0-gpu-x", UUIDS[2]), claim("b-0-gpu-y", count=2)],
    )
    assert found["jobs"][0]["nodes"] == [{"name": "gpu1", "gpus": [UUIDS[2]]}]
    assert [job["gpus"] for job in found["jobs"]] == [1, 2]
    gpu1 = row(found, "gpu1")
    assert [gpu1[key] for key in ("way", "gpus", "gpus_used", "gpus_held", "gpus_free")] == ["dra", 3, 1, 1, 1]
    assert gpu1["withheld"] == [UUIDS[1]]


def test_a_pod_whose_gpus_a_claim_stands_for_counts_them_once() -> None:
    extended = {"extendedResourceClaimStatus": {"resourceClaimName": "a-extended-resources-x", "requestMappings": []}}
    found = read(
        nodes=[node("gpu1", None)],
        pods=[pod("a", "gpu1", 1, status=extended)],
        resourceslices=[resource_slice("gpu1", *UUIDS[:2])],
        resourceclaims=[claim("a-extended-resources-x", UUIDS[0])],
    )
    assert [found["jobs"][0][key] for key in ("gpus", "nodes")] == [1, [{"name": "gpu1", "gpus": [UUIDS[0]]}]]
    assert [row(found, "gpu1")[key] for key in ("gpus", "gpus_used", "gpus_free")] == [2, 1, 1]


def test_a_gpu_that_is_withheld_is_known_before_kubelet_tells_it() -> None:
    told = f"1 of 2 GPUs are withheld: {UUIDS[1]}: xid_fatal, it broke"
    health = condition("GpuHealthy", "False", "GpuWithheld", told)
    early = row(read(nodes=[node("gpu1", 2, 2, health)]), "gpu1")
    assert (early["withheld"], early["gpus_held"], early["gpus_free"]) == ([UUIDS[1]], 1, 1)
    later = row(read(nodes=[node("gpu1", 2, 1, health)]), "gpu1")
    assert (later["gpus_held"], later["gpus_free"]) == (1, 1)


@pytest.mark.parametrize(
    ("ready", "code", "state"),
    [
        (condition("Ready", "False", "KubeletNotReady", CNI), "cni_missing", "NotReady"),
        (condition("Ready", "Unknown", "NodeStatusUnknown", UNPLUGGED), "kubelet_silent", "Unknown"),
        (condition("Ready", "False", "KubeletNotReady", "container runtime is down"), "engine_down", "NotReady"),
        (condition("Ready", "False", "KubeletNotReady", "of a kind that is new"), "not_ready", "NotReady"),
    ],
)
def test_why_a_node_is_not_ready(ready: dict[str, Any], code: str, state: str) -> None:
    found = read(nodes=[node("gpu1", 2, None, ready)])
    assert codes(found) == [("gpu1", code)]
    assert (row(found, "gpu1")["state"], row(found, "gpu1")["gpus_free"]) == (state, 0)
    assert ready["message"] in found["problems"][0]["evidence"]
    assert found["problems"][0]["remedy"]


def test_what_else_keeps_a_node_from_pods() -> None:
    full = condition("DiskPressure", "True", "KubeletHasDiskPressure")
    found = read(nodes=[node("gpu1", 2, None, unschedulable=True), node("gpu2", 2, None, full)])
    assert codes(found) == [("gpu1", "cordoned"), ("gpu2", "pressure")]
    assert row(found, "gpu1")["state"] == "Ready,SchedulingDisabled"


@pytest.mark.parametrize(
    ("annotations", "code", "remedy"),
    [
        ({"baremetal-gpu/drained-by-operator": "new fan"}, "maintenance", "`gpuops restore gpu1`"),
        (
            {"baremetal-gpu/cordoned-by": "reconciler", "baremetal-gpu/reason": "new fan"},
            "fenced",
            "gpuops-reconciler clear gpu1",
        ),
        ({}, "cordoned", "kubectl uncordon gpu1"),
    ],
)
def test_who_has_closed_a_node_and_how_it_is_opened(annotations: dict[str, str], code: str, remedy: str) -> None:
    closed = node("gpu1", 2, None, unschedulable=True)
    closed["metadata"]["annotations"] = annotations
    found = read(nodes=[closed])
    assert codes(found) == [("gpu1", code)]
    assert remedy in found["problems"][0]["remedy"]
    assert ("new fan" in found["problems"][0]["cause"]) == bool(annotations)


def test_gpus_that_nothing_has_registered_are_told() -> None:
    nodes = [node("gpu1", None), node("gpu2", 0), node("cpu1", None)]
    nodes[1]["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    assert codes(read(nodes=nodes, gpu_nodes=("gpu1",))) == [
        ("gpu1", "gpus_not_registered"),
        ("gpu2", "gpus_not_registered"),
    ]


def test_gpus_that_nothing_watches_are_told() -> None:
    silent = condition("GpuHealthy", "True")
    silent["lastHeartbeatTime"] = "2026-11-30T08:30:00Z"
    blind = condition("GpuHealthy", "Unknown", "NoReport", "the report of the GPU agent cannot be used: it is too old")
    found = read(nodes=[node("gpu1", 2, None, silent), node("gpu2", 2, None, blind)])
    assert codes(found) == [("gpu1", "gpus_not_watched"), ("gpu2", "gpus_not_judged")]


NO_GPU = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {a: }. preemption: no"
TAINTED = "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: b}."
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"


def test_pods_that_wait_are_told_in_their_order_and_why() -> None:
    later = pod("later", gpus=2, why=NO_GPU)
    later["metadata"]["creationTimestamp"] = "2026-11-30T08:30:00Z"
    gated = pod("gated", status={"conditions": [condition("PodScheduled", "False", "SchedulingGated")]})
    found = read(nodes=[node("gpu1")], pods=[later, gated, pod("train", "gpu1", 2)])
    assert [(job["id"], job["reason"]) for job in found["jobs"]] == [
        ("alice/train", ""),
        ("alice/gated", "SchedulingGated"),
        ("alice/later", "Unschedulable"),
    ]
    assert found["jobs"][2]["waits_for"] == "no node has enough free GPUs"
    assert found["waiting_total"] == 2
    # Who only waits for GPUs that others have will start.
    assert found["problems"] == []


@pytest.mark.parametrize(
    ("waiting", "code", "remedy"),
    [
        (pod("p", gpus=1, why=UNBOUND), "volume", "kubectl -n alice describe pvc"),
        (pod("p", gpus=1, why=TAINTED), "taints", "kubectl describe nodes"),
        (pod("p", gpus=3, why=NO_GPU), "too_many_gpus", "ask for fewer"),
    ],
)
def test_a_pod_that_does_not_start_by_itself_is_a_problem(waiting: dict[str, Any], code: str, remedy: str) -> None:
    found = read(nodes=[node("gpu1")], pods=[waiting])
    assert codes(found) == [("alice/p", code)]
    assert remedy in found["problems"][0]["remedy"]


def stopped(reason: str) -> dict[str, Any]:
    waiting = {"waiting": {"reason": reason, "message": f"{reason} of it"}}
    return {"containerStatuses": [{"name": "main", "state": waiting}]}


def test_a_container_that_does_not_start_is_a_problem_and_a_users_program_that_ends_is_none() -> None:
    found = read(
        nodes=[node("gpu1")],
        pods=[
            pod("a", "gpu1", status=stopped("ImagePullBackOff")),
            pod("b", "gpu1", status=stopped("CrashLoopBackOff")),
            pod("coredns", "gpu1", namespace="kube-system", status=stopped("CrashLoopBackOff")),
        ],
    )
    assert codes(found) == [("alice/a", "image"), ("kube-system/coredns", "system_pod")]
    assert [(job["id"], job["state"]) for job in found["jobs"]] == [
        ("alice/a", "ImagePullBackOff"),
        ("alice/b", "CrashLoopBackOff"),
    ]


def test_many_pods_with_one_problem_are_counted() -> None:
    found = read(nodes=[node("gpu1")], pods=[pod(f"p{number}", why=UNBOUND) for number in range(15)])
    assert len(found["problems"]) == 11
    assert found["problems"][-1]["cause"] == "5 more pods have the problem volume"


def test_of_some_nodes_only_their_problems_are_told() -> None:
    broken = condition("Ready", "False", "KubeletNotReady", CNI)
    lists = {"nodes": [node("gpu1"), node("gpu2", 2, None, broken)], "pods": [pod("p", why=UNBOUND)]}
    assert codes(read(about=("gpu1",), **lists)) == []
    assert codes(read(about=("gpu2",), **lists)) == [("gpu2", "cni_missing")]


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (1, "error: stat /etc/kubernetes/admin.conf: no such file or directory", "no_control_plane"),
        (127, "/usr/bin/kubectl: No such file or directory", "not_installed"),
        (1, "The connection to the server 192.0.2.1:6443 was refused - did you specify the right host?", "no_answer"),
        (1, "Unable to connect to the server: tls: failed to verify certificate: x509: certificate has expired or is "
            "not yet valid: current time", "certificates_ended"),
        (1, "Error from server: etcdserver: request timed out", "no_etcd"),
        (1, "error: You must be logged in to the server (Unauthorized)", "not_trusted"),
    ],
)  # fmt: skip
def test_why_the_api_server_was_not_asked(status: int, said: str, code: str) -> None:
    answers = Kubectl()
    answers.fails = status, said
    with pytest.raises(CallFailed) as why:
        cluster.read(kubectl.Kubectl(answers.run, 5.0))
    problem = diagnosis.no_answer(why.value.problem.cause)
    assert (problem.code, problem.evidence) == (code, said)
    assert problem.remedy


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"name": "gpu1; reboot"}},
        {"metadata": {"name": "gpu1"}, "status": {"capacity": {"cpu": 4}}},
        {"metadata": {"name": "gpu1"}, "spec": []},
        "gpu1",
    ],
)
def test_an_answer_of_another_shape_is_refused(wrong: Any) -> None:
    with pytest.raises(CallFailed, match="cannot be read"):
        read(nodes=[wrong])


def spoiled(chance: random.Random, value: Any) -> Any:
    if chance.random() < 0.02:
        numbers, words = (None, True, -1, 10**30, 1.5), ("", "\x1b[2J\n", "9" * 5000, "1e99")
        return chance.choice([*numbers, *words, [], {}, [None], {"a": []}])
    if isinstance(value, dict):
        return {key: spoiled(chance, part) for key, part in value.items()}
    return [spoiled(chance, part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_api_says_is_refused_or_made_harmless(seed: int) -> None:
    chance = random.Random(seed)
    health = condition("GpuHealthy", "False", "GpuWithheld", f"1 of 2: {UUIDS[0]}: xid_79")
    lists = {
        "nodes": [control_plane(), node("gpu1", 2, 1, health), node("gpu2", None)],
        "pods": [
            pod("a", "gpu1", 1, owner=("Job", "a")),
            pod("b", "gpu2", **of_job("b", {"gpu": "c"})),
            pod("d", why=UNBOUND),
        ],
        "namespaces": [namespace("alice", "alice")],
        "resourceslices": [resource_slice("gpu2", *UUIDS[:2], gpu1="xid_fatal")],
        "resourceclaims": [claim("c", UUIDS[0], where="gpu2")],
    }
    found: Any
    try:
        found = read(**{name: [spoiled(chance, row) for row in rows] for name, rows in lists.items()})
    except CallFailed as why:
        found = str(why)
    said = json.dumps(found, allow_nan=False)
    assert "\\u001b" not in said
    assert len(said) < 100_000


def test_a_gpu_that_a_slice_is_without_is_one_of_the_nodes_all_the_same() -> None:
    health = condition("GpuHealthy", "False", "GpuWithheld", f"1 of 3 GPUs are withheld: {UUIDS[2]}: xid_fatal")
    found = read(nodes=[node("gpu1", None, None, health)], resourceslices=[resource_slice("gpu1", *UUIDS[:2])])
    assert [row(found, "gpu1")[key] for key in ("gpus", "gpus_held", "gpus_free")] == [3, 1, 2]
