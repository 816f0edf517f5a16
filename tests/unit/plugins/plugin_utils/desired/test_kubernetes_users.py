# SPDX-License-Identifier: GPL-3.0-or-later
"""Users of Kubernetes: what the list comes to, and what a real API server then lets them do."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered, Api
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import kubernetes_users
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import kubernetes, site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people.ledger import Ledger
from tests.local_kubernetes import LocalKubernetes, NotHere, until
from tests.unit.plugins.plugin_utils.desired.test_kubernetes import settings

GROUPS: list[dict[str, Any]] = [{"name": "physics", "limits": {"GrpTRES": "gres/gpu=16,mem=64G"}}, {"name": "ml"}]
ALICE = {"name": "alice", "uid": 10001, "groups": ["physics"], "limits": {"GrpTRES": "gres/gpu=1,cpu=8"}}
BOB = {"name": "bob", "uid": 10002, "groups": ["physics", "ml"]}
CONTROLLERS = (
    *("clusterrole-aggregation-controller", "resourcequota-controller", "persistentvolume-binder-controller"),
    *("validatingadmissionpolicy-status-controller", "job-controller"),
)


def planned(
    users: list[dict[str, Any]],
    namespaces: tuple[dict[str, Any], ...] = (),
    pods: tuple[str, ...] = (),
    groups: list[dict[str, Any]] | None = None,
    **changed: Any,
) -> Plan:
    lists = site.as_lists(site.people(users, GROUPS if groups is None else groups, Ledger(), date(2026, 12, 1)))
    homes = {"home_hosts": ["n1"], "home_root": "/ceph", "datasets": [{"name": "imagenet", "path": "/data/imagenet"}]}
    params = {**settings("kubernetes_users", accounts=users, groups=groups, **{**homes, **changed}), "lists": lists}
    peers = {"namespaces": namespaces, "nodes": ["n1", "n2"], "pods": pods}
    return kubernetes_users.desired(params, {}, peers)


def one(plan: Plan, kind: str, name: str, space: str | None = None) -> dict[str, Any]:
    (found,) = (
        row
        for row in plan.parts["objects"]
        if (row["kind"], row["metadata"]["name"], row["metadata"].get("namespace")) == (kind, name, space)
    )
    return dict(found)


def hard(plan: Plan, space: str) -> dict[str, str]:
    limits = one(plan, "ResourceQuota", "baremetal-gpu", space)["spec"]["hard"]
    return {name: value for name, value in limits.items() if name not in kubernetes_users.SHARED}


def codes(plan: Plan) -> list[tuple[str, str]]:
    return [(problem.code, problem.subject) for problem in plan.problems]


def namespace(name: str, user: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"baremetal-gpu/user": user} if user else {}}}


def test_a_namespace_has_the_limits_of_its_user_and_of_their_groups() -> None:
    plan = planned([ALICE, BOB])
    gpus = {"requests.nvidia.com/gpu": "1", "gpu.deviceclass.resource.k8s.io/devices": "1"}
    assert hard(plan, "alice") == {**gpus, "requests.cpu": "8", "requests.memory": "65536Mi"}
    # A job of the group ml has no limit.
    assert hard(plan, "bob") == {}
    space = one(plan, "Namespace", "alice")["metadata"]
    assert space["labels"] == {
        "baremetal-gpu/user": "alice",
        "baremetal-gpu/uid": "10001",
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    more = planned([BOB], quota={"services.nodeports": 2, "requests.storage": "1Ti"})
    assert one(more, "ResourceQuota", "baremetal-gpu", "bob")["spec"]["hard"] == {
        "services.loadbalancers": "0",
        "services.nodeports": "2",
        "count/configmaps": "200",
        "count/secrets": "200",
        "requests.storage": "1Ti",
    }
    carol = {"name": "carol", "groups": ["physics"], "limits": {"GrpTRES": "gres/gpu=32"}}
    assert hard(planned([carol]), "carol")["requests.nvidia.com/gpu"] == "16"
    baseline = one(planned([ALICE, BOB], baseline=["bob"]), "Namespace", "bob")["metadata"]["labels"]
    assert baseline["pod-security.kubernetes.io/enforce"] == "baseline"


def test_a_home_is_a_volume_that_only_the_claim_of_its_user_gets() -> None:
    plan = planned([ALICE])
    volume = one(plan, "PersistentVolume", "home.alice")["spec"]
    assert volume["hostPath"] == {"path": "/ceph/alice/", "type": "Directory"}
    assert (volume["claimRef"]["namespace"], volume["claimRef"]["name"]) == ("alice", "home")
    assert one(plan, "PersistentVolumeClaim", "home", "alice")["spec"]["volumeName"] == "home.alice"
    assert [row["metadata"] for row in plan.parts["nodes"]] == [
        {"name": "n1", "labels": {"baremetal-gpu/homes": "true"}},
        {"name": "n2", "labels": {}},
    ]
    without = planned([ALICE], home_hosts=[]).parts["objects"]
    assert {row["kind"] for row in without} & {"PersistentVolume", "PersistentVolumeClaim"} == set()


def test_who_is_closed_has_no_rights_no_quota_and_no_pods_and_keeps_the_rest() -> None:
    pods = ("alice\tp1\t", "alice\tp2\t30", "alice\tp3\t86400", "bob\tp1\t", "kube-system\tp1\t")
    for state in ({"state": "closed"}, {"until": "2026-11-30"}, {"state": "removed", "confirm": "alice"}):
        plan = planned([{**ALICE, **state}, BOB], (namespace("alice", "alice"),), pods)
        assert one(plan, "ResourceQuota", "baremetal-gpu", "alice")["spec"]["hard"]["pods"] == "0"
        assert [row["metadata"].get("namespace") for row in plan.parts["access"]] == [None, "alice"]
        assert [row["metadata"]["name"] for row in plan.parts["pods"]] == ["p1", "p3"]
        assert one(plan, "PersistentVolume", "home.alice")
    # Who never had a namespace gets none, and that of something else is left alone.
    for there in ((), (namespace("alice"),)):
        plan = planned([{**ALICE, "state": "closed"}], there, pods)
        assert (plan.parts["objects"], plan.parts["access"], plan.parts["pods"]) == ([], [], [])


@pytest.mark.parametrize(
    ("users", "more", "found"),
    [
        ([{"name": "_alice"}], {}, [("bad_name", "_alice")]),
        ([{"name": "alice-"}], {}, [("bad_name", "alice-")]),
        ([{"name": "a.b"}, {"name": "a_b"}], {}, [("same_namespace", "a_b")]),
        ([{"name": "default"}], {"namespaces": (namespace("default"),)}, [("namespace_taken", "default")]),
        ([{"name": "a.b"}], {"namespaces": (namespace("a-b", "a-b"),)}, [("namespace_taken", "a.b")]),
        ([{"name": "alice", "limits": {"GrpTRES": "many"}}], {}, [("bad_limits", "alice")]),
        ([{"name": "Alice"}], {}, [("bad_name", "cluster_users")]),
        ([ALICE], {"home_root": "/home/../etc"}, [("wrong_setting", "kubernetes_users_home_root")]),
        (
            [ALICE],
            {"datasets": [{"name": "home", "path": "/data"}, {"name": "a", "path": "/"}]},
            [("wrong_setting", "kubernetes_users_datasets")] * 2,
        ),
        ([ALICE], {"baseline": ["alise"]}, [("wrong_setting", "kubernetes_users_baseline")]),
    ],
)
def test_what_cannot_be_is_refused(users: list[dict[str, Any]], more: Any, found: list[tuple[str, str]]) -> None:
    plan = planned(users, **more)
    assert codes(plan) == found
    assert all(problem.remedy for problem in plan.problems)


# --- a real API server -----------------------------------------------------------------------------------------------

PODS = "/api/v1/namespaces/alice/pods"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKubernetes]:
    """With alice and bob, whose kubeconfigs have the serial 2."""
    try:
        server = LocalKubernetes(["alice:1", "alice:2", "bob:2"], [])
    except NotHere as why:
        pytest.skip(str(why))
    try:
        server.put("/api/v1/nodes/n1", {"metadata": {"labels": {"rack": "7"}}})
        kubectl, plan = server.kubectl(), planned([ALICE, BOB])
        assert "+Namespace alice" in kubectl.difference(plan.parts["objects"])
        kubectl.apply(plan.parts["objects"])
        kubectl.apply([row for name in ("alice", "bob") for row in kubernetes.access(name, "2")])
        server.control(*CONTROLLERS)
        until(lambda: is_settled(server))
        # Nothing that the controllers set is taken back.
        assert kubectl.difference(plan.parts["objects"]) == ""
        yield server
    finally:
        server.close()


def is_settled(server: LocalKubernetes) -> bool:
    admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    policies = server.admin.get(admission)["items"]
    return bool(
        server.admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/edit")["rules"]
        and all(row["status"]["phase"] == "Bound" for row in server.admin.get("/api/v1/persistentvolumes")["items"])
        and all(row["status"].get("hard") for row in server.admin.get("/api/v1/resourcequotas")["items"])
        and all("typeChecking" in row.get("status", {}) for row in policies)
    )


def pod(name: str = "p1", claim: str = "", user: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    """As Pod Security's level restricted wants it."""
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    about = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **(user or {})}
    spec: dict[str, Any] = {
        "securityContext": about,
        "containers": [{"name": "c", "image": "registry.example/c:1", "securityContext": safe, **container}],
    }
    if claim:
        source: dict[str, Any] = {"claimName": claim}
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": source}]
        spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    return {"metadata": {"name": name}, "spec": spec}


def refusal(api: Api, path: str, body: dict[str, Any] | None = None) -> str:
    """Why a request is refused, which is by 403 or by a rule."""
    with pytest.raises(Answered) as failure:
        api.get(path) if body is None else api.create(path, body)
    # A ValidatingAdmissionPolicy answers 422.
    assert failure.value.status in (403, 422)
    return failure.value.problem.cause


def ended(server: LocalKubernetes) -> None:
    for space in ("alice", "bob"):
        for row in server.admin.get(f"/api/v1/namespaces/{space}/pods")["items"]:
            server.admin.delete(f"/api/v1/namespaces/{space}/pods/{row['metadata']['name']}?gracePeriodSeconds=0")


@pytest.fixture
def alice(cluster: LocalKubernetes) -> Iterator[Api]:
    yield cluster.caller("alice:2")
    ended(cluster)


@pytest.mark.slow
def test_the_rules_have_no_mistake_that_the_server_knows(cluster: LocalKubernetes) -> None:
    rows = cluster.admin.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
    assert {row["metadata"]["name"]: row["status"]["typeChecking"] for row in rows} == {
        f"baremetal-gpu-{name}": {} for name in ("claims", "files", "services")
    }


@pytest.mark.slow
def test_a_user_works_in_their_own_namespace_alone(cluster: LocalKubernetes, alice: Api) -> None:
    alice.create(PODS, pod())
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": []}}}}
    alice.create("/apis/resource.k8s.io/v1/namespaces/alice/resourceclaimtemplates", template)
    alice.create("/api/v1/namespaces/alice/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert alice.get("/api/v1/nodes/n1")["metadata"]["labels"]["rack"] == "7"
    refusal(alice, "/api/v1/namespaces/bob/pods", pod())
    for path in (
        "/api/v1/namespaces/bob/secrets",
        "/api/v1/namespaces/kube-system/secrets",
        "/api/v1/secrets",
        "/api/v1/pods",
        "/api/v1/persistentvolumes",
        "/api/v1/nodes/n1/proxy/pods",
    ):
        refusal(alice, path)
    for path, body in (
        ("/api/v1/nodes/n1", {"metadata": {"labels": {"rack": "8"}}}),
        ("/api/v1/namespaces/alice", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}),
        ("/api/v1/namespaces/alice/resourcequotas/baremetal-gpu", {"spec": {"hard": {"pods": "100"}}}),
    ):
        with pytest.raises(Answered, match="forbidden"):
            alice.patch(path, body)
    refusal(
        alice,
        "/apis/rbac.authorization.k8s.io/v1/namespaces/alice/rolebindings",
        {**kubernetes.access("bob", "2")[1], "metadata": {"name": "more"}},
    )


@pytest.mark.slow
def test_a_pod_with_more_rights_or_more_gpus_than_allowed_is_refused(cluster: LocalKubernetes, alice: Api) -> None:
    assert "PodSecurity" in refusal(alice, PODS, pod(securityContext={"privileged": True}))
    on_host = pod()
    on_host["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/home/bob"}}]
    assert "PodSecurity" in refusal(alice, PODS, on_host)
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    alice.create(PODS, pod(resources=gpu))
    assert "exceeded quota" in refusal(alice, PODS, pod("p2", resources=gpu))
    service = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": ["10.0.0.1"]}}
    assert "address that belongs to others" in refusal(alice, "/api/v1/namespaces/alice/services", service)
    service["spec"] = {"ports": [{"port": 80}], "type": "NodePort"}
    assert "exceeded quota" in refusal(alice, "/api/v1/namespaces/alice/services", service)


@pytest.mark.slow
def test_files_of_a_home_are_read_and_written_with_the_numbers_of_its_user(
    cluster: LocalKubernetes, alice: Api
) -> None:
    gids = cluster.admin.get("/api/v1/namespaces/alice")["metadata"]["annotations"]["baremetal-gpu/gids"]
    groups = [int(one) for one in gids.split(",")]
    own = {"runAsUser": 10001, "runAsGroup": 10001, "supplementalGroups": groups, "supplementalGroupsPolicy": "Strict"}
    alice.create(PODS, pod("own", "home", own))
    # Without volumes of the host it may be any.
    alice.create(PODS, pod("other", user={"runAsUser": 1000}))
    for wrong, why in (
        ({"runAsUser": 10002}, "runAsUser to 10001"),
        ({"runAsUser": None}, "runAsUser to 10001"),
        ({"runAsGroup": None}, "runAsGroup"),
        ({"supplementalGroups": [10002]}, "groups of its user"),
        ({"fsGroup": 0}, "groups of its user"),
        ({"supplementalGroupsPolicy": None}, "Strict"),
    ):
        assert why in refusal(alice, PODS, pod("wrong", "home", {**own, **wrong}))
    as_bob = pod("wrong", "home", own)
    as_bob["spec"]["containers"][0]["securityContext"]["runAsUser"] = 10002
    assert "runAsUser to 10001" in refusal(alice, PODS, as_bob)
    later = copy.deepcopy(alice.get(f"{PODS}/own"))
    later["spec"]["ephemeralContainers"] = [{**as_bob["spec"]["containers"][0], "name": "e", "volumeMounts": []}]
    with pytest.raises(Answered, match="cannot update"):
        alice.replace(f"{PODS}/own/ephemeralcontainers", later)
    # Nor can those whom a site has given that right.
    with pytest.raises(Answered, match="runAsUser to 10001"):
        cluster.admin.replace(f"{PODS}/own/ephemeralcontainers", later)
    datasets = pod("datasets", "imagenet", own)
    assert "read-only" in refusal(alice, PODS, datasets)
    datasets["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = True
    alice.create(PODS, datasets)


@pytest.mark.slow
def test_nobody_gets_the_home_of_another(cluster: LocalKubernetes, alice: Api) -> None:
    claims = "/api/v1/namespaces/alice/persistentvolumeclaims"
    with pytest.raises(Answered, match="not be bound again"):
        alice.delete(f"{claims}/home")
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "home.bob",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    alice.create(claims, {"metadata": {"name": "loot"}, "spec": spec})
    # A claim of later shows that the controller has come to this one.
    cluster.put("/api/v1/persistentvolumes/scratch", {"spec": {**scratch(), "accessModes": ["ReadWriteMany"]}})
    alice.create(claims, {"metadata": {"name": "scratch"}, "spec": {**spec, "volumeName": "scratch"}})
    until(lambda: alice.get(f"{claims}/scratch")["status"]["phase"] == "Bound")
    assert alice.get(f"{claims}/loot")["status"]["phase"] == "Pending"
    assert cluster.admin.get("/api/v1/persistentvolumes/home.bob")["spec"]["claimRef"]["namespace"] == "bob"
    for name in ("loot", "scratch"):
        alice.delete(f"{claims}/{name}")


def scratch() -> dict[str, Any]:
    return {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/scratch"}, "storageClassName": ""}


@pytest.mark.slow
def test_an_earlier_kubeconfig_and_one_of_a_closed_user_have_no_rights(cluster: LocalKubernetes) -> None:
    bob, alice = cluster.caller("bob:2"), cluster.caller("alice:2")
    bob_pods = "/api/v1/namespaces/bob/pods"
    refusal(cluster.caller("alice:1"), PODS)
    bob.create(bob_pods, pod())
    kubectl = cluster.kubectl()
    plan = planned([ALICE, {**BOB, "state": "closed"}], tuple(namespaces(cluster)), ("bob\tp1\t",))
    kubectl.delete(plan.parts["access"])
    kubectl.apply(plan.parts["objects"])
    kubectl.delete(plan.parts["pods"], 30)
    for path in (bob_pods, f"{bob_pods}/p1", "/api/v1/nodes", "/api/v1/namespaces/bob/secrets"):
        refusal(bob, path)
    refusal(bob, bob_pods, pod("p2"))
    # One of no node is gone at once. What would begin another one has no room for it.
    assert cluster.admin.get(bob_pods)["items"] == []
    until(lambda: "pods" in quota(cluster))
    assert "exceeded quota" in refusal(cluster.admin, bob_pods, pod("p2"))
    assert kubectl.present(plan.parts["access"]) == []
    alice.get(PODS)
    kubectl.apply(planned([ALICE, BOB]).parts["objects"])
    until(lambda: "pods" not in quota(cluster))
    refusal(bob, bob_pods)


def quota(server: LocalKubernetes) -> dict[str, Any]:
    found = server.admin.get("/api/v1/namespaces/bob/resourcequotas/baremetal-gpu")
    return dict(found["status"]["hard"])


def namespaces(server: LocalKubernetes) -> list[dict[str, Any]]:
    return list(server.admin.get("/api/v1/namespaces")["items"])


@pytest.mark.slow
def test_labels_of_a_node_that_others_have_set_stay(cluster: LocalKubernetes) -> None:
    kubectl, users = cluster.kubectl(), cluster.kubectl("baremetal-gpu-users")
    gpus = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.count": "2"}}}
    kubectl.apply([gpus])
    for hosts, homes in ((["n1"], "true"), ([], None)):
        nodes = planned([ALICE], home_hosts=hosts).parts["nodes"][:1]
        assert users.difference(nodes)
        users.apply(nodes)
        assert users.difference(nodes) == kubectl.difference([gpus]) == ""
        labels = cluster.admin.get("/api/v1/nodes/n1")["metadata"]["labels"]
        assert (labels["nvidia.com/gpu.count"], labels["rack"]) == ("2", "7")
        assert labels.get("baremetal-gpu/homes") == homes
