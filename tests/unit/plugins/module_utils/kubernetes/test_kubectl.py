# SPDX-License-Identifier: GPL-3.0-or-later
"""What a manifest would change is known before it is applied, also on a cluster that lacks its namespace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl

SPACE: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops"}}
INSIDE: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": "ops"}}
ROLE: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}}


class Cluster:
    """A stand-in of kubectl with the namespaces of its cluster. As the real one, it compares nothing in others."""

    def __init__(self, *spaces: str, difference: str = "") -> None:
        self.spaces, self.difference, self.compared = spaces, difference, list[str]()

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        items = json.loads(stdin or "")["items"]
        if argv[2] == "get":
            return 0, "".join(f"namespace/{one['metadata']['name']}\n" for one in items if self._has(one)), ""
        assert argv[2:4] == ["diff", "--server-side"]
        for one in items:
            if one["metadata"].get("namespace") not in (None, *self.spaces):
                return 1, "", 'Error from server (NotFound): namespaces "ops" not found\n'
        self.compared = [one["kind"] for one in items]
        return (1, self.difference, "") if self.difference else (0, "", "")

    def _has(self, one: dict[str, Any]) -> bool:
        return one["metadata"]["name"] in self.spaces


def difference(cluster: Cluster, *objects: dict[str, Any]) -> str:
    return Kubectl(cluster, 5.0).difference(objects)


def test_a_namespace_that_is_to_come_is_listed_with_what_is_in_it() -> None:
    cluster = Cluster()
    assert difference(cluster, SPACE, INSIDE, ROLE) == "+Namespace ops\n+ConfigMap kept\n"
    assert cluster.compared == ["ClusterRole"]
    assert difference(cluster, SPACE, INSIDE) == "+Namespace ops\n+ConfigMap kept\n"


def test_what_is_there_is_compared_by_the_api_server() -> None:
    cluster = Cluster("ops", difference="-a\n+b\n")
    assert difference(cluster, SPACE, INSIDE, ROLE) == "-a\n+b\n"
    assert cluster.compared == ["Namespace", "ConfigMap", "ClusterRole"]
    assert difference(Cluster("ops"), SPACE, INSIDE) == ""


def test_an_error_is_no_difference() -> None:
    with pytest.raises(CallFailed, match='namespaces "ops" not found'):
        difference(Cluster(), INSIDE)
