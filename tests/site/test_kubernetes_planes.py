# SPDX-License-Identifier: GPL-3.0-or-later
"""Three control planes with a stacked etcd behind a load balancer: one is lost, comes back, and is installed anew.

The tests of this file run in order, on machines of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.lab.machines.state import Lab
from tests.site import kubernetes_lab
from tests.site.kubernetes_lab import Cluster, is_ready, prepare, sleeping
from tests.site.plays import lab, services, ssh, until, xid

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

FIRST, SECOND, THIRD = PLANES = ("kcp1", "kcp2", "kcp3")
GPU = "kgpu1"
MACHINES = {**dict.fromkeys(PLANES, "no-gpu"), GPU: "a100-sxm4-40gb-x2"}
GROUPS = {
    "kubernetes_control_planes": PLANES,
    "kubernetes_nodes": [GPU],
    "registries": [FIRST],
    "registry_clients": list(MACHINES),
}
PORT = 8443
PROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
frontend api
    bind :{port}
    default_backend planes
backend planes
    default-server check inter 500ms fall 2 rise 1
{servers}
"""


def kubectl(words: str, given: str | None = None, check: bool = True) -> str:
    """On the second control plane, which is never taken away."""
    return kubernetes_lab.kubectl(words, given, check, where=SECOND)


def ready() -> dict[str, bool]:
    nodes = json.loads(kubectl("get nodes -o json", check=False) or '{"items": []}')["items"]
    return {node["metadata"]["name"]: is_ready(node) for node in nodes}


def members() -> list[str]:
    """The names of etcd's members that have started."""
    pki = "/etc/kubernetes/pki/etcd"
    keys = f"--cacert={pki}/ca.crt --cert={pki}/server.crt --key={pki}/server.key"
    told = kubectl(f"exec -n kube-system etcd-{SECOND} -- etcdctl {keys} member list")
    return sorted(line.split(", ")[2] for line in told.splitlines() if line.split(", ")[1] == "started")


def withheld() -> set[str]:
    told = kubectl(
        f"get node {GPU} -o jsonpath='{{.status.conditions[?(@.type==\"GpuHealthy\")].message}}'", check=False
    )
    return set(re.findall(r"GPU-[0-9a-f-]+", told)) if "withheld" in told else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab("up", *(word for name, gpus in MACHINES.items() for word in ("--machine", f"{name}:trixie:{gpus}")))
    lab("reset", *MACHINES)
    machines = Lab()
    endpoint = f"{machines.get(GPU).address}:{PORT}"
    made = Cluster(
        tmp_path_factory.mktemp("planes"), machines=MACHINES, groups=GROUPS, kubernetes_common_endpoint=endpoint
    )
    ssh(GPU, "sudo apt-get install --assume-yes --quiet haproxy >/dev/null")
    servers = "\n".join(f"    server {name} {machines.get(name).address}:6443" for name in PLANES)
    ssh(GPU, "sudo tee /etc/haproxy/haproxy.cfg >/dev/null", given=PROXY.format(port=PORT, servers=servers))
    ssh(GPU, "sudo systemctl restart haproxy")
    with kubernetes_lab.cluster(made):
        yield made
    lab("down", *(word for name in MACHINES for word in ("--machine", name)))


def test_one_run_makes_a_cluster_of_three_control_planes(site: Cluster) -> None:
    site.converge("site.yml")
    until(lambda: ready() == dict.fromkeys(MACHINES, True), 120, ready)
    assert members() == list(PLANES)


def test_a_second_run_changes_nothing_and_restarts_no_daemon(site: Cluster) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    play = site.converge("site.yml")
    assert {machine: play.changed_tasks.get(machine, []) for machine in MACHINES} == {name: [] for name in MACHINES}
    assert {machine: services(machine) for machine in MACHINES} == before


def test_without_the_first_control_plane_a_fault_withholds_its_gpu(site: Cluster) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "goes-on"}, "spec": sleeping(gpus=1)}
    kubectl("apply -f -", given=json.dumps(pod))
    kubectl("wait --for=condition=Ready --timeout=120s pod/goes-on")
    lab("power-cut", FIRST)
    until(lambda: ready().get(FIRST) is False, 180, ready)
    xid(GPU, "0000:af:00")
    until(withheld, 60, lambda: kubectl(f"describe node {GPU}"))
    # A reconciler of those that are left leads.
    until(lambda: "held" in kubectl(f"get node {GPU} -o jsonpath={{.metadata.annotations}}"), 120, lambda: ready())
    assert kubectl("get pod goes-on -o jsonpath={.status.phase}").strip() == "Running"


def test_it_comes_back_as_it_was(site: Cluster) -> None:
    lab("up", "--machine", f"{FIRST}:trixie:no-gpu")
    until(lambda: ready() == dict.fromkeys(MACHINES, True), 180, ready)
    assert members() == list(PLANES)


def test_installed_anew_it_is_no_cluster_of_its_own(site: Cluster) -> None:
    lab("reset", FIRST)
    prepare(FIRST)
    alone = site.run("kubernetes.yml", hosts=[FIRST])
    assert alone.rc != 0
    assert "a second cluster would take its place" in alone.stdout
    play = site.run("kubernetes.yml")
    assert play.rc != 0
    assert "has none of its data" in play.stdout
    assert kubectl("get pod goes-on -o jsonpath={.status.phase}").strip() == "Running"


def test_after_the_remedy_it_joins_the_others(site: Cluster) -> None:
    play = site.run("kubernetes.yml")
    (remedy,) = set(re.findall(r"`sudo (kubectl [^`]*member remove [0-9a-f]+)`", " ".join(play.stdout.split())))
    ssh(SECOND, f"sudo {remedy}")
    kubectl(f"delete node {FIRST}")
    site.converge("site.yml")
    until(lambda: ready() == dict.fromkeys(MACHINES, True), 180, ready)
    assert members() == list(PLANES)
    assert kubectl("get pod goes-on -o jsonpath={.status.phase}").strip() == "Running"
