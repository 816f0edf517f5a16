# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the reconciler of Slurm runs, what reconcilers do, and where the agents of the nodes send their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.verdict_channel import PORT
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.cluster import address_of

Groups = Mapping[str, Sequence[str]]
Hostvars = Mapping[str, Mapping[str, Any]]
CONTROLLERS, NODES = "slurm_controllers", "slurm_nodes"
RECONCILERS, MASTERS = "gpu_reconcilers", "mesos_masters"
ACT, ABSENT = "act", "absent"
# What the mode auto stands for.
AUTO_IN_SLURM, AUTO_WITH_ZOOKEEPER = ACT, "dry-run"


def hosts(groups: Groups, hostvars: Hostvars) -> list[str]:
    """The hosts of slurmctld, unless a reconciler with ZooKeeper has their nodes. One that is a host of gpu_reconcilers
    has the reconciler of Mesos."""
    with_zookeeper = groups.get(RECONCILERS, ())
    if any(_has_slurm(hostvars[name], groups) for name in with_zookeeper):
        return []
    return [
        name
        for name in groups.get(CONTROLLERS, ())
        if name not in with_zookeeper and hostvars[name].get("gpu_reconciler_scheduler") != "mesos"
    ]


def _has_slurm(variables: Mapping[str, Any], groups: Groups) -> bool:
    scheduler = variables.get("gpu_reconciler_scheduler", "auto")
    has_mesos = groups.get(MASTERS) or variables.get("gpu_reconciler_masters")
    return _is_there(variables) and (scheduler == "slurm" or (scheduler == "auto" and not has_mesos))


def _is_there(variables: Mapping[str, Any]) -> bool:
    return bool(variables.get("gpu_reconciler_state", "present") == "present")


def mode(variables: Mapping[str, Any], auto: str) -> str:
    """What the reconciler of a host does: act, record or dry-run; absent where it is removed."""
    told = str(variables.get("gpu_reconciler_mode", "auto"))
    return (auto if told == "auto" else told) if _is_there(variables) else ABSENT


def acts(groups: Groups, hostvars: Hostvars) -> bool:
    """Whether they take faulty GPUs out of service, and do not only show what they would do."""
    return ACT in (mode(hostvars[name], AUTO_IN_SLURM) for name in hosts(groups, hostvars))


def idle(groups: Groups, hostvars: Hostvars) -> tuple[str, str] | None:
    """A host whose reconciler leaves faulty GPUs in service, and its mode; None where all reconcilers act."""
    in_slurm = hosts(groups, hostvars)
    with_zookeeper = {name: mode(hostvars[name], AUTO_WITH_ZOOKEEPER) for name in groups.get(RECONCILERS, ())}
    # Those that a site of Slurm has removed are no part of it any more.
    if in_slurm and not groups.get(MASTERS):
        with_zookeeper = {name: what for name, what in with_zookeeper.items() if what != ABSENT}
    for modes in (with_zookeeper, {name: mode(hostvars[name], AUTO_IN_SLURM) for name in in_slurm}):
        if modes and ACT not in modes.values():
            return next(iter(modes.items()))
    return None


def fence(groups: Groups, hostvars: Hostvars) -> dict[str, Any]:
    """For roles and playbooks."""
    return {"hosts": hosts(groups, hostvars), "acts": acts(groups, hostvars)}


def addresses(host: str, groups: Groups, hostvars: Hostvars) -> list[str]:
    """host:port of each to which a node of Slurm sends its verdicts; none for other hosts."""
    found = []
    for name in hosts(groups, hostvars) if host in groups.get(NODES, ()) else ():
        variables = hostvars[name]
        if _is_there(variables):
            address, port = address_of(name, variables), variables.get("gpu_reconciler_port", PORT)
            found.append(f"{f'[{address}]' if ':' in address else address}:{port}")
    return found
