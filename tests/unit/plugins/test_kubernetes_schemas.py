# SPDX-License-Identifier: GPL-3.0-or-later
"""Every object that this project gives to Kubernetes, against the schemas of the versions that it supports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import dra, node_status
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import rights
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.backend import KubernetesBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.shapes import KubernetesStep
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import kubernetes
from tests.unit.plugins.plugin_utils.desired import test_kubernetes as roles
from tests.unit.plugins.plugin_utils.desired import test_kubernetes_apps as apps
from tests.unit.plugins.plugin_utils.desired import test_kubernetes_users as users
from tests.unit.project.tree import ROOT, tracked

Row = dict[str, Any]
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
PLUGINS = "plugins"
# Where objects are made. Those of kubeadm and kubelet are settings of programs, which these read themselves.
MAKERS = {
    "module_utils/kubernetes/dra.py",
    "module_utils/kubernetes/node_status.py",
    "module_utils/reconciler/kubernetes/backend.py",
    "module_utils/reconciler/kubernetes/rights.py",
    "plugin_utils/desired/kubernetes_apps.py",
    "plugin_utils/desired/kubernetes_gpu.py",
    "plugin_utils/desired/kubernetes_users.py",
    "plugin_utils/people/kubernetes.py",
}
OTHERS = {
    "module_utils/kubernetes/encryption.py": "of the API server",
    "module_utils/kubernetes/kubectl.py": "a list of what others make",
    # Tried with a real API server: tests/unit/reconcile/test_kubernetes_api_server.py.
    "module_utils/reconciler/kubernetes/store.py": "two ConfigMaps and a Lease",
    "modules/kubernetes_objects.py": "an example",
    "plugin_utils/desired/grafana_dashboards.py": "of Grafana",
    "plugin_utils/desired/kubernetes_common.py": "of kubelet",
    "plugin_utils/desired/kubernetes_control_plane.py": "of kubeadm",
    "plugin_utils/desired/kubernetes_node.py": "of kubeadm",
}


class Recorder:
    """What is sent to an API server."""

    def __init__(self) -> None:
        self.sent: list[Row] = []

    def get(self, _path: str) -> Row:
        return {"items": []}

    def create(self, path: str, body: Mapping[str, Any]) -> Row:
        # Of an event the path tells the kind.
        kind = {"apiVersion": "v1", "kind": "Event"} if path.endswith("/events") else {}
        self.sent.append({**kind, **body})
        return dict(body)


def objects() -> Iterator[Row]:
    for row in (users.planned([users.ALICE, users.BOB]), users.planned([{**users.ALICE, "state": "closed"}])):
        yield from (*row.parts["objects"], *row.parts["nodes"])
    yield from kubernetes.access("alice", "1")
    for nodes in ((apps.PLUGIN,), (apps.DRA, apps.DRA)):
        for kind, changed in (("smoke", {}), ("notebook", {}), ("sweep", apps.SWEEP), ("training", apps.TRAINING)):
            more = {"training_gpus": 2, "training_nodes": 1} if kind == "training" else {}
            yield from apps.made(kind, nodes=nodes, **{**changed, **more}).parts["objects"]
    yield from roles.gpus([{"name": "NVIDIA A100", "memory_mib": 40960}], way="dra").parts["objects"]
    yield from rights.manifests("baremetal-gpu")
    recorder: Any = Recorder()
    gpu = Gpu("GPU-1", "", model="A100", address="0000:3b:00.0", numa=0, index=0, memory_mib=40960)
    dra.Slices(recorder, "n1").publish({"GPU-1": gpu, "GPU-2": Gpu("GPU-2", "xid_79", text="it broke")}, 1e9)
    node_status.create_event(recorder, "n1", "GpuWithheld", "it broke", "Warning", 1e9)
    evicted = {"pods": [{"name": "alice/p1", "uid": "1"}]}
    KubernetesBackend(recorder).perform("n1", KubernetesStep("evict", "why", details=evicted))
    yield from recorder.sent


def examples() -> Iterator[Row]:
    """The manifests of the page."""
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from (row for row in yaml.safe_load_all(block) if isinstance(row, dict) and "apiVersion" in row)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_has_the_form_that_the_api_wants(version: str) -> None:
    kinds, wrong = set(), {}
    for one in (*objects(), *examples()):
        kinds.add(one["kind"])
        try:
            assert kubernetes_validate.validate(one, version, strict=True) == version
        except kubernetes_validate.ValidationError as why:
            wrong[f"{one['kind']} {one['metadata']['name']}"] = why.message
    assert wrong == {}
    assert len(kinds) > 15


def test_a_misspelt_field_would_be_found() -> None:
    one = next(row for row in objects() if row["kind"] == "ResourceQuota")
    with pytest.raises(kubernetes_validate.ValidationError, match="hards"):
        kubernetes_validate.validate({**one, "spec": {"hards": {}}}, VERSIONS[0], strict=True)


def test_what_makes_objects_is_known() -> None:
    paths = (path for path in tracked(PLUGINS, ".py") if "apiVersion" in (ROOT / path).read_text(encoding="utf-8"))
    found = {str(Path(path).relative_to(PLUGINS)) for path in paths}
    assert found == MAKERS | set(OTHERS)
    # What roles and playbooks have of their own would not be looked at. This one names a node that it deletes.
    written = [*tracked("roles", ".yml"), *tracked("roles", ".j2"), *tracked("playbooks", ".yml")]
    named = [str(path) for path in written if "apiVersion" in (ROOT / path).read_text(encoding="utf-8")]
    assert named == ["playbooks/kubernetes_remove.yml"]
