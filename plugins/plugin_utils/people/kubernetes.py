# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user is in Kubernetes: a namespace, and the rights of the one who has the kubeconfig. Pure.

A certificate cannot be revoked. So its common name is USER:SERIAL, and the bindings name that of the last kubeconfig
alone: with another serial, or without bindings, a certificate has no rights.
"""

from __future__ import annotations

import re
from typing import Any

# Both a value of a label and, with other signs for _ and ., the name of a namespace.
NAME = re.compile(r"[a-z]([a-z0-9_.-]{0,30}[a-z0-9])?", re.ASCII)
# What users may see of the cluster itself: where their pods can run, and why they wait.
CLUSTER_ROLE = "baremetal-gpu-user"
# Kubernetes' own: all that pods need in a namespace, and nothing that says who may do what.
ROLE = "edit"
BINDING = "baremetal-gpu-user"
_API = "rbac.authorization.k8s.io"


def namespace_of(user: str) -> str:
    return re.sub("[_.]", "-", user)


def client_name(user: str, serial: str) -> str:
    return f"{user}:{serial}"


def access(user: str, serial: str = "") -> list[dict[str, Any]]:
    """The bindings that give the rights to a certificate, or without one, what names the bindings."""
    found = []
    for kind, role, where in (
        ("ClusterRoleBinding", CLUSTER_ROLE, {"name": f"{BINDING}.{namespace_of(user)}"}),
        ("RoleBinding", ROLE, {"name": BINDING, "namespace": namespace_of(user)}),
    ):
        found.append(
            {
                "apiVersion": f"{_API}/v1",
                "kind": kind,
                "metadata": where,
                "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": _API, "kind": "User", "name": client_name(user, serial)}] if serial else [],
            }
        )
    return found
