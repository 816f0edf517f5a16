# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of the roles of Kubernetes, without a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import (
    kubernetes_common,
    kubernetes_control_plane,
    kubernetes_gpu,
    kubernetes_network,
    kubernetes_node,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from tests.repositories.kubernetes_build import CACHE, ETCD
from tests.unit.project.tree import ROOT, try_run

SHA256 = "0123456789abcdef" * 4
SERVER = "10.0.0.1:6443"
TOKEN = "abcdef.0123456789abcdef"
JOIN = f"kubeadm join {SERVER} --token {TOKEN} --discovery-token-ca-cert-hash sha256:{SHA256} \n"
NODE = {
    "metadata": {"name": "gpu1"},
    "spec": {"podCIDR": "10.244.1.0/24"},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname", "address": "gpu1"}]},
}
HEAD = {
    "metadata": {"name": "head1"},
    "spec": {"podCIDR": "10.244.0.0/24"},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
}


def settings(role: str, **changed: Any) -> dict[str, Any]:
    """The defaults of a role, as a host with this address has them."""
    found = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text())
    params = {name.removeprefix(f"{role}_"): value for name, value in found.items()}
    if role == "kubernetes_common":
        has = {"kubelet": "", "containerd": "", "swaps": "", "filesystems": "", "bridge": False}
        key = {"repo_key_url": "http://mirror/Release.key", "repo_key_sha256": SHA256}
        params |= {"address": "10.0.0.1", "has_gpus": False, "engine": "containerd", "has": has, **key}
    assert changed.keys() <= params.keys()
    return {**params, **changed}


def common(
    planes: tuple[str, ...] = ("head1",),
    has: dict[str, Any] | None = None,
    upgrades: bool = False,
    groups: tuple[str, ...] = ("kubernetes_nodes",),
    **changed: Any,
) -> Plan:
    params = settings("kubernetes_common", **changed)
    params["has"] = {**params["has"], **(has or {})}
    return kubernetes_common.desired(
        params,
        {},
        {"host": "gpu1", "groups": groups, "control_planes": planes, "address": "10.0.0.1", "upgrades": upgrades},
    )


def control_plane(has: Any = None, common_changed: Any = None, **changed: Any) -> Plan:
    given = settings("kubernetes_common", **(common_changed or {}))
    peers = {"host": "head1", "common": given, "cluster": has, **common().parts}
    return kubernetes_control_plane.desired(settings("kubernetes_control_plane", **changed), {}, peers)


def cluster(**changed: Any) -> str:
    """The configuration with which kubeadm creates a cluster."""
    return str(control_plane(common_changed=changed).parts["config"])


def created(**changed: Any) -> dict[str, Any]:
    """A cluster as kubeadm notes it, with what it adds."""
    documents = yaml.safe_load_all(control_plane(**changed).parts["config"])
    (found,) = [one for one in documents if one["kind"] == "ClusterConfiguration"]
    return {**found, "certificatesDir": "/etc/kubernetes/pki", "dns": {}, "kubernetesVersion": "v1.35.0"}


def joining(host: str = "gpu1", is_control_plane: bool = False, join: str = JOIN, certificates: str = "") -> str:
    peers = {
        "host": host,
        "common": settings("kubernetes_common", address="10.0.0.2"),
        "server": SERVER,
        "is_control_plane": is_control_plane,
        "join": join,
        "certificates": certificates,
    }
    return str(kubernetes_node.desired(settings("kubernetes_node"), {}, peers).parts["config"])


def files(plan: Plan) -> dict[str, str]:
    return {row["path"]: str(row.get("content")) for row in plan.desired["files"]}


def codes(plan: Plan) -> list[tuple[str, str]]:
    return [(problem.code, problem.subject) for problem in plan.problems]


def test_kubelet_and_kubeadm_are_held_at_the_version() -> None:
    rows = {row["name"]: row for row in common(version="1.36.3").desired["packages"]}
    assert all((rows[name]["version"], rows[name]["hold"]) == ("1.36.3-*", True) for name in ("kubelet", "kubeadm"))
    (repository,) = common(version="1.36.3").desired["repositories"]
    assert "/v1.36/" in repository["uris"][0]
    assert common(repo_url="http://mirror/k8s").desired["repositories"][0]["uris"] == ["http://mirror/k8s"]


def test_modules_are_loaded_where_the_kernel_has_not_what_they_bring() -> None:
    assert [row["name"] for row in common().desired["kernel_modules"]] == ["overlay", "br_netfilter"]
    built_in: dict[str, Any] = {"filesystems": "nodev\tproc\nnodev\toverlay\n", "bridge": True}
    assert common(has=built_in).desired["kernel_modules"] == []


def test_settings_of_kubelet_are_a_file_of_their_own_and_those_of_the_operator_win() -> None:
    made = files(common(has_gpus=True, kubelet={"systemReserved": {"memory": "8Gi"}, "maxPods": 50}))
    found = json.loads(made["/etc/kubernetes/kubelet.conf.d/10-baremetal-gpu.conf"])
    assert (found["systemReserved"], found["maxPods"]) == ({"memory": "8Gi"}, 50)
    # A pod with a GPU gets CPUs of its own, near to it.
    assert (found["topologyManagerPolicy"], found["cpuManagerPolicy"]) == ("best-effort", "static")
    assert "/etc/default/kubelet" not in made
    assert "--config-dir=/etc/kubernetes/kubelet.conf.d" in made[kubernetes_common.DROP_IN]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"groups": ("kubernetes_nodes", "slurm_nodes")}, ("two_schedulers", "gpu1")),
        ({"planes": ()}, ("no_control_plane", "kubernetes_control_planes")),
        ({"planes": ("a", "b"), "endpoint": "lb:6443"}, ("even_control_planes", "kubernetes_control_planes")),
        ({"planes": ("a", "b", "c")}, ("wrong_setting", "kubernetes_common_endpoint")),
        ({"version": "1.33.9"}, ("wrong_setting", "kubernetes_common_version")),
        ({"version": "latest"}, ("wrong_setting", "kubernetes_common_version")),
        ({"repo_key_url": ""}, ("wrong_setting", "kubernetes_common_repo_key_sha256")),
        ({"repo_key_sha256": ""}, ("wrong_setting", "kubernetes_common_repo_key_sha256")),
        ({"engine": "docker"}, ("wrong_setting", "container_runtime_engine")),
        ({"address": "head1"}, ("wrong_setting", "kubernetes_common_address")),
        ({"pod_subnet": "10.0.0.0/8"}, ("wrong_setting", "kubernetes_common_pod_subnet")),
        ({"pod_subnet": "pods"}, ("wrong_setting", "kubernetes_common_pod_subnet")),
        ({"service_subnet": "10.0.0.0/24"}, ("wrong_setting", "kubernetes_common_service_subnet")),
        ({"has": {"swaps": "Filename Type Size\n/dev/sda2 partition 8\n"}}, ("swap_on", "swap")),
        ({"has": {"kubelet": "Kubernetes v1.36.1\n"}}, ("other_version", "kubelet")),
        ({"has": {"kubelet": "Kubernetes v1.34.4\n"}, "upgrades": True}, ("other_version", "kubelet")),
        ({"has": {"kubelet": "Kubernetes v1.37.2\n"}, "upgrades": True}, ("other_version", "kubelet")),
        ({"has": {"containerd": "containerd github.com/x 1.7.24 abc\n"}}, ("old_containerd", "containerd")),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], expected: tuple[str, str]) -> None:
    plan = common(**changed)
    assert expected in codes(plan)
    assert all(problem.remedy for problem in plan.problems)
    assert plan.desired == {}


def test_a_host_as_it_is_wanted_has_no_problem() -> None:
    has = {
        "kubelet": "Kubernetes v1.36.3\n",
        "containerd": "containerd github.com/containerd/containerd/v2 v2.4.2 \n",
        "swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
    }
    assert codes(common(has=has)) == []
    swapping = {"swaps": "Filename Type\n/dev/sda2 partition\n"}
    assert codes(common(has=swapping, kubelet={"failSwapOn": False})) == []
    assert codes(common(planes=("a", "b", "c"), endpoint="lb:6443")) == []
    older = common(has={"kubelet": "Kubernetes v1.35.9\n"}, upgrades=True)
    assert (codes(older), older.parts["is_other"], common(has=has).parts["is_other"]) == ([], True, False)


def test_the_images_come_from_the_registry_that_is_named() -> None:
    documents = {one["kind"]: one for one in yaml.safe_load_all(cluster(image_repository="reg1:5000/kubernetes"))}
    assert documents["ClusterConfiguration"]["imageRepository"] == "reg1:5000/kubernetes"
    assert "imageRepository" not in cluster()
    # Of a token that kubeadm makes with the cluster, and that has no use here.
    assert documents["InitConfiguration"]["bootstrapTokens"] == [{"ttl": "1m0s"}]


def test_secrets_are_encrypted_and_the_log_has_no_content() -> None:
    server = created()["apiServer"]
    arguments = {one["name"]: one["value"] for one in server["extraArgs"]}
    assert arguments["encryption-provider-config"] == "/etc/kubernetes/baremetal-gpu/encryption.json"
    # Each file that the API server is told of is in a volume.
    mounted = [one["mountPath"] for one in server["extraVolumes"]]
    paths = [value for value in arguments.values() if value.startswith("/")]
    assert all(any(path.startswith(f"{place}/") for place in mounted) for path in paths)
    made = files(control_plane())
    policy = json.loads(made[arguments["audit-policy-file"]])
    assert {rule["level"] for rule in policy["rules"]} == {"None", "Metadata"}
    of_secrets = next(rule for rule in policy["rules"] if "secrets" in str(rule))
    assert (policy["rules"][0], of_secrets["level"]) == (of_secrets, "Metadata")
    # The key is none of the document, which a diff shows.
    assert "/etc/kubernetes/baremetal-gpu/encryption.json" not in made
    assert "apiServer" not in created(encryption=False, audit=False)


def test_arguments_of_the_operator_stand_beside_ours_and_replace_them() -> None:
    theirs = {"extraArgs": [{"name": "audit-log-maxage", "value": "3"}, {"name": "v", "value": "2"}], "certSANs": ["a"]}
    server = created(cluster={"apiServer": theirs})["apiServer"]
    arguments = {one["name"]: one["value"] for one in server["extraArgs"]}
    assert len(arguments) == len(server["extraArgs"])
    assert (arguments["audit-log-maxage"], arguments["v"], server["certSANs"]) == ("3", "2", ["a"])
    assert "encryption-provider-config" in arguments


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({}, {}, ""),
        ({"encryption": False}, {}, "apiServer.extraArgs.encryption-provider-config"),
        ({}, {"encryption": False}, "apiServer.extraArgs.encryption-provider-config"),
        ({"audit_days": 7}, {}, "apiServer.extraArgs.audit-log-maxage"),
        ({}, {"cluster": {"scheduler": {"extraArgs": [{"name": "v", "value": "4"}]}}}, "scheduler.extraArgs.v"),
        ({"name": "old"}, {}, "clusterName"),
    ],
)
def test_what_a_cluster_was_not_created_with_is_told(before: dict[str, Any], now: dict[str, Any], told: str) -> None:
    warnings = control_plane(created(**before), **now).parts["warnings"]
    if not told:
        assert warnings == []
        return
    (text,) = warnings
    assert told in text
    assert "baremetal.gpu.kubernetes_settings" in text


def test_snapshots_and_renewals_have_timers() -> None:
    plan = control_plane(snapshot_keep=5)
    made = files(plan)
    assert json.loads(made[kubernetes_control_plane.SETTINGS])["keep"] == 5
    assert "OnCalendar=*-*-* 00/6:10\n" in made["/etc/systemd/system/baremetal-gpu-etcd-snapshot.timer"]
    rows = {row["name"]: row["state"] for row in plan.desired["units"]}
    assert set(rows.values()) == {"started"}
    modes = {row["path"]: row["mode"] for row in plan.desired["files"]}
    assert modes["/var/backups/baremetal-gpu/etcd"] == "0700"
    without = {row["name"]: row["state"] for row in control_plane(snapshot_at="").desired["units"]}
    assert without == {**rows, "baremetal-gpu-etcd-snapshot.timer": "stopped"}


@pytest.mark.parametrize(
    "changed",
    [
        {"snapshot_path": "backups"},
        {"snapshot_at": "now\nExecStart=x"},
        {"snapshot_keep": 0},
        {"renew_days": 0},
        {"audit_days": 0},
        {"audit_files": 0},
    ],
)
def test_settings_of_a_control_plane_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    plan = control_plane(**changed)
    assert codes(plan) == [("wrong_setting", f"kubernetes_control_plane_{next(iter(changed))}")]
    assert plan.desired == {}


def test_without_a_token_there_is_nothing_to_join_with() -> None:
    assert joining(join="") == ""
    document = json.loads(joining())
    assert document["discovery"]["bootstrapToken"]["caCertHashes"] == [f"sha256:{SHA256}"]
    assert "controlPlane" not in document


def test_a_further_control_plane_gets_the_certificates() -> None:
    document = json.loads(joining("head2", True, certificates=f"[upload-certs] Using certificate key:\n{SHA256}\n"))
    assert document["controlPlane"]["certificateKey"] == SHA256
    assert document["controlPlane"]["localAPIEndpoint"] == {"advertiseAddress": "10.0.0.2"}


@pytest.mark.parametrize("version", ETCD)
@pytest.mark.parametrize("config", [cluster(), joining()], ids=["init", "join"])
def test_kubeadm_takes_the_configuration(tmp_path: Path, version: str, config: str) -> None:
    kubeadm = CACHE / f"kubernetes-{version}" / "kubeadm"
    if not kubeadm.exists():
        pytest.skip(f"no kubeadm {version} in the cache: `python -m tests.repositories kubernetes` builds it")
    file = tmp_path / "kubeadm.yaml"
    file.write_text(config)
    done = try_run((kubeadm, "config", "validate", f"--config={file}"))
    assert done.returncode == 0, done.stderr


def network(*nodes: dict[str, Any], host: str = "gpu1") -> Plan:
    return kubernetes_network.desired(settings("kubernetes_network"), {}, {"host": host, "nodes": nodes})


def test_a_host_has_a_bridge_for_its_pods_and_routes_to_the_others() -> None:
    made = files(network(HEAD, NODE))
    (bridge, _ports) = json.loads(made[kubernetes_network.CONFIG])["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]
    routes = made[kubernetes_network.ROUTES].splitlines()
    assert routes == ["route flush proto 98", "route replace 10.244.0.0/24 via 10.0.0.1 proto 98"]


def test_a_node_without_a_range_yet_changes_nothing_and_gets_no_route() -> None:
    new = {**NODE, "metadata": {"name": "gpu2"}, "spec": {}}
    assert network(HEAD, new, host="gpu2").desired == {}
    assert "gpu2" not in files(network(HEAD, NODE, new))[kubernetes_network.ROUTES]
    assert network().desired == {}


def test_what_the_api_says_is_not_run_as_a_command() -> None:
    planted = {**HEAD, "spec": {"podCIDR": "0.0.0.0/0 via 10.0.0.9\nroute flush all"}}
    assert codes(network(planted, NODE)) == [("no_route", "kubernetes_network")]
    assert network(planted, NODE).desired == {}


def gpus(
    devices: list[dict[str, Any]] | None = None, has: str = "", pods: tuple[dict[str, Any], ...] = (), **changed: Any
) -> Plan:
    facts = {"gpu": {"devices": devices or []}}
    peers = {"host": "gpu1", "server": SERVER, "has": has, "pods": pods}
    return kubernetes_gpu.desired(settings("kubernetes_gpu", **changed), facts, peers)


def pod(name: str, limits: dict[str, str] | None = None, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": limits or {}}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **spec},
        "status": {"phase": phase},
    }


def test_gpus_of_pods_are_not_given_again_in_another_way() -> None:
    before = files(gpus())[kubernetes_gpu.CONFIG]
    one = {"nvidia.com/gpu": "1"}
    users = (pod("a", one), pod("b", resourceClaims=[{"name": "gpu"}]), pod("c"), pod("d", one, phase="Succeeded"))
    plan = gpus(has=before, pods=users, way="dra")
    assert (codes(plan), plan.desired) == ([("gpus_in_use", "gpu1")], {})
    assert "default/a, default/b)" in plan.problems[0].cause
    assert codes(gpus(has=before, pods=users, state="absent")) == [("gpus_in_use", "gpu1")]
    # The same way, or no pods any more.
    assert not gpus(has=before, pods=users).parts["switches"]
    assert codes(gpus(has=before, pods=users)) == codes(gpus(has=before, way="dra")) == []


def test_a_node_has_the_labels_by_which_people_select_gpus() -> None:
    device = {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960}
    (node,) = gpus([device, device]).parts["objects"]
    assert node["metadata"]["labels"] == {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.memory": "40960",
    }


def test_claims_request_gpus_by_a_class_where_that_is_the_way() -> None:
    _node, device_class = gpus(way="dra").parts["objects"]
    assert (device_class["kind"], device_class["metadata"]["name"]) == ("DeviceClass", "gpu")
    config = json.loads(files(gpus(way="dra", evicts=True))[kubernetes_gpu.CONFIG])
    assert config == {"server": f"https://{SERVER}", "node": "gpu1", "way": "dra", "evicts": True}


def test_absent_leaves_nothing_of_the_daemon() -> None:
    plan = gpus(state="absent")
    assert {(row["path"], row["state"]) for row in plan.desired["files"]} == {
        (path, "absent") for path in (kubernetes_gpu.PROGRAM, kubernetes_gpu.CONFIG, kubernetes_gpu.UNIT_PATH)
    }
    assert plan.desired["units"][0]["state"] == "stopped"
