# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of Kubernetes gets the next minor version while pods run.

The tests of this file run in order, and no other file's tests can use the cluster after them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.site.kubernetes_lab import GPU, HEAD, MACHINES, NEXT, OTHER, Cluster, is_ready, kubectl, node, sleeping
from tests.site.plays import services, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

REPLICAS, AT_LEAST = 8, 6
SEEN = "/tmp/upgrade-available"
ALONE = "alone"


def template(app: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": app}}, "spec": sleeping()}


def workload() -> list[dict[str, Any]]:
    """Eight replicas of which six have to be there, two with an identity, and a pod that nothing would start again."""
    common = {"selector": {"matchLabels": {"app": "many"}}, "replicas": REPLICAS}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "many"},
            "spec": {**common, "template": template("many")},
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "many"},
            "spec": {"selector": {"matchLabels": {"app": "many"}}, "minAvailable": AT_LEAST},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "named"},
            "spec": {
                "serviceName": "named",
                "replicas": 2,
                "selector": {"matchLabels": {"app": "named"}},
                "template": template("named"),
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": ALONE},
            "spec": {**sleeping(), "nodeName": OTHER, "restartPolicy": "Never"},
        },
    ]


def ready(app: str) -> int:
    pods = json.loads(kubectl(f"get pods --selector=app={app} --output=json"))["items"]
    return sum(map(is_ready, pods))


def versions() -> dict[str, str]:
    return {name: node(name)["status"]["nodeInfo"]["kubeletVersion"].lstrip("v") for name in MACHINES}


@pytest.fixture(scope="module")
def running(kubernetes: Cluster) -> Iterator[Cluster]:
    kubernetes.publish(NEXT)
    kubernetes.push(NEXT)
    kubectl("apply -f -", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": workload()}))
    until(lambda: ready("many") == REPLICAS and ready("named") == 2, 120, lambda: kubectl("get pods -o wide"))
    # An API server that is upgraded does not answer, which is no count.
    count = (
        "kubectl --kubeconfig /etc/kubernetes/admin.conf get deployment many -o jsonpath={.status.availableReplicas}"
    )
    loop = f"rm -f {SEEN}; while :; do {count} 2>/dev/null && echo; sleep 0.3; done >>{SEEN} 2>/dev/null </dev/null &"
    ssh(HEAD, f"sudo sh -c '{loop}'")
    yield kubernetes
    ssh(HEAD, "sudo pkill -f 'get deployment man[y]'; sudo pkill -f upgrade-availabl[e]", check=False)


def test_an_ordinary_run_refuses_another_version(running: Cluster) -> None:
    play = running.run("kubernetes.yml", **running.of_version(NEXT))
    assert play.rc != 0
    assert "baremetal.gpu.kubernetes_upgrade" in play.stdout
    assert versions() == dict.fromkeys(MACHINES, "1.36.3")


def test_a_pod_that_nothing_would_start_again_keeps_its_node_from_being_upgraded(running: Cluster) -> None:
    play = running.run("kubernetes_upgrade.yml", kubernetes_operator_timeout=30, **running.of_version(NEXT))
    assert play.rc != 0
    assert f"default/{ALONE}" in play.stdout
    assert kubectl(f"get pod {ALONE} -o jsonpath={{.status.phase}}").strip() == "Running"
    # The control plane and the other node have the version: what is left is this node.
    assert versions() == {HEAD: NEXT, GPU: NEXT, OTHER: "1.36.3"}


def test_without_it_the_upgrade_ends_and_no_pod_is_lost(running: Cluster) -> None:
    kubectl(f"delete pod {ALONE} --wait=true")
    running.converge("kubernetes_upgrade.yml", **running.of_version(NEXT))
    assert versions() == dict.fromkeys(MACHINES, NEXT)
    assert not [name for name in MACHINES if node(name)["spec"].get("unschedulable")]
    until(lambda: (ready("many"), ready("named")) == (REPLICAS, 2), 120, lambda: kubectl("get pods -o wide"))
    seen = [int(line or 0) for line in ssh(HEAD, f"cat {SEEN}").splitlines()]
    assert len(seen) > 100
    assert min(seen) >= AT_LEAST
    assert node(GPU)["status"]["allocatable"]["nvidia.com/gpu"] == "2"


def test_a_run_for_the_new_version_changes_nothing(running: Cluster) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    play = running.converge("site.yml", **running.of_version(NEXT))
    assert {machine: play.changed_tasks.get(machine, []) for machine in MACHINES} == {name: [] for name in MACHINES}
    assert {machine: services(machine) for machine in MACHINES} == before
