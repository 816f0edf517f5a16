# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of a Slurm cluster, and its configuration files. It has no document of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import cluster as slurm_cluster
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf

GROUPS = ("controllers_group", "databases_group", "nodes_group", "logins_group", "rests_group")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the cluster.

    :param peers: ``groups`` and ``hostvars``; of the hosts of the cluster ``slurm_common_switch`` is read, and what
        they have ``published``: the name of the variable, by default ``slurm_common_host``.
    :return: Parts: `slurm_conf`, `gres_conf`, `cgroup_conf`, `topology_conf` and `oci_conf`, the texts of the files,
        empty for one that is not needed; `gres`, what each node with GPUs has of them; `restart_order`, in which the
        controllers are changed, as `order` of a play; `state`, the `path` of the state directory and the `mount` point
        of its file system, empty for that of the package; `state_directory`, its path in any case; `controllers`, their
        hosts, the primary one first; `notes` on nodes that were not looked at; and `has_rest`, whether slurmctld
        accepts tokens.
    """
    groups = {name: list(hosts) for name, hosts in peers["groups"].items()}
    members = {host for key in GROUPS for host in groups.get(params[key], ())}
    # A node that was not looked at is at its switch all the same.
    hosts = {
        name: {
            **(peers["hostvars"][name].get(peers.get("published", "slurm_common_host")) or {}),
            "switch": peers["hostvars"][name].get("slurm_common_switch") or "",
        }
        for name in members
    }
    cluster, problems = slurm_cluster.describe(params, groups, hosts)
    if cluster is None:
        return Plan(problems=tuple(problems))
    state = {}
    seen = hosts[groups[params["controllers_group"]][0]]["look"].get("state_directory") or {}
    if len(cluster.controllers) > 1 or cluster.state_directory != slurm_cluster.STATE_DIRECTORY:
        is_shared = seen["type"] in slurm_cluster.SHARED_FILE_SYSTEMS
        state = {"path": seen["path"], "mount": seen["mount"] if is_shared else ""}
    parts = {
        "slurm_conf": conf.slurm_conf(
            cluster,
            params["options"],
            params["prolog"],
            params["enforce"],
            params["health_check"],
            params.get("private_data", ()),
        ),
        "gres_conf": conf.gres_conf(cluster),
        "cgroup_conf": conf.cgroup_conf(),
        "topology_conf": conf.topology_conf(cluster),
        "oci_conf": conf.oci_conf(cluster),
        "gres": {node.name: conf.gres(node.gpus) for node in cluster.nodes},
        "notes": list(cluster.notes),
        "has_rest": cluster.has_rest,
        "state_directory": cluster.state_directory,
        "controllers": groups[params["controllers_group"]],
        # The backup first; but one that is new waits for a primary controller that knows of it.
        "restart_order": "reverse_inventory" if seen.get("heartbeat") else "inventory",
        "state": state,
    }
    return Plan(parts=parts)
