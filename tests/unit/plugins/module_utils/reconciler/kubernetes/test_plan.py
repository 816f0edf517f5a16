# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler does about a node of Kubernetes; what holds with every scheduler is in ../test_backends.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    CORDONED_BY,
    DRAINED_BY,
    HELD,
    REASON,
    TAINT,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.gpus import look
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.shapes import KubernetesStep
from tests.unit.plugins.module_utils.reconciler.kubernetes.kubernetes_world import NODE, PATH, KubernetesWorld

THEIRS = {"key": "site/rack", "value": "7", "effect": "NoSchedule"}


def world(**more: Any) -> KubernetesWorld:
    policy = Policy(mode="act", **more.pop("policy", {}))
    return KubernetesWorld(policy=policy, **more)


def repairing(action: str, **more: Any) -> KubernetesWorld:
    """A node with a fatal GPU 1 that may be repaired."""
    policy = {"repairs": ("reset_gpu", "reboot"), "proof_s": 60.0, **more.pop("policy", {})}
    found = world(policy=policy, **more)
    found.action = action
    found.fatal = {1}
    return found


def taints(found: KubernetesWorld) -> list[dict[str, str]]:
    return found.node_object()["spec"].get("taints") or []


def sent(found: KubernetesWorld) -> dict[str, Any]:
    order: dict[str, Any] = found.memory["order"]
    return order


def test_a_fatal_gpu_is_held_and_the_node_stays_in_service() -> None:
    found = world()
    found.fatal = {1}
    assert found.turn() == ["hold", "(GPU-1 (xid_79) is withheld; GPU-1 is not given out: reboot)"]
    assert json.loads(found.notes()[HELD]) == {"GPU-1": "xid_79"}
    assert (found.cordoned, taints(found)) == (False, [])
    assert plan.fences(found.memory, found.node()) == [("GPU-1", "hold")]
    assert plan.stage(found.memory) == "1 held back"


def test_a_fault_of_the_host_cordons_it_with_a_taint_and_its_pods_go_on() -> None:
    found = world()
    found.change(taints=[THEIRS])
    pod = found.launch()
    found.node_codes = ["driver_version_mismatch"]
    assert found.turn()[0] == "cordon"
    assert found.cordoned
    assert taints(found) == [THEIRS, {"key": TAINT, "value": "driver_version_mismatch", "effect": "NoSchedule"}]
    assert found.notes()[CORDONED_BY] == "reconciler"
    assert found.notes()[REASON] == "driver_version_mismatch"
    assert pod in found.pods()
    assert plan.fences(found.memory, found.node()) == [("", "cordon")]
    found.node_codes = []
    assert found.turn()[:2] == ["uncordon", "close"]
    assert (found.cordoned, taints(found), found.notes()) == (False, [THEIRS], {})
    reasons = [one["reason"] for path, one in found.api.objects.items() if "/events/" in path]
    assert reasons == ["GpuHostCordoned", "GpuHostUncordoned"]


def test_the_cordon_of_an_operator_stays_theirs() -> None:
    found = world()
    found.change(unschedulable=True)
    found.node_codes = ["driver_version_mismatch"]
    assert found.turn() == ["(it was cordoned by another client: driver_version_mismatch)"]
    found.node_codes = []
    found.settle()
    assert (found.cordoned, found.caller.calls) == (True, [])


def test_a_cordon_that_an_operator_takes_over_is_left_to_them() -> None:
    found = world()
    found.node_codes = ["driver_version_mismatch"]
    found.turn()
    node = found.node_object()
    notes = {**found.notes(), DRAINED_BY: "new power supply"}
    found.api.put(PATH, {**node, "metadata": {**node["metadata"], "annotations": notes}})
    assert found.turn() == ["(it was cordoned by another client: driver_version_mismatch)"]
    found.node_codes = []
    found.settle()
    # Our taint is over; the cordon is theirs.
    assert (found.cordoned, taints(found)) == (True, [])
    assert found.notes() == {DRAINED_BY: "new power supply"}


def test_a_node_that_an_operator_cordons_in_between_is_not_taken_for_ours() -> None:
    found = world()
    found.node_codes = ["driver_version_mismatch"]
    step = KubernetesStep("cordon", "why", details={"code": "driver_version_mismatch"})
    found.change(unschedulable=True)
    found.backend.perform(NODE, step)
    assert CORDONED_BY not in found.notes()


def test_taints_of_others_that_come_meanwhile_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = world()
    found.node_codes = ["driver_version_mismatch"]
    get = found.caller.get

    def slow(path: str) -> dict[str, Any]:
        answer = get(path)
        if path == PATH:
            monkeypatch.undo()
            found.change(taints=[THEIRS])
        return answer

    monkeypatch.setattr(found.caller, "get", slow)
    assert found.step() == "cordon"
    assert "409" in found.memory["failed"]["why"]
    assert (found.cordoned, taints(found)) == (False, [THEIRS])
    found.now += 2
    found.turn()
    assert found.cordoned
    assert THEIRS in taints(found)


def test_a_code_that_is_no_value_of_a_taint_is_made_one() -> None:
    found = world()
    found.node_codes = [f"-{'x' * 62}-y"]
    assert found.turn()[0] == "cordon"
    assert taints(found)[0]["value"] == "x" * 62


def test_a_policy_can_have_the_node_drained_for_one_gpu() -> None:
    found = world(policy={"gpu_fence": "drain"})
    found.fatal = {1}
    assert found.turn()[:2] == ["cordon", "hold"]
    found.fatal = set()
    found.settle()
    assert (found.cordoned, found.notes(), found.memory["fenced"]) == (False, {}, None)


def test_a_host_fault_on_a_node_with_a_held_gpu_is_held_back_by_the_breaker_too() -> None:
    found = world()
    found.fatal = {1}
    found.turn()
    found.node_codes = ["driver_version_mismatch"]
    assert "cordon is held back: too many" in found.step("too many")
    assert not found.cordoned


def test_a_gpu_that_was_taken_out_of_the_host_is_named_until_it_is_cleared() -> None:
    found = world()
    found.fatal = {3}
    found.turn()
    found.uuids.pop()
    found.fatal = set()
    found.boot += 1
    assert f"GPU-3 is not reported. If it was removed: `sudo gpuops-reconciler clear {NODE}:GPU-3`" in found.settle()
    found.memory = plan.clear(found.memory, "GPU-3", found.now)
    found.settle()
    assert (found.notes(), found.memory["fenced"]) == ({}, None)


def test_garbage_in_the_place_of_what_is_held_is_told_and_written_anew() -> None:
    found = world()
    node = found.node_object()
    found.api.put(PATH, {**node, "metadata": {**node["metadata"], "annotations": {HELD: "{half"}}})
    found.fatal = {1}
    found.turn()
    assert json.loads(found.notes()[HELD]) == {"GPU-1": "xid_79"}
    assert "is ignored" in found.said[0]


def test_a_node_that_is_gone_is_told_and_forgotten_by_nobody() -> None:
    found = world()
    found.fatal = {1}
    found.turn()
    found.api.remove(PATH)
    assert found.step() == "(the API server has no node of this name)"
    # A node that comes back is fenced again.
    found.api.put(PATH, {"spec": {}, "status": {"conditions": []}})
    assert found.turn()[0] == "hold"


def test_an_api_server_that_is_away_is_a_failure_of_the_call() -> None:
    found = world()
    found.api.down = True
    with pytest.raises(CallFailed, match="503"):
        found.step()


# --- pods and repairs -----------------------------------------------------------------------------------------------


def test_a_repair_is_only_shown_unless_it_is_allowed() -> None:
    found = world()
    found.action, found.fatal = "reset_gpu", {1}
    assert found.settle() == "(GPU-1 (xid_79) is withheld; GPU-1 is not given out: reset_gpu)"
    assert found.memory["order"] is None


def test_a_reset_waits_for_the_pod_on_the_gpu_alone() -> None:
    found = repairing("reset_gpu")
    pod = found.run_pod([1])
    other = found.run_pod([2])
    assert found.turn() == ["hold", "(reset of GPU-1 waits for default/p1)"]
    found.api.remove(pod)
    assert found.turn()[0] == "order"
    assert {key: sent(found)[key] for key in ("kind", "gpus")} == {"kind": "reset", "gpus": ["GPU-1"]}
    assert (found.cordoned, list(found.pods())) == (False, [other])


def test_a_reset_that_waits_keeps_no_node_out() -> None:
    found = repairing("reset_gpu")
    found.run_pod([1])
    found.node_codes = ["driver_version_mismatch"]
    found.turn()
    assert found.cordoned
    found.node_codes = []
    assert found.turn() == ["uncordon", "(reset of GPU-1 waits for default/p1)"]


def test_an_order_that_was_done_brings_the_gpu_back() -> None:
    found = repairing("reset_gpu")
    assert found.turn()[:2] == ["hold", "order"]
    found.fatal = set()
    found.answer = {"id": sent(found)["id"], "state": "done"}
    found.settle()
    assert (found.memory["order"], found.memory["fenced"], found.notes()) == (None, None, {})
    assert found.memory["gpus"]["GPU-1"]["resets"] == 1


def test_a_reset_that_does_not_help_is_followed_by_a_boot_and_then_by_quarantine() -> None:
    found = repairing("reset_gpu", policy={"reboots": 1})
    kinds = []
    for _number in range(60):
        kinds += [kind for kind in found.turn() if not kind.startswith("(")]
        if found.memory["order"]:
            kinds.append(sent(found)["kind"])
            found.answer = {"id": sent(found)["id"], "state": "done"}
            if sent(found)["kind"] == "reboot":
                found.reboot()
        found.now += 30.0
    assert kinds == ["hold", "order", "reset", "settle", "cordon", "order", "reboot", "settle", "uncordon"]
    assert found.memory["gpus"]["GPU-1"]["quarantine"]
    assert look(found.verdict(), found.memory["gpus"], found.policy, found.now).advice == {"GPU-1": "rma"}
    # Well or not, it waits for an operator, and the others are given out.
    found.fatal = set()
    found.settle()
    assert found.free() == {0, 2, 3}


def test_an_order_that_failed_is_told_with_why() -> None:
    found = repairing("reset_gpu")
    found.turn()
    found.answer = {"id": sent(found)["id"], "state": "failed", "error": "reset is not allowed on this host"}
    assert found.turn()[0] == "settle"
    assert found.memory["failed"]["why"] == "reset is not allowed on this host"


def test_a_boot_waits_for_an_empty_node_and_moves_what_goes_on_elsewhere() -> None:
    found = repairing("reboot")
    job, server, bare = found.run_pod([0]), found.run_pod([2], "ReplicaSet"), found.run_pod([], "")
    daemon = found.run_pod([], "DaemonSet")
    mirror = found.run_pod([], "Node", annotations={"kubernetes.io/config.mirror": "x"})
    kinds = found.turn()
    assert kinds[:3] == ["hold", "cordon", "evict"]
    assert kinds[-1] == "(reboot for GPU-1 waits for default/p1, default/p3)"
    assert server not in found.pods()
    for pod in (job, bare):
        found.api.remove(pod)
    assert found.turn()[0] == "order"
    assert sent(found)["kind"] == "reboot"
    # These are the node's own.
    assert set(found.pods()) == {daemon, mirror}


def test_with_an_end_for_jobs_theirs_are_evicted_too_when_it_is_over() -> None:
    found = repairing("reboot", policy={"jobs": "kill", "grace_s": 100.0})
    job = found.run_pod([0])
    found.turn()
    assert job in found.pods()
    found.now += 100.0
    assert found.turn()[:2] == ["evict", "order"]


def test_what_a_disruption_budget_holds_is_never_deleted_and_asked_for_again() -> None:
    found = repairing("reboot")
    first, second = found.run_pod([0], "ReplicaSet"), found.run_pod([2], "ReplicaSet")
    found.api.budgets = {first}
    found.turn()
    assert list(found.pods()) == [first]
    assert "a PodDisruptionBudget holds default/p1" in found.memory["failed"]["why"]
    assert "tried again after 5 s" in found.step()
    assert second not in found.pods()
    found.api.budgets = set()
    found.now += 5.0
    assert found.turn()[:2] == ["evict", "order"]
    assert not any(call.startswith("DELETE") for call in found.caller.calls)


def test_pods_that_end_are_waited_for_and_evicted_once() -> None:
    found = repairing("reboot")
    found.api.lingers = True
    found.run_pod([0], "ReplicaSet")
    assert found.turn()[-1] == "(reboot for GPU-1 waits for default/p1)"
    found.settle()
    assert len([call for call in found.caller.calls if call.endswith("/eviction")]) == 1


def test_a_pod_of_the_same_name_that_came_meanwhile_is_not_evicted() -> None:
    found = repairing("reboot")
    path = found.run_pod([0], "StatefulSet")
    pods = [{"name": "default/p1", "uid": "of-the-one-before"}]
    found.backend.perform(NODE, KubernetesStep("evict", "why", details={"pods": pods}))
    assert path in found.pods()


def test_where_kubelet_does_not_tell_who_has_the_gpu_no_pod_with_one_may_be_there() -> None:
    found = repairing("reset_gpu", tells=False)
    found.run_pod([0])
    found.run_pod([])
    kinds = found.turn()
    assert kinds[:2] == ["hold", "cordon"]
    assert kinds[-1] == "(reset of GPU-1 waits for default/p1)"


def test_a_node_that_others_have_cordoned_is_repaired_by_them() -> None:
    found = repairing("reboot")
    found.change(unschedulable=True)
    found.settle()
    assert found.memory["order"] is None
    assert not any("eviction" in call for call in found.caller.calls)


def test_the_pod_on_a_fatal_gpu_can_be_begun_anew_elsewhere() -> None:
    found = world(policy={"fatal_job": "requeue"})
    job, other, bare = found.run_pod([1]), found.run_pod([2]), found.run_pod([1], "")
    found.fatal = {1}
    assert found.turn()[:2] == ["hold", "evict"]
    assert set(found.pods()) == {other, bare}
    assert job not in found.pods()


def test_a_fault_that_comes_while_an_order_is_with_the_node_is_fenced() -> None:
    found = repairing("reset_gpu")
    found.turn()
    assert sent(found)
    found.fatal.add(2)
    assert found.turn()[0] == "hold"
    found.node_codes = ["driver_version_mismatch"]
    assert found.turn()[0] == "cordon"


def test_an_order_that_was_cut_is_sent_again_and_counted_once() -> None:
    found = repairing("reset_gpu")
    found.turn(steps=1)
    decision = plan.decide(
        plan.observe(found.memory, found.node(), found.policy, found.now), found.node(), found.policy
    )
    assert decision.step is not None
    found.memory = plan.begin(found.memory, decision.step, found.now)
    number = sent(found)["id"]
    assert found.turn()[0] == "order"
    assert (sent(found)["id"], found.memory["gpus"]["GPU-1"]["resets"]) == (number, 1)


def test_the_breaker_holds_back_what_would_take_more_pods_off() -> None:
    found = repairing("reboot")
    found.run_pod([0], "ReplicaSet")
    found.turn(steps=2)
    assert "evict is held back: too many" in found.step("too many")
    assert len(found.pods()) == 1


def test_the_reconciler_may_do_nothing_besides() -> None:
    found = world()
    pod = found.run_pod([0])
    for call in (
        lambda: found.caller.delete(pod),
        lambda: found.caller.get("/api/v1/namespaces/kube-system/configmaps"),
        lambda: found.caller.create("/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "x"}}),
        lambda: found.caller.patch(f"{PATH}/status", {"status": {}}),
        lambda: found.caller.delete(PATH),
    ):
        with pytest.raises(Answered, match="cannot") as failure:
            call()
        assert failure.value.status == 403


def test_a_verdict_of_which_nothing_is_known_yet_changes_nothing() -> None:
    assert plan.faults_of(plan.empty(NODE)["kubernetes"], None, {}) == {"bad": {}, "node": []}
    assert plan.decide(plan.empty(NODE), Node(NODE), Policy()).step is None
