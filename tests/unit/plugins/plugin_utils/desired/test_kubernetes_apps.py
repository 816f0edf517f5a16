# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready-made Jobs of Kubernetes: what is refused, and what a real API server and its controllers make of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import kubernetes_apps
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import kubernetes
from tests.local_kubernetes import LocalKubernetes, NotHere, until
from tests.unit.plugins.plugin_utils.desired.test_kubernetes import settings
from tests.unit.plugins.plugin_utils.desired.test_kubernetes_users import (
    ALICE,
    BOB,
    CONTROLLERS,
    is_settled,
    planned,
)

LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "A100", "nvidia.com/gpu.count": "2"}
PLUGIN = {"metadata": {"name": "n1", "labels": LABELS}, "status": {"capacity": {"nvidia.com/gpu": "2"}}}
DRA = {"metadata": {"name": "n2", "labels": LABELS}, "status": {"capacity": {"cpu": "8"}}}
SWEEP = {"sweep_name": "rates", "sweep_command": 'echo "$LR"', "sweep_parameters": {"LR": [0.1, "a'b"]}}
TRAINING = {"training_name": "digits", "training_nodes": 2}


def made(kind: str, *jobs: dict[str, Any], nodes: tuple[dict[str, Any], ...] = (PLUGIN, DRA), **changed: Any) -> Plan:
    params = {**settings("kubernetes_apps", **{"user": "alice", "image": "registry.example/torch:1", **changed})}
    objects = planned([ALICE, BOB]).parts["objects"]
    space = next(one for one in objects if one["kind"] == "Namespace" and one["metadata"]["name"] == "alice")
    volumes = [
        one
        for one in objects
        if one["kind"] == "PersistentVolume" and one["metadata"]["labels"]["baremetal-gpu/user"] == "alice"
    ]
    peers = {"host": "head1", "namespace": space, "volumes": volumes, "nodes": nodes, "jobs": jobs}
    return kubernetes_apps.desired({**params, "kind": kind}, {}, peers)


def job(plan: Plan) -> dict[str, Any]:
    assert plan.problems == ()
    (found,) = (one for one in plan.parts["objects"] if one["kind"] == "Job")
    return dict(found)


def pod(plan: Plan) -> dict[str, Any]:
    return dict(job(plan)["spec"]["template"]["spec"])


def test_a_pod_gets_gpus_in_the_way_of_the_nodes() -> None:
    plan = made("smoke", smoke_gpus=2)
    assert pod(plan)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert pod(plan)["nodeSelector"] == {"nvidia.com/gpu.product": "A100"}
    plan = made("smoke", smoke_gpus=2, nodes=(DRA,))
    (template,) = (one for one in plan.parts["objects"] if one["kind"] == "ResourceClaimTemplate")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu", "count": 2}
    assert "nvidia.com/gpu" not in pod(plan)["containers"][0]["resources"]["limits"]
    assert pod(plan)["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]


def test_a_pod_has_the_home_and_the_datasets_of_its_user_as_the_hosts_do() -> None:
    found = pod(made("training", **TRAINING))
    mounts = {one["mountPath"]: one for one in found["containers"][0]["volumeMounts"]}
    assert "readOnly" not in mounts["/ceph/alice"]
    assert mounts["/data/imagenet"]["readOnly"] is True
    assert {"name": "HOME", "value": "/ceph/alice"} in found["containers"][0]["env"]
    assert found["securityContext"]["runAsUser"] == 10001


def test_the_points_of_a_sweep_run_and_those_that_ended_well_do_not_run_again(tmp_path: Path) -> None:
    plan = made("sweep", **SWEEP)
    (files,) = (one["data"] for one in plan.parts["objects"] if one["kind"] == "ConfigMap")
    assert job(plan)["spec"]["completions"] == len(files) == 2
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = pod(plan)["containers"][0]["command"][2].replace("/program", str(tmp_path))
    content = next(one["value"] for one in pod(plan)["containers"][0]["env"] if one["name"] == "JOB_CONTENT")
    environment = {**os.environ, "HOME": str(tmp_path), "JOB_CONTENT": content}
    for index in ("0", "1", "1"):
        words = ["/bin/sh", "-c", script]
        subprocess.run(words, env={**environment, "JOB": "j1", "JOB_COMPLETION_INDEX": index}, check=True)
    outputs = {path.parent.name: path.read_text() for path in tmp_path.rglob("output.log")}
    assert sorted(outputs.values()) == ["0.1\n", "a'b\n"]
    assert "LR=0.1" in outputs


@pytest.mark.parametrize("resumable", [False, True])
def test_a_point_that_has_failed_runs_again_in_another_job_or_if_it_goes_on(tmp_path: Path, resumable: bool) -> None:
    plan = made("sweep", **{**SWEEP, "sweep_command": "echo once >>../runs; false"}, sweep_resumable=resumable)
    (tmp_path / "point-0.sh").write_text("POINT=p\n")
    words = ["/bin/sh", "-c", pod(plan)["containers"][0]["command"][2].replace("/program", str(tmp_path))]
    environment = {**os.environ, "HOME": str(tmp_path), "JOB_CONTENT": "abc", "JOB_COMPLETION_INDEX": "0"}
    for name in ("j1", "j1", "j2"):
        done = subprocess.run(words, env={**environment, "JOB": name}, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
    runs = (tmp_path / "gpuops-jobs/sweep-rates/runs").read_text().split()
    assert len(runs) == (3 if resumable else 2)


def test_another_content_is_another_job_and_the_one_before_goes() -> None:
    first = job(made("training", **TRAINING))
    assert made("training", first, **TRAINING).parts["stale"] == []
    second = made("training", first, **TRAINING, training_epochs=40)
    assert job(second)["metadata"]["name"] != first["metadata"]["name"]
    assert [(one["kind"], one["metadata"]["name"]) for one in second.parts["stale"]] == [
        (kind, first["metadata"]["name"]) for kind in ("Job", "ConfigMap", "ResourceClaimTemplate")
    ]
    failed = {**first, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    assert [one["kind"] for one in made("training", failed, **TRAINING).parts["stale"]] == ["Job"]
    ended = {**first, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert made("training", ended, **TRAINING).parts["stale"] == []
    # What others have made stays.
    other = {"metadata": {"name": "training-digits-1"}}
    gone = made("training", first, other, **TRAINING, state="absent").parts
    assert (gone["objects"], {one["metadata"]["name"] for one in gone["stale"]}) == ([], {first["metadata"]["name"]})


@pytest.mark.parametrize(
    ("kind", "changed", "cause"),
    [
        ("smoke", {"user": "bob"}, "who has no namespace"),
        ("smoke", {"image": ""}, "kubernetes_apps_image"),
        ("smoke", {"smoke_gpus": 4}, "fewer than 1 nodes have that many"),
        ("smoke", {"smoke_products": ["H100"]}, "no node has GPUs of the product 'H100'"),
        ("smoke", {"nodes": ()}, "no node has GPUs"),
        ("sweep", {**SWEEP, "sweep_parameters": {}}, "sweep_parameters is empty"),
        ("sweep", {**SWEEP, "sweep_env": {"LR": "1"}}, "sweep_env has 'LR'"),
        ("training", {**TRAINING, "training_nodes": 3}, "fewer than 3 nodes"),
        ("training", {**TRAINING, "training_name": "A b"}, "training_name is 'A b'"),
        ("notebook", {"notebook_program": " "}, "notebook_program is empty"),
    ],
)
def test_what_cannot_run_is_refused(kind: str, changed: dict[str, Any], cause: str) -> None:
    plan = made(kind, **changed)
    assert plan.parts == {}
    assert any(cause in problem.cause for problem in plan.problems)
    assert all(problem.remedy for problem in plan.problems)


# --- a real API server -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKubernetes]:
    try:
        server = LocalKubernetes(["alice:2"], [])
    except NotHere as why:
        pytest.skip(str(why))
    try:
        kubectl = server.kubectl()
        kubectl.apply(planned([{**ALICE, "limits": {}}, BOB]).parts["objects"])
        kubectl.apply(kubernetes.access("alice", "2"))
        server.control(*CONTROLLERS)
        until(lambda: is_settled(server))
        yield server
    finally:
        server.close()


def pods_of(server: LocalKubernetes, name: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/alice/pods?labelSelector=job-name%3D{name}"
    return list(server.admin.get(path)["items"])


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [(PLUGIN,), (DRA, DRA)], ids=["device_plugin", "dra"])
@pytest.mark.parametrize(
    ("kind", "changed", "count"),
    [
        ("smoke", {}, 1),
        ("notebook", {}, 1),
        ("sweep", {**SWEEP, "sweep_resumable": True}, 2),
        ("training", {"training_name": "digits", "training_nodes": 1, "training_gpus": 2}, 1),
    ],
)
def test_the_rules_for_users_let_the_pods_of_a_job_be(
    cluster: LocalKubernetes, nodes: tuple[dict[str, Any], ...], kind: str, changed: dict[str, Any], count: int
) -> None:
    plan, kubectl = made(kind, nodes=nodes, **changed), cluster.kubectl()
    name = job(plan)["metadata"]["name"]
    kubectl.apply(plan.parts["objects"])
    until(lambda: len(pods_of(cluster, name)) == count)
    assert kubectl.difference(plan.parts["objects"]) == ""
    # Its user sees it.
    assert cluster.caller("alice:2").get(f"/apis/batch/v1/namespaces/alice/jobs/{name}")
    kubectl.delete(made(kind, job(plan), nodes=nodes, **changed, state="absent").parts["stale"])
    assert kubectl.present([job(plan)]) == []


@pytest.mark.slow
def test_the_pods_of_a_lost_node_are_replaced(cluster: LocalKubernetes) -> None:
    plan, kubectl = made("training", **TRAINING), cluster.kubectl()
    name = job(plan)["metadata"]["name"]
    cluster.put("/api/v1/nodes/n1", {})
    kubectl.apply(plan.parts["objects"])
    until(lambda: len(pods_of(cluster, name)) == 2)
    lost = pods_of(cluster, name)[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/alice/pods/{lost}"
    cluster.admin.create(f"{path}/binding", {"metadata": {"name": lost}, "target": {"kind": "Node", "name": "n1"}})
    # As the controller does that evicts pods of nodes that do not answer. It has no kubelet that would end it.
    cluster.admin.delete(path)
    until(lambda: len(pods_of(cluster, name)) == 3)
    assert "deletionTimestamp" in cluster.admin.get(path)["metadata"]
    conditions = cluster.admin.get(f"/apis/batch/v1/namespaces/alice/jobs/{name}")["status"].get("conditions", [])
    assert [one["type"] for one in conditions if one["status"] == "True"] == []
    cluster.admin.delete(f"{path}?gracePeriodSeconds=0")
    kubectl.delete([job(plan)])
