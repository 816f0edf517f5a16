# SPDX-License-Identifier: GPL-3.0-or-later
"""What people see of Kubernetes: from objects of its API, made by hand, to the words of gpuops."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.report import collect, junit, page
from gpuops.site import Site
from gpuops.status import jobs, jobs_text
from tests.unit.gpuops.test_status import REASON, facts, ok, read, text, unreachable
from tests.unit.plugins.module_utils.kubernetes import cluster_objects
from tests.unit.plugins.module_utils.kubernetes.cluster_objects import (
    CNI,
    NOW,
    claim,
    condition,
    control_plane,
    namespace,
    node,
    of_job,
    pod,
    resource_slice,
)

GROUPS = {"gpu_cluster": ["g1", "g2"], "kubernetes_control_planes": ["head1"]}
HEALTHY = facts()
UUIDS = [gpu["uuid"] for gpu in HEALTHY["ansible_facts"]["gpu"]["devices"]]
WAITS = "0/3 nodes are available: 2 Insufficient nvidia.com/gpu."


def gpus(**bad: Any) -> dict[str, Any]:
    found = facts(**bad)
    for place, gpu in enumerate(found["ansible_facts"]["gpu"]["devices"]):
        gpu["index"] = place
    return found


def of_cluster(first: dict[str, Any] | None = None, told: Any = (), **lists: list[dict[str, Any]]) -> dict[str, Any]:
    """:param first: the facts of g1.
    :param told: what g1 tells of its pods."""
    lists = {
        "nodes": [control_plane(), node("g1"), node("g2")],
        "namespaces": [namespace("alice", "alice"), namespace("lab")],
        **lists,
    }
    found = cluster_objects.read(**lists)
    events = [
        ok("g1", "gpu_facts", **(first or gpus())),
        ok("g2", "gpu_facts", ansible_facts={"gpu": {"present": False, "devices": [], "health": None}}),
        ok("g1", "kubernetes_node_info", leases=told, problems=[]),
        ok("head1", "kubernetes_cluster_info", **json.loads(json.dumps(found))),
    ]
    return read(events, GROUPS, NOW)


TRAIN = {"owner": ("Job", "train")}
TOLD = [{"namespace": "alice", "name": "train-0", "gpus": [UUIDS[1]]}]


def listed(site: dict[str, Any]) -> dict[str, Any]:
    found = jobs.document(site)
    jsonschema.validate(json.loads(json.dumps(found)), json.loads(jobs.SCHEMA.read_text()))
    return found


def words(site: dict[str, Any]) -> str:
    return "\n".join(progress_text.plain(line).rstrip() for line in jobs_text.lines(listed(site), 120))


def test_pods_are_shown_with_their_gpus_users_and_times() -> None:
    site = of_cluster(told=TOLD, pods=[pod("train-0", "g1", 1, **TRAIN), pod("next", gpus=2, why=WAITS)])
    assert site["kubernetes"]["state"] == "ok"
    assert site["leases"] == [
        {
            "scheduler": "kubernetes",
            "job": "alice/train-0",
            "name": "train",
            "user": "alice",
            "host": "g1",
            "gpus": [{"uuid": UUIDS[1], "index": 1}],
            "started": NOW - 3600,
            "expected_end": None,
            "processes": 0,
        }
    ]
    said = text(site)
    assert "kubernetes ok: 2 of 2 nodes accept pods, 1 of 4 GPUs in use; 1 pod runs, 1 waits" in said
    assert "no node has enough free GPUs (Unschedulable)" in said
    shown = words(site)
    assert "kubernetes ok at" in shown.split("\n")[0]
    assert "1 pod runs, 1 waits" in shown.split("\n")[0]
    assert ("NAMESPACE" in shown, "PARTITION" in shown) == (True, False)
    assert "alice/train-0" in shown
    assert "g1 1 " in shown
    assert "no process on its GPUs" in shown
    found = listed(site)
    assert [(row["id"], row["place"]) for row in found["waiting"]] == [("alice/next", None)]
    assert {row["model"]: (row["total"], row["free"], row["used"]) for row in found["gpus"]} == {
        HEALTHY["ansible_facts"]["gpu"]["devices"][0]["name"]: (2, 1, 1),
        None: (2, 2, 0),
    }


def test_the_gpus_of_claims_are_known_without_the_node() -> None:
    lists = {
        "nodes": [control_plane(), node("g1", None)],
        "pods": [pod("train-0", "g1", **of_job("train", {"gpu": "train-0-gpu"}))],
        "resourceslices": [resource_slice("g1", *UUIDS)],
        "resourceclaims": [claim("train-0-gpu", UUIDS[0], where="g1")],
    }
    (lease,) = of_cluster(**lists)["leases"]
    assert lease["gpus"] == [{"uuid": UUIDS[0], "index": 0}]


def test_what_a_node_tells_of_another_pod_or_of_fewer_gpus_is_not_taken() -> None:
    for told in ([{**TOLD[0], "name": "train-1"}], [{**TOLD[0], "gpus": []}], ["text"], None):
        (lease,) = of_cluster(told=told, pods=[pod("train-0", "g1", 1, **TRAIN)])["leases"]
        assert lease["gpus"] == [{"uuid": None, "index": None}]


BAD = {"verdict": "fatal", **REASON}


def withheld(message: str = f"1 of 2 GPUs are withheld: {UUIDS[0]}: xid_79, it broke") -> list[dict[str, Any]]:
    health = condition("GpuHealthy", "False", "GpuWithheld", message)
    return [control_plane(), node("g1", 2, 1, health), node("g2")]


def test_a_gpu_that_is_withheld_is_out_of_service_and_the_others_are_free() -> None:
    site = of_cluster(gpus(**BAD), nodes=withheld())
    assert site["kubernetes"]["held"] == [{"host": "g1", "index": 0, "uuid": UUIDS[0], "job": None, "code": "xid_79"}]
    assert site["kubernetes"]["unfenced"] == []
    assert "g1 GPU 0 held: out of service, xid_79" in text(site)
    row = next(row for row in listed(site)["gpus"] if row["model"])
    assert [row[key] for key in ("total", "free", "used", "held")] == [2, 1, 0, 1]


def test_a_withheld_gpu_whose_pod_goes_on_is_that_pods() -> None:
    told = [{**TOLD[0], "gpus": [UUIDS[0]]}]
    site = of_cluster(gpus(**BAD), told, nodes=withheld(), pods=[pod("train-0", "g1", 1, **TRAIN)])
    assert site["kubernetes"]["held"] == []
    assert listed(site)["running"][0]["gpus"][0]["bad"] == [{"index": 0, "code": "xid_79"}]


def test_a_fatal_gpu_that_pods_can_still_get_is_told_with_what_to_do() -> None:
    site = of_cluster(gpus(**BAD))
    assert site["kubernetes"]["state"] == "fatal"
    said = words(site)
    assert "g1: GPU 0 is fatal (xid_79) and not fenced, so Kubernetes still gives it to pods" in said
    assert "`gpuops drain g1`" in said
    # Kubelet tells how many it withholds, and not which.
    assert of_cluster(gpus(**BAD), nodes=[node("g1", 2, 1), node("g2")])["kubernetes"]["unfenced"] == []


def test_a_node_that_is_not_ready_is_told_with_its_remedy() -> None:
    broken = condition("Ready", "False", "KubeletNotReady", CNI)
    site = of_cluster(nodes=[control_plane(), node("g1"), node("g2", 2, None, broken)])
    assert site["kubernetes"]["state"] == "degraded"
    said = text(site, 200)
    assert "g2: it has no network for pods" in said
    assert "remedy: run `gpuops up --tags kubernetes`" in said
    assert of_cluster(nodes=[control_plane(), node("g2", 2, None, broken)])["kubernetes"]["state"] == "fatal"


def test_what_only_its_user_can_mend_does_not_make_the_site_ill() -> None:
    unbound = pod("a", why="0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    site = of_cluster(pods=[unbound])
    assert site["kubernetes"]["state"] == "ok"
    assert "alice/a: a volume that it asks for is not there" in text(site)


def test_an_api_server_that_does_not_answer_says_why() -> None:
    problem = {"code": "no_answer", "subject": "Kubernetes", "cause": "the API server does not run", "evidence": ""}
    answer = {"msg": "Kubernetes: …", "problems": [{**problem, "remedy": "see `sudo crictl ps -a`"}]}
    site = read([ok("g1", "gpu_facts", **gpus()), ok("head1", "kubernetes_cluster_info", **answer)], GROUPS, NOW)
    assert (site["kubernetes"]["state"], "kubernetes" in site["not_seen"]) == ("unreachable", True)
    assert "the API server does not run" in words(site)
    assert not jobs.is_seen(listed(site))
    lost = read([ok("g1", "gpu_facts", **gpus()), unreachable("head1")], GROUPS, NOW)
    assert "none of head1 can be reached" in lost["kubernetes"]["problem"]["cause"]


@pytest.mark.parametrize(
    "answer",
    [
        {"nodes": "many", "jobs": [1, "a"], "problems": 3},
        {"nodes": [{"name": ["g1"], "gpus": "x", "withheld": "GPU", "gpus_held": 1e300, "closed_by": 5}]},
        {"nodes": [{"name": "g1"}], "jobs": [{"id": "a/b", "nodes": [{"name": "g1", "gpus": [1, {}, None] * 99}]}]},
    ],
)
def test_an_answer_of_another_shape_keeps_nothing_from_being_shown(answer: dict[str, Any]) -> None:
    events = [ok("g1", "gpu_facts", **gpus()), ok("head1", "kubernetes_cluster_info", **answer)]
    site = read([*events, ok("g1", "kubernetes_node_info", leases=[{"gpus": 5}])], GROUPS, NOW)
    assert site["nodes"][0]["state"] == "ok"
    assert text(site)
    assert words(site)


def test_the_report_has_the_nodes_of_kubernetes(tmp_path: Any) -> None:
    broken = condition("Ready", "False", "KubeletNotReady", "<script>")
    site = of_cluster(
        told=TOLD, nodes=[node("g1"), node("g2", 2, None, broken)], pods=[pod("train-0", "g1", 1, **TRAIN)]
    )
    report = collect.gather(Site(tmp_path), site, {}, [tmp_path])
    shown = page.html(report)
    assert "Nodes of Kubernetes" in shown
    assert "1 pod runs, 0 wait" in shown
    assert '<th scope="col" class="number">Withheld</th>' in shown
    assert "<td>NotReady</td><td>&lt;script&gt;</td>" in shown
    assert 'testsuite name="kubernetes" tests="1" failures="1"' in junit.junit(report)
