# SPDX-License-Identifier: GPL-3.0-or-later
"""A hundred faults of the GPUs of a Kubernetes node under a load of pods, in each way in which pods get GPUs, with
daemons killed in between: no pod is lost, and none is given a GPU that is withheld.
"""

from __future__ import annotations

import os

import pytest

from tests.site.kubernetes_faults import KILLED, Faults
from tests.site.kubernetes_lab import GPU, HEAD, SHELL, Cluster, kubectl, node
from tests.site.plays import ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(2 * 3600)]

# GPUOPS_FAULTS is for who cannot wait.
FAULTS = int(os.environ.get("GPUOPS_FAULTS", "100"))


@pytest.fixture(scope="module")
def empty(kubernetes: Cluster) -> Cluster:
    """The cluster without pods and faults of earlier tests."""
    kubectl("delete pods --all --wait=true --grace-period=1")
    ssh(HEAD, f"sudo gpuops-reconciler clear {GPU}")
    return kubernetes


@pytest.mark.parametrize("way", ["device_plugin", "dra"])
def test_no_pod_is_lost_and_none_gets_a_withheld_gpu(empty: Cluster, way: str) -> None:
    # A repaired GPU is given out sooner than on a real site.
    empty.converge("kubernetes.yml", kubernetes_gpu_way=way, gpu_reconciler_policy={"settle_s": 2})
    faults = Faults(SHELL, way)
    faults.begin()
    try:
        faults.many(FAULTS, kill_every=4)
    finally:
        outcome = faults.end()
        print(faults.told(outcome))
    assert (outcome.lost, outcome.on_withheld, outcome.reopened) == ([], [], [])
    assert len(faults.faults) == FAULTS
    assert len(outcome.by_engine) <= sum(one.killed == "containerd" for one in faults.faults) * len(faults.gpus)
    assert {one.killed for one in faults.faults} >= {what for _machine, what, _how in KILLED[: FAULTS // 4]}
    assert outcome.pods > FAULTS / 2


def test_afterwards_the_node_has_all_its_gpus(empty: Cluster) -> None:
    empty.converge("kubernetes.yml")
    until(lambda: node(GPU)["status"]["allocatable"].get("nvidia.com/gpu") == "2", 60, lambda: node(GPU)["status"])
    assert "unschedulable" not in node(GPU)["spec"]
    assert not node(GPU)["metadata"]["annotations"].get("baremetal-gpu/held", "{}").strip("{}")
