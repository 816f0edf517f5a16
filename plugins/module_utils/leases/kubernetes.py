# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases from the pods of Kubernetes, as `kubernetes.cluster.read` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import KUBERNETES, Lease

# Host -> namespace/name of a pod -> the UUIDs of its GPUs there, as the hosts tell them.
Told = Mapping[str, Mapping[str, "tuple[str | None, ...]"]]


def leases(jobs: Iterable[Mapping[str, Any]], told: Told) -> list[Lease]:
    """A lease for each pod with GPUs."""
    found = []
    for job in jobs:
        for node in job["nodes"]:
            if node["gpus"]:
                gpus = gpus_of(job["id"], node, told)
                user = job["user"] or None
                found.append(
                    Lease(KUBERNETES, job["id"], job["name"], user, node["name"], gpus, job["started"], job["ends"])
                )
    return found


def gpus_of(pod: str, node: Mapping[str, Any], told: Told) -> tuple[str | None, ...]:
    """Its GPUs on a node: those of its claims, or what kubelet says where that fits."""
    known = told.get(node["name"], {}).get(pod, ())
    if None in node["gpus"] and len(known) == len(node["gpus"]):
        return known
    return tuple(node["gpus"])
