# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The targets of Prometheus, from the inventory: files for its service discovery.

They are all hosts of the groups, whichever are in a run, so that a run for one host drops no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import settings
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import GPU_ABSENT, GPU_PRESENT, STAGES

# What is on a host, by its groups: rules read these labels.
ROLE_LABELS = {
    "slurm_controller": ("slurm_controllers",),
    "reconciler": ("gpu_reconcilers", "slurm_controllers", "kubernetes_control_planes"),
    "kubernetes_control_plane": ("kubernetes_control_planes",),
    "zookeeper": ("zookeeper",),
    "log_host": ("log_hosts",),
    "portal": ("portals",),
}
# The groups that say what a host is for.
ROLE_GROUPS = tuple(
    dict.fromkeys(
        group
        for stage in STAGES
        for group in stage.groups
        if group not in (GPU_PRESENT, GPU_ABSENT, "gpu_cluster", "node_exporters", "log_senders")
    )
)
CEPH_PORT = 9283
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,62}", re.ASCII)
_OURS = {"host", "job", "instance", "role", *ROLE_LABELS}
_ADDRESS = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A host as the inventory has it: `labels` are what its prometheus_labels say."""

    name: str
    address: str
    port: int
    labels: Any
    groups: tuple[str, ...]
    has_reconciler: bool = True


def host_of(name: str, variables: Mapping[str, Any], groups: Mapping[str, Iterable[str]], port: int = 0) -> Host:
    """A host by its name, its variables and the groups of the inventory.

    :param port: that of its target; by default the port of node_exporter_listen.
    """
    listen = settings.split_listen(str(variables.get("node_exporter_listen") or ":9100"))
    return Host(
        name,
        str(variables.get("node_exporter_address") or variables.get("ansible_host") or name),
        port or (listen[1] if listen else 0),
        built_in(variables.get("prometheus_labels") or {}),
        tuple(group for group in ROLE_GROUPS if name in groups.get(group, ())),
        variables.get("gpu_reconciler_state", "present") == "present",
    )


def entry(host: Host) -> dict[str, Any]:
    """What file_sd has of a host."""
    labels = {
        "host": host.name,
        **{str(key): str(value) for key, value in host.labels.items()},
        **({"role": ",".join(host.groups)} if host.groups else {}),
        **{label: "yes" for label, groups in ROLE_LABELS.items() if set(groups) & set(host.groups)},
    }
    if not host.has_reconciler:
        labels.pop("reconciler", None)
    return {"targets": [target(host.address, host.port)], "labels": labels}


def target(address: str, port: int) -> str:
    """The address and the port, as Prometheus writes them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def text(entries: Iterable[Any]) -> str:
    """The content of a file of targets."""
    return f"{json.dumps(list(entries), indent=2)}\n"


def problems(hosts: Iterable[Host]) -> Iterator[Problem]:
    """What of a host cannot be a target or its labels."""
    for host in hosts:
        if not _ADDRESS.fullmatch(host.address):
            cause = "its address is neither a name nor an IP address"
            yield Problem(
                "wrong_address",
                host.name,
                cause,
                host.address[:200],
                "correct its ansible_host, or set node_exporter_address",
            )
        if not host.port:
            cause = "its node_exporter_listen is not an address with a port"
            yield Problem("wrong_address", host.name, cause, remedy="give one such as :9100")
        if isinstance(host.labels, Mapping):
            yield from _label_problems(host)
        else:
            cause = "its prometheus_labels are not a dict"
            yield Problem("wrong_labels", host.name, cause, str(host.labels)[:200], "give names and values")


def _label_problems(host: Host) -> Iterator[Problem]:
    for name, value in host.labels.items():
        if not _LABEL.fullmatch(str(name)) or str(name).startswith("__"):
            cause = "its prometheus_labels have a name that Prometheus refuses"
            yield Problem("wrong_labels", host.name, cause, str(name)[:200], "use letters, digits and underscores")
        elif name in _OURS:
            cause = f"its prometheus_labels have {name}, which the role sets itself"
            yield Problem("wrong_labels", host.name, cause, str(value)[:200], "choose another name")
