# SPDX-License-Identifier: GPL-3.0-or-later
"""Users of Kubernetes from `gpuops user` to what they may do, with a real API server, kubectl and kubeadm.

This machine is the control plane, with an /etc that only the commands see.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered
from tests.local_kubernetes import LocalKubernetes, NotHere, program, until
from tests.unit.gpuops.conftest import HERE
from tests.unit.plugins.module_utils.kubernetes.agent_report import certificate
from tests.unit.project.tree import BIN, ROOT, try_run

pytestmark = pytest.mark.slow

CA = "ca/system:none"
CONTROLLERS = (
    *("clusterrole-aggregation-controller", "resourcequota-controller", "persistentvolume-binder-controller"),
    "job-controller",
)
NODE = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "A100", "nvidia.com/gpu.count": "2"}
CLUSTER = {"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "kubernetesVersion": "v1.36.3"}


SUCCEEDED = {"status": {"phase": "Succeeded"}}
REFUSED = {
    "status": {
        "phase": "Failed",
        "containerStatuses": [
            {
                "name": "main",
                "image": "i",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 2}},
            }
        ],
    }
}


class Head:
    """The control plane and its site."""

    def __init__(self, base: Path) -> None:
        self.base, self.server = base, LocalKubernetes([CA], [])
        self.server.control(*CONTROLLERS)
        for name in ("upper/kubernetes/pki", "work"):
            (base / name).mkdir(parents=True)
        pki = base / "upper/kubernetes/pki"
        for source, name in zip(certificate(self.server.base, CA), ("ca.crt", "ca.key"), strict=True):
            shutil.copy(source, pki / name)
        shutil.copy(self.server.kubeconfig(), base / "upper/kubernetes/admin.conf")
        where = self.server.url.removeprefix("https://")
        data = {"ClusterConfiguration": json.dumps({**CLUSTER, "controlPlaneEndpoint": where})}
        self.server.put("/api/v1/namespaces/kube-system", {})
        self.server.put("/api/v1/namespaces/kube-system/configmaps/kubeadm-config", {"data": data})
        self.server.put("/api/v1/nodes/n1", {"metadata": {"labels": NODE}})
        self.server.admin.patch("/api/v1/nodes/n1/status", {"status": {"capacity": {"nvidia.com/gpu": "2"}}})
        (base / "ansible.cfg").write_text("[defaults]\ninventory = site\ninject_facts_as_vars = false\n")
        self.users = base / "site/group_vars/all/users.yml"
        self.users.parent.mkdir(parents=True)
        # In ceph_clients it would have homes, too.
        shares = [{"name": "data", "path": "/data"}]
        row = {**HERE, "kubernetes_users_home_hosts": ["n1"], "cephfs_homes_shares": shares}
        groups = {"kubernetes_control_planes": {"hosts": {"n1": row}}}
        (base / "site/hosts.json").write_text(json.dumps({"all": {"children": groups}}))

    def inside(self, *words: object) -> Any:
        mounted = f"mount -t overlay overlay -o lowerdir=/etc,upperdir={self.base}/upper,workdir={self.base}/work /etc"
        path = f"{BIN}{os.pathsep}{Path(program('kubernetes', 'kubectl')).parent}{os.pathsep}{os.environ['PATH']}"
        words = ("unshare", "--mount", "sh", "-c", f'{mounted} && exec "$@"', "sh", *words)
        return try_run(words, cwd=self.base, PYTHONPATH=str(ROOT), PATH=path)

    def list(self, *users: dict[str, Any]) -> None:
        self.users.write_text(yaml.safe_dump({"cluster_users": list(users)}))

    def play(self, *options: str, name: str = "user_changes", **variables: Any) -> tuple[int, int, str]:
        """Exit status, how many tasks have changed something, and the output."""
        words = [*options, "-e", json.dumps(variables)]
        done = self.inside(BIN / "ansible-playbook", ROOT / f"playbooks/{name}.yml", *words)
        changed = re.search(r"changed=(\d+)", done.stdout.rpartition("RECAP")[2])
        return done.returncode, int(changed[1]) if changed else -1, done.stdout + done.stderr

    def gpuops(self, *words: str) -> str:
        done = self.inside(sys.executable, "-m", "gpuops", "user", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def jobs(self) -> list[str]:
        rows = self.server.admin.get("/apis/batch/v1/namespaces/alice/jobs")["items"]
        return [row["metadata"]["name"] for row in rows]

    @contextlib.contextmanager
    def kubelet(self, status: dict[str, Any]) -> Iterator[None]:
        """All pods end so."""
        is_over = threading.Event()

        def end_pods() -> None:
            path = "/api/v1/namespaces/alice/pods"
            while not is_over.wait(0.2):
                for one in self.server.admin.get(path)["items"]:
                    if one["status"].get("phase") == "Pending":
                        with contextlib.suppress(Answered):
                            self.server.admin.patch(f"{path}/{one['metadata']['name']}/status", status)

        thread = threading.Thread(target=end_pods)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def as_user(self, kubeconfig: Path, *words: str) -> Any:
        config = json.loads(kubeconfig.read_text())
        # That of the test's server is not of this authority.
        config["clusters"][0]["cluster"] = {"server": self.server.url, "insecure-skip-tls-verify": True}
        path = self.base / "kubeconfig"
        path.write_text(json.dumps(config))
        return try_run([program("kubernetes", "kubectl"), f"--kubeconfig={path}", *words])


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    if os.geteuid():
        pytest.skip("no overlay can be mounted here")
    try:
        made = Head(tmp_path)
    except NotHere as why:
        pytest.skip(str(why))
    try:
        if made.inside("true").returncode:
            pytest.skip("no overlay can be mounted here")
        yield made
    finally:
        made.server.close()


def test_a_user_is_announced_made_once_gets_in_and_is_closed(head: Head) -> None:
    admin, space = head.server.admin, "/api/v1/namespaces/alice"
    head.list({"name": "alice", "limits": {"GrpTRES": "gres/gpu=2"}})
    status, changed, said = head.play("--check", "--diff")
    assert (status, changed > 0, "+Namespace alice" in said) == (0, True, True), said
    assert "alice" not in head.server.kubectl().present([namespace()])
    assert head.play()[0] == 0
    status, changed, said = head.play()
    assert (status, changed) == (0, 0), said
    assert admin.get("/api/v1/nodes/n1")["metadata"]["labels"] == {**NODE, "baremetal-gpu/homes": "true"}
    assert admin.get("/api/v1/persistentvolumes/data.alice")["spec"]["hostPath"]["path"] == "/data/"

    path = head.base / "site/.secrets/kubernetes/alice.kubeconfig"
    assert str(path) in head.gpuops("kubeconfig", "alice", "--days", "3")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert 71 <= hours_left(path) <= 73
    until(lambda: head.as_user(path, "get", "pods").returncode == 0)
    assert "alice" in head.as_user(path, "create", "configmap", "c", "--output=name", "-v=6").stderr
    first = path.read_text()
    head.gpuops("kubeconfig", "alice")
    second, earlier = path.read_text(), head.base / "earlier"
    earlier.write_text(first)
    assert second != first
    assert "Forbidden" in head.as_user(earlier, "get", "pods").stderr
    assert head.as_user(path, "get", "pods").returncode == 0
    # A run leaves the rights as they are.
    assert head.play()[:2] == (0, 0)

    spec = {"containers": [{"name": "c", "image": "c:1", "securityContext": safe()}]}
    admin.create(f"{space}/pods", {"metadata": {"name": "p"}, "spec": spec})
    head.gpuops("close", "alice", "--yes")
    for words in (("get", "pods"), ("get", "nodes"), ("get", "secrets"), ("delete", "configmap", "c")):
        assert "Forbidden" in head.as_user(path, *words).stderr
    assert admin.get(f"{space}/pods")["items"] == []
    assert admin.get(f"{space}/configmaps/c")
    assert head.play()[:2] == (0, 0)
    refused = head.inside(sys.executable, "-m", "gpuops", "user", "kubeconfig", "alice")
    assert (refused.returncode, "gpuops user reopen alice" in refused.stderr) == (64, True)


def namespace() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alice"}}


def safe() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def hours_left(kubeconfig: Path) -> float:
    config = json.loads(kubeconfig.read_text())
    assert config["contexts"][0]["context"]["namespace"] == "alice"
    data = config["users"][0]["user"]["client-certificate-data"]
    words = f"echo {data} | base64 -d | openssl x509 -noout -enddate -subject"
    told = subprocess.run(["sh", "-c", words], check=True, capture_output=True, text=True).stdout
    assert re.search(r"CN = alice:[0-9a-f]{8}$", told, re.MULTILINE)
    assert "O = " not in told
    end = datetime.strptime(told.split("=", 1)[1].splitlines()[0], "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)
    return (end - datetime.now(UTC)) / timedelta(hours=1)


def test_a_namespace_of_something_else_is_not_taken(head: Head) -> None:
    head.list({"name": "kube-system"})
    status, changed, said = head.play()
    assert (status, changed) == (2, 0)
    assert "the namespace kube-system, which kube-system would have" in " ".join(said.split())


def test_jobs_of_a_user_are_announced_submitted_waited_for_and_deleted(head: Head) -> None:
    head.list({"name": "alice"})
    assert head.play()[0] == 0
    given = {"kubernetes_apps_user": "alice", "kubernetes_apps_image": "registry.example/torch:1"}
    status, _changed, said = head.play("--check", "--diff", name="apps/smoke", **given)
    assert (status, "smoke-a100-" in said, head.jobs()) == (0, True, []), said
    with head.kubelet(SUCCEEDED):
        status, _changed, said = head.play(name="apps/smoke", **given)
        assert status == 0, said
        training = {"kubernetes_apps_training_name": "digits", "kubernetes_apps_training_nodes": 1}
        status, changed, said = head.play(name="apps/training", **given, **training)
        assert (status, changed) == (0, 1), said
        # It has ended, and does not run again.
        assert head.play(name="apps/training", **given, **training)[:2] == (0, 0)
    with head.kubelet(REFUSED):
        status, _changed, said = head.play(name="apps/training", **given, **training, kubernetes_apps_training_seed=2)
        assert (status, "has failed" in said) == (2, True), said
    sweep = {"kubernetes_apps_sweep_name": "rates", "kubernetes_apps_sweep_command": "true"}
    sweep |= {"kubernetes_apps_sweep_parameters": {"LR": [1, 2]}, "kubernetes_apps_sweep_timeout": 5}
    status, _changed, said = head.play(name="apps/sweep", **given, **sweep)
    assert (status, "has not ended in 5 s" in " ".join(said.split())) == (2, True), said
    status, _changed, said = head.play(name="apps/notebook", **{**given, "kubernetes_apps_user": "bob"})
    assert (status, "who has no namespace" in " ".join(said.split())) == (2, True)
    for name, more in (("smoke", {}), ("training", training), ("sweep", sweep)):
        assert head.play(name=f"apps/{name}", **given, **more, kubernetes_apps_state="absent")[0] == 0
    assert head.jobs() == []
