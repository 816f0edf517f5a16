# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler may do in Kubernetes, and nothing else: the objects that grant it.

Its client certificate has the common name USER. Nodes need no more than kubelet's own certificate.
"""

from __future__ import annotations

from typing import Any

USER = "baremetal-gpu:reconciler"
NAME = "baremetal-gpu-reconciler"


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


CLUSTER_RULES = [
    _rule("", ["nodes"], ["get", "list", "watch", "patch"]),
    _rule("", ["pods"], ["list"]),
    _rule("", ["pods/eviction"], ["create"]),
]
# Events of nodes are in the namespace default.
EVENT_RULES = [_rule("", ["events"], ["create"])]
STATE_RULES = [
    _rule("", ["configmaps"], ["get", "list", "create", "update", "delete"]),
    _rule("coordination.k8s.io", ["leases"], ["get", "create", "update"]),
]


def manifests(namespace: str) -> list[dict[str, Any]]:
    """The namespace in which the reconciler keeps what it knows, and its rights."""
    found: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    for kind, where, rules in (
        ("ClusterRole", "", CLUSTER_RULES),
        ("Role", "default", EVENT_RULES),
        ("Role", namespace, STATE_RULES),
    ):
        about = {"name": NAME, **({"namespace": where} if where else {})}
        api = "rbac.authorization.k8s.io"
        found.append({"apiVersion": f"{api}/v1", "kind": kind, "metadata": about, "rules": rules})
        found.append(
            {
                "apiVersion": f"{api}/v1",
                "kind": f"{kind}Binding",
                "metadata": dict(about),
                "roleRef": {"apiGroup": api, "kind": kind, "name": NAME},
                "subjects": [{"apiGroup": api, "kind": "User", "name": USER}],
            }
        )
    return found
