# SPDX-License-Identifier: GPL-3.0-or-later
"""What can befall a cluster of Kubernetes: a power cut, a certificate that has ended, a lost etcd, a full disk, two
hosts of one name, a token that is too old. Each is named with its remedy, the remedy helps, and what runs goes on.

The tests of this file run in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.machines.state import Lab
from tests.site.kubernetes_lab import GPU, HEAD, MACHINES, OTHER, Cluster, is_ready, kubectl, node, prepare, sleeping
from tests.site.plays import lab, run_gpuops, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

SNAPSHOTS = "/var/backups/baremetal-gpu/etcd"
PKI = "/etc/kubernetes/pki"
# The same key, names and authority, of last January.
ENDED = f"""
cd {PKI} && cp -n apiserver.crt /root/apiserver.crt
openssl x509 -x509toreq -in apiserver.crt -signkey apiserver.key -copy_extensions copyall -out /root/apiserver.csr
openssl x509 -req -in /root/apiserver.csr -CA ca.crt -CAkey ca.key -copy_extensions copyall \
    -not_before 20260101000000Z -not_after 20260201000000Z -out apiserver.crt
"""
# As the remedy says it.
RENEW = "sudo systemctl start baremetal-gpu-kubernetes-renew"
# kubelet takes a disk that has room for one that is full.
FULL = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "evictionHard": {"nodefs.available": "99%", "imagefs.available": "1%", "memory.available": "50Mi"},
    "evictionPressureTransitionPeriod": "1s",
}
PLACE = "/spec/template/spec/nodeSelector"
DROP_IN = "/etc/kubernetes/kubelet.conf.d/99-full.conf"


def deployment(name: str, where: str | None = None, gpus: int = 0) -> dict[str, Any]:
    spec = {**sleeping(gpus), **({"nodeSelector": {"kubernetes.io/hostname": where}} if where else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def pod_of(name: str) -> dict[str, Any]:
    """The pod of a Deployment that runs."""
    pods = json.loads(kubectl(f"get pods --selector=app={name} --output=json"))["items"]
    return next((dict(pod) for pod in pods if is_ready(pod)), {})


def is_node_ready(name: str) -> bool:
    return is_ready(json.loads(kubectl(f"get node {name} -o json", check=False) or "{}"))


@pytest.fixture(scope="module")
def site(kubernetes: Cluster) -> Iterator[Cluster]:
    made = [deployment("on-gpu", GPU, 1), deployment("on-other", OTHER)]
    kubectl("apply -f -", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    until(lambda: pod_of("on-gpu") and pod_of("on-other"), 120, lambda: kubectl("get pods -o wide"))
    yield kubernetes
    kubectl("delete deployment on-gpu on-other", check=False)


def test_after_a_power_cut_of_all_machines_the_pods_run_again(site: Cluster) -> None:
    before = pod_of("on-other")["metadata"]["uid"]
    lab("power-cut", *MACHINES)
    lab("up", *(word for name, gpus in MACHINES.items() for word in ("--machine", f"{name}:trixie:{gpus}")))
    until(lambda: all(map(is_node_ready, MACHINES)), 300, lambda: kubectl("get nodes", check=False))
    until(lambda: pod_of("on-gpu") and pod_of("on-other"), 300, lambda: kubectl("get pods -o wide"))
    # The same pod: nothing was lost of what etcd had. kubelet refused the one with a GPU, since it does not know the
    # GPUs so early, and the Deployment has started another one.
    assert pod_of("on-other")["metadata"]["uid"] == before
    until(lambda: node(GPU)["status"]["allocatable"].get("nvidia.com/gpu") == "2", 120, lambda: node(GPU)["status"])


def test_a_certificate_that_has_ended_is_named_and_the_remedy_renews_it(site: Cluster) -> None:
    pid = ssh(GPU, "pgrep -f 'sleep 10000[0]' | head -1")
    ssh(HEAD, f"sudo sh -ec '{ENDED}'")
    # The API server reads the file again within a minute.
    until(lambda: not is_node_ready(HEAD), 180, lambda: kubectl("get nodes", check=False))
    told = run_gpuops(site.inventory, "doctor", HEAD, status=35).stdout
    assert f"{PKI}/apiserver.crt ended on 2026-02-01" in told
    assert RENEW in told
    ssh(HEAD, RENEW)
    until(lambda: all(map(is_node_ready, MACHINES)), 180, lambda: kubectl("get nodes", check=False))
    assert ssh(GPU, "pgrep -f 'sleep 10000[0]' | head -1") == pid


def test_a_lost_etcd_is_restored_from_a_snapshot_and_pods_go_on(site: Cluster) -> None:
    kubectl("create configmap before --from-literal=is=there")
    ssh(HEAD, "sudo systemctl start baremetal-gpu-etcd-snapshot")
    name = ssh(HEAD, f"sudo ls -t {SNAPSHOTS} | head -1").strip()
    kubectl("create configmap after --from-literal=is=there")
    pod, pid = pod_of("on-gpu")["metadata"]["uid"], ssh(GPU, "pgrep -f 'sleep 10000[0]' | head -1")
    ssh(HEAD, "sudo rm -rf /var/lib/etcd/member; sudo pkill -KILL -x etcd")
    # An etcd without data begins an empty cluster.
    until(lambda: ssh(HEAD, "sudo ls /var/lib/etcd/member", check=False), 120, lambda: ssh(HEAD, "sudo crictl ps -a"))
    unnamed = site.run("kubernetes_restore.yml")
    assert unnamed.rc != 0
    assert f"{SNAPSHOTS}/{name}" in unnamed.stdout
    refused = site.run("kubernetes_restore.yml", kubernetes_control_plane_snapshot=f"{SNAPSHOTS}/{name}")
    assert refused.rc != 0
    assert "kubernetes_control_plane_replace" in refused.stdout
    site.converge(
        "kubernetes_restore.yml",
        kubernetes_control_plane_snapshot=f"{SNAPSHOTS}/{name}",
        kubernetes_control_plane_replace=True,
    )
    until(lambda: all(map(is_node_ready, MACHINES)), 180, lambda: kubectl("get nodes", check=False))
    assert kubectl("get configmap before -o jsonpath={.data.is}").strip() == "there"
    assert "NotFound" in kubectl("get configmap after 2>&1", check=False)
    until(lambda: pod_of("on-gpu").get("metadata", {}).get("uid") == pod, 120, lambda: kubectl("get pods"))
    assert ssh(GPU, "pgrep -f 'sleep 10000[0]' | head -1") == pid


def test_a_full_disk_is_named_and_pods_go_elsewhere(site: Cluster) -> None:
    kubectl(f"patch deployment on-other --type=json -p='{json.dumps([{'op': 'remove', 'path': PLACE}])}'")
    until(lambda: pod_of("on-other"), 120, lambda: kubectl("get pods -o wide"))
    where = pod_of("on-other")["spec"]["nodeName"]
    ssh(where, f"sudo tee {DROP_IN} >/dev/null && sudo systemctl restart kubelet", given=json.dumps(FULL))
    try:
        pressure = f"get node {where} -o jsonpath='{{.status.conditions[?(@.type==\"DiskPressure\")].status}}'"
        until(lambda: kubectl(pressure).strip() == "True", 120, lambda: kubectl(f"describe node {where}"))
        told = run_gpuops(site.inventory, "doctor", where, status=35).stdout
        assert "its disk is full" in told
        assert "/var/lib/kubelet" in told
    finally:
        ssh(where, f"sudo rm {DROP_IN} && sudo systemctl restart kubelet")
    until(lambda: kubectl(pressure).strip() == "False", 120, lambda: kubectl(f"describe node {where}"))
    until(lambda: pod_of("on-other") and pod_of("on-gpu"), 120, lambda: kubectl("get pods -o wide"))


def test_a_host_does_not_take_the_place_of_another_one_by_its_name(site: Cluster) -> None:
    lab("reset", OTHER)
    prepare(OTHER)
    # An inventory with a wrong address.
    wrong = site.base / "wrong.json"
    wrong.write_text(json.dumps({"all": {"hosts": {GPU: {"ansible_host": Lab().get(OTHER).address}}}}))
    uid = node(GPU)["metadata"]["uid"]
    play = site.run("kubernetes.yml", f"-i {wrong}", hosts=[HEAD, GPU])
    assert play.rc != 0
    assert f'a Node with name "{GPU}" and status "Ready" already exists' in play.stdout
    assert (node(GPU)["metadata"]["uid"], is_node_ready(GPU)) == (uid, True)
    assert pod_of("on-gpu")


def test_a_token_that_is_too_old_is_named_and_the_next_run_joins_the_host(site: Cluster) -> None:
    lab("reset", OTHER)
    prepare(OTHER)
    play = site.run("kubernetes.yml", kubernetes_node_token_ttl="1s", kubernetes_node_timeout=60)
    assert play.rc != 0
    assert "kubeadm join" in play.stdout
    site.converge("site.yml")
    until(lambda: is_node_ready(OTHER), 120, lambda: kubectl("get nodes"))
    assert pod_of("on-gpu")
