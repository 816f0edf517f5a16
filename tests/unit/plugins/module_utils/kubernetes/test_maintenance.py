# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator drains a node and gives it back; what others have cordoned stays theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.maintenance import reasons, settle
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import CORDONED_BY, REASON

# As kubectl 1.36.3 writes it.
BARE = """\
Warning: ignoring DaemonSet-managed Pods: kube-system/kube-proxy-v8xzf
error: unable to drain node "gpu1" due to error: cannot delete cannot delete Pods that declare no controller (use \
--force to override): default/one, continuing command...
"""


class Cluster:
    """A stand-in of kubectl and its cluster of one node: it merges patches as the API server does."""

    def __init__(self, unschedulable: bool = False, **annotations: str) -> None:
        self.node: dict[str, Any] = {"metadata": {"name": "gpu1", "annotations": dict(annotations)}, "spec": {}}
        if unschedulable:
            self.node["spec"]["unschedulable"] = True
        self.drained, self.patches, self.stderr = 0, 0, ""

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        assert argv[:2] == ["kubectl", "--kubeconfig=/nowhere/admin.conf"]
        match argv[2:]:
            case ["get", "node", name, *_]:
                return 0, json.dumps(self.node) if name == "gpu1" else "", ""
            case ["patch", "node", "gpu1", "--type=merge", patch]:
                self.patches += 1
                _merge(self.node, json.loads(patch.removeprefix("--patch=")))
                return 0, "", ""
            case ["drain", "gpu1", *_]:
                assert self.node["spec"].get("unschedulable"), "kubectl would cordon it by itself"
                self.drained += 1
                return int(bool(self.stderr)), "", self.stderr
        raise AssertionError(argv)


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value


def bring(cluster: Cluster, state: str, check_mode: bool = False, **changed: Any) -> dict[str, Any]:
    given = {"name": "gpu1", "why": "new fan", "timeout_s": 9.0, "foreign": "refused", "unknown": "refused", **changed}
    kubectl = Kubectl(cluster, 5.0, "/nowhere/admin.conf")
    return settle(kubectl, given.pop("name"), state, check_mode=check_mode, **given)


def test_a_node_is_drained_and_given_back() -> None:
    cluster = Cluster()
    drained = bring(cluster, "drained")
    assert (drained["changed"], drained["owners"], cluster.drained) == (True, ["operator"], 1)
    assert drained["diff"]["after"] == "gpu1: cordoned by operator: new fan\n"
    # What is left of an interrupted run is done by the next one, which says nothing new.
    assert bring(cluster, "drained") | {"diff": {}} == {"changed": False, "owners": ["operator"], "diff": {}}
    assert bring(cluster, "active")["owners"] == []
    assert (cluster.node["spec"], cluster.node["metadata"]["annotations"]) == ({}, {})
    assert not bring(cluster, "active")["changed"]


def test_check_mode_changes_and_evicts_nothing() -> None:
    cluster = Cluster()
    assert bring(cluster, "drained", check_mode=True)["changed"]
    assert (cluster.patches, cluster.drained) == (0, 0)


def test_what_others_have_cordoned_stays_theirs() -> None:
    cluster = Cluster(unschedulable=True)
    assert bring(cluster, "drained")["owners"] == ["other"]
    with pytest.raises(Refused, match="by other") as caught:
        bring(cluster, "active")
    assert caught.value.problem.code == "cordoned_by_others"
    assert not bring(cluster, "active", foreign="left")["changed"]
    assert cluster.patches == 0
    assert bring(cluster, "active", foreign="taken")["owners"] == []
    assert reasons(cluster.node) == {}


def test_a_node_that_the_reconciler_had_cordoned_stays_cordoned() -> None:
    cluster = Cluster(unschedulable=True, **{CORDONED_BY: "reconciler", REASON: "xid_79"})
    assert bring(cluster, "drained")["owners"] == ["reconciler", "operator"]
    assert bring(cluster, "active")["owners"] == ["reconciler"]
    assert reasons(cluster.node) == {"reconciler": "xid_79"}


def test_pods_that_nothing_starts_again_are_named() -> None:
    cluster = Cluster()
    cluster.stderr = BARE
    with pytest.raises(Refused, match=r"declare no controller.*default/one") as caught:
        bring(cluster, "drained")
    assert caught.value.problem.code == "pods_left"
    assert "ignoring DaemonSet" not in str(caught.value)


def test_a_host_that_is_no_node_yet_is_left_or_refused() -> None:
    assert bring(Cluster(), "drained", name="gpu2", unknown="left")["changed"] is False
    with pytest.raises(Refused, match="no node gpu2"):
        bring(Cluster(), "drained", name="gpu2")


def test_a_host_without_a_cluster_is_left_or_refused() -> None:
    def away(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        return 1, "", "error: stat /nowhere/admin.conf: no such file or directory\n"

    kubectl = Kubectl(away, 5.0, "/nowhere/admin.conf")
    assert not settle(kubectl, "gpu1", "drained", "", 0, "left", "left", False)["changed"]
    with pytest.raises(CallFailed, match="no such file"):
        settle(kubectl, "gpu1", "drained", "", 0, "left", "refused", False)
