# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmctld and the configuration of the cluster."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf, jwt, metrics, units

DIRECTORY = "/etc/slurm"
SLURMCTLD = "slurmctld.service"
FILES = ("slurm_conf", "gres_conf", "cgroup_conf", "topology_conf", "oci_conf")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the controller.

    :param params: ``jwt_key``, the key of tokens, with slurmrestd; ``metrics_directory`` and ``metrics_interval``.
    :param peers: ``cluster``, the plan of slurm_common, empty before the hosts were looked at: then only the settings
        are judged; ``nodes``, what slurmctld has now (see the module
        slurm_nodes_info); and ``has``, files that may be there: item, content in Base64.
    """
    cluster = peers["cluster"]
    if not cluster:
        return Plan(problems=tuple(metrics.problems(params)))
    key = str(params.get("jwt_key", ""))
    problems = [
        *_gres_problems(cluster["gres"], peers["nodes"]),
        *(jwt.problems(key) if cluster["has_rest"] else ()),
        *metrics.problems(params),
    ]
    if problems:
        return Plan(problems=tuple(problems))
    keys = [jwt.key_file("slurmctld", key)] if cluster["has_rest"] else []
    state = cluster["state"]
    paths = {name: f"{DIRECTORY}/{name.replace('_', '.')}" for name in FILES if cluster[name]}
    return Plan(
        doc.Document(
            packages=[*map(doc.Package, ("slurmctld", "slurm-client", *([jwt.PACKAGE] if keys else [])))],
            files=[
                # Before the packages: what they start at once would wait for it.
                doc.Directory(DIRECTORY, owner=None, group=None, early=True),
                *(doc.File(path, cluster[name], early=True) for name, path in paths.items()),
                *keys,
                *map(doc.Absent, _former(peers["has"], paths.values())),
                *units.drop_in("slurm_controller", SLURMCTLD, _mounted(state["path"], state["mount"]) if state else ""),
                *([doc.Directory(state["path"], "0700", "slurm", "slurm")] if state else []),
                *metrics.files(params),
            ],
            units=[
                doc.Unit.running(SLURMCTLD, [*paths.values(), *(one.path for one in keys), "slurmctld"]),
                metrics.unit(params),
            ],
        )
    )


def _former(has: Iterable[Mapping[str, Any]], wanted: Iterable[str]) -> list[str]:
    """The files that this role wrote and that are no longer wanted."""
    head = conf.HEAD.format(role="slurm_controller").encode()
    found = [str(row["item"]) for row in has if base64.b64decode(row.get("content") or "").startswith(head)]
    return sorted(set(found) - set(wanted))


def _mounted(path: str, mount: str) -> str:
    """The section of slurmctld's unit with which it does not start without the file system of its state."""
    is_checked = f"AssertPathIsMountPoint={mount}\n" if mount else ""
    return f"[Unit]\nRequiresMountsFor={path}\n{is_checked}"


def _gres_problems(desired_gres: Mapping[str, str], nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    for name, node in nodes.items():
        if node["busy"] and name not in desired_gres:
            yield Problem(
                "node_in_use",
                name,
                f"{name} has jobs and is not in the inventory any more, and Slurm kills the jobs of a node that goes",
                node["state"],
                f"run 'sudo scontrol update nodename={name} state=drain reason=leaves', wait until it is drained, and "
                "run "
                "it again",
            )
            continue
        becomes = desired_gres.get(name, "")
        if node["busy"] and node["gres"] != becomes:
            yield Problem(
                "gres_in_use",
                name,
                f"{name} has jobs, and its GPUs would change from {node['gres'] or 'none'} to {becomes or 'none'}, "
                "which makes Slurm kill them",
                node["state"],
                f"run 'sudo scontrol update nodename={name} state=drain reason=GPUs', wait until it is drained, and "
                "run it "
                "again",
            )
