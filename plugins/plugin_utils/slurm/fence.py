# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the reconciler of Slurm runs, and where the agents of the nodes send their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.verdict_channel import PORT
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.cluster import address_of

CONTROLLERS, NODES = "slurm_controllers", "slurm_nodes"
RECONCILERS, MASTERS = "gpu_reconcilers", "mesos_masters"


def hosts(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of slurmctld, where no reconciler with ZooKeeper has the nodes. With masters of Mesos it has theirs."""
    with_zookeeper = groups.get(RECONCILERS, ())
    if with_zookeeper and not groups.get(MASTERS):
        return []
    return [name for name in groups.get(CONTROLLERS, ()) if name not in with_zookeeper]


def addresses(host: str, groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """host:port of each to which a node of Slurm sends its verdicts; none for other hosts."""
    found = []
    for name in hosts(groups) if host in groups.get(NODES, ()) else ():
        variables = hostvars[name]
        is_off = variables.get("gpu_reconciler_state") == "absent"
        if is_off or variables.get("gpu_reconciler_scheduler") != "slurm":
            continue
        address = address_of(name, variables)
        found.append(f"{f'[{address}]' if ':' in address else address}:{variables.get('gpu_reconciler_port', PORT)}")
    return found
