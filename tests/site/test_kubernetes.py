# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of Kubernetes from machines with nothing but Debian: kubernetes.yml on real daemons.

The tests of this file run in order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.site.kubernetes_lab import GPU, MACHINES, OTHER, Cluster, kubectl, node, sleeping
from tests.site.plays import lab, services, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(2 * 3600)]


def pod(name: str, machine: str, gpus: int = 0) -> dict[str, Any]:
    """A pod on a node that stays."""
    where = {"nodeSelector": {"kubernetes.io/hostname": machine}} if gpus else {"nodeName": machine}
    spec = {**where, "restartPolicy": "Never", **sleeping(gpus)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def start(*pods: dict[str, Any]) -> None:
    kubectl("apply -f -", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    for one in pods:
        name = one["metadata"]["name"]
        kubectl(f"wait --for=condition=Ready --timeout=120s pod/{name}")


def allocatable() -> str:
    return str(node(GPU)["status"]["allocatable"]["nvidia.com/gpu"])


def inside(name: str, command: str, check: bool = True) -> str:
    return kubectl(f"exec {name} -- /bin/sh -c '{command}'", check=check).strip()


def test_check_mode_announces_the_cluster_and_makes_nothing(bare_kubernetes: Cluster) -> None:
    before = {machine: lab("changes", machine) for machine in MACHINES}
    play = bare_kubernetes.run("site.yml", "--check --diff")
    assert play.rc == 0, play.tail()
    assert "kubelet" in " ".join(play.drifts[GPU, "kubernetes"])
    assert {machine: lab("changes", machine) for machine in MACHINES} == before


def test_one_run_makes_the_cluster_from_bare_machines(bare_kubernetes: Cluster) -> None:
    bare_kubernetes.converge("site.yml")
    nodes = json.loads(kubectl("get nodes -o json"))["items"]
    ready = {
        row["metadata"]["name"]: [one["status"] for one in row["status"]["conditions"] if one["type"] == "Ready"]
        for row in nodes
    }
    assert ready == {name: ["True"] for name in MACHINES}
    assert allocatable() == "2"
    assert node(GPU)["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"


def test_a_second_run_changes_nothing_and_restarts_no_daemon(bare_kubernetes: Cluster) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    play = bare_kubernetes.converge("site.yml")
    assert {machine: play.changed_tasks.get(machine, []) for machine in MACHINES} == {name: [] for name in MACHINES}
    assert {machine: services(machine) for machine in MACHINES} == before


def test_pods_of_all_nodes_reach_each_other_and_the_names_of_services(bare_kubernetes: Cluster) -> None:
    kubectl("wait --for=condition=Available --timeout=120s -n kube-system deployment/coredns")
    names = {machine: f"walker-{machine}" for machine in (GPU, OTHER)}
    start(*(pod(name, machine) for machine, name in names.items()))
    for machine, name in names.items():
        other = names[OTHER if machine == GPU else GPU]
        address = kubectl(f"get pod {other} -o jsonpath={{.status.podIP}}").strip()
        assert "1 packets received" in inside(name, f"ping -c 1 -W 5 {address}")
        assert "10.96.0.1" in inside(name, "nslookup kubernetes.default.svc.cluster.local")


def test_a_pod_sees_the_gpus_that_it_was_given_and_no_other(bare_kubernetes: Cluster) -> None:
    start(pod("one", GPU, gpus=1), pod("two", GPU, gpus=1))
    seen = {name: inside(name, "ls /dev | grep nvidia[0-9]").split() for name in ("one", "two")}
    assert sorted(seen["one"] + seen["two"]) == ["nvidia0", "nvidia1"]
    (other,) = seen["two"]
    # Even with its number, which root in a container knows.
    made = inside("one", f"mknod /tmp/x c 195 {other[-1]} && cat /tmp/x 2>&1", check=False)
    assert "Operation not permitted" in made


def test_a_fault_withholds_its_gpu_and_no_pod_is_lost(bare_kubernetes: Cluster) -> None:
    lab("xid", GPU, "--gpu", "1", "--code", "79")
    until(lambda: allocatable() == "1", 60, allocatable)
    (condition,) = [row for row in node(GPU)["status"]["conditions"] if row["type"] == "GpuHealthy"]
    assert (condition["status"], "Xid 79" in condition["message"]) == ("False", True)
    for name in ("one", "two"):
        assert kubectl(f"get pod {name} -o jsonpath={{.status.phase}}").strip() == "Running"
    kubectl("delete pod one two --wait=true")
    start(pod("three", GPU, gpus=1))
    assert inside("three", "ls /dev | grep nvidia[0-9]").split() == ["nvidia0"]
    # It waits for the other GPU.
    kubectl("apply -f -", given=json.dumps(pod("four", GPU, gpus=1)))
    until(
        lambda: "Insufficient nvidia.com/gpu" in kubectl("describe pod four"), 60, lambda: kubectl("describe pod four")
    )


def test_a_node_is_drained_and_given_back(bare_kubernetes: Cluster) -> None:
    alone = f"walker-{OTHER}"
    drained = bare_kubernetes.run("drain.yml", "--diff", target_hosts=OTHER, drain_reason="new fan", drain_timeout=20)
    assert drained.rc != 0
    # Nothing would start it again.
    assert f"default/{alone}" in drained.stdout
    assert kubectl(f"get pod {alone} -o jsonpath={{.status.phase}}").strip() == "Running"
    kubectl(f"delete pod {alone} --wait=true --grace-period=1")
    bare_kubernetes.converge("drain.yml", target_hosts=OTHER, drain_timeout=60)
    assert node(OTHER)["spec"]["unschedulable"]
    assert node(OTHER)["metadata"]["annotations"]["baremetal-gpu/drained-by-operator"] == "new fan"
    bare_kubernetes.converge("restore.yml", target_hosts=OTHER)
    assert "unschedulable" not in node(OTHER)["spec"]
