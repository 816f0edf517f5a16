# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of Kubernetes is no other scheduler's: two would give the same GPU to two users."""

from __future__ import annotations

from collections.abc import Collection

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

KUBERNETES = "kubernetes_nodes"
OTHERS = {"slurm_nodes": "Slurm", "mesos_agents": "Mesos"}


def two_schedulers(host: str, groups: Collection[str]) -> list[Problem]:
    """:param groups: those of the inventory that the host is in."""
    if KUBERNETES not in groups:
        return []
    return [
        Problem(
            "two_schedulers",
            host,
            f"it is a node of Kubernetes and of {name}, and both would give its GPUs to jobs",
            f"groups {KUBERNETES} and {group}",
            f"take it out of one of these groups in the inventory; `gpuops drain {host}` first if it changes",
        )
        for group, name in OTHERS.items()
        if group in groups
    ]
