# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as an Ansible inventory."""

from __future__ import annotations

import shlex
from typing import Any

from .disks import link_of
from .machine import Machine
from .state import USER, Lab
from .system import say

# A machine with disks is a host of the storage cluster, with everything that such a cluster has. All machines mount it.
CEPH_GROUPS = ("ceph_mons", "ceph_mgrs", "ceph_osds", "ceph_mdss")
# The first machine without GPUs is a host of all of these.
SLURM_HEAD_GROUPS = ("slurm_controllers", "slurm_databases", "slurm_logins", "slurm_rests")
GROUPS = ("controllers", "gpu_nodes", "storage_nodes", "cpu_nodes")


def inventory(lab: Lab) -> dict[str, Any]:
    """What an inventory script prints for --list; without machines it has no groups, and plays that name one fail."""
    if not lab.machines:
        say(f"lab {lab.id} has no machines: 'tools/lab up' makes them")
        return {"_meta": {"hostvars": {}}}
    return {
        "_meta": {"hostvars": {name: host_variables(lab, name) for name in lab.machines}},
        "gpu_cluster": {"children": list(GROUPS)},
        **{group: {"hosts": [name for name, spec in lab.machines.items() if group in spec.groups]} for group in GROUPS},
        **ceph_groups(lab),
    }


def slurm_inventory(lab: Lab) -> dict[str, Any]:
    """The lab as a cluster of Slurm: machines with GPUs are its nodes, and the first of the others is its head."""
    found = inventory(lab)
    nodes = [name for name, spec in lab.machines.items() if "gpu_nodes" in spec.groups]
    heads = [name for name in lab.machines if name not in nodes][:1]
    if not nodes or not heads:
        return found
    return {
        **found,
        **{group: {"hosts": heads} for group in SLURM_HEAD_GROUPS},
        "slurm_nodes": {"hosts": nodes},
    }


def ceph_groups(lab: Lab) -> dict[str, Any]:
    """The groups of the storage cluster; none where no machine has disks."""
    hosts = [name for name, spec in lab.machines.items() if spec.disks]
    clients = {"ceph_clients": {"hosts": list(lab.machines)}}
    return {**{group: {"hosts": hosts} for group in CEPH_GROUPS}, **clients} if hosts else {}


def host_variables(lab: Lab, name: str) -> dict[str, Any]:
    """How to reach a machine."""
    machine = Machine(lab, lab.get(name))
    return {
        **({"ceph_osd_devices": [link_of(name) for name in machine.spec.disks]} if machine.spec.disks else {}),
        "ansible_host": machine.spec.address,
        "ansible_user": USER,
        "ansible_become": True,
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(lab.private_key),
        "ansible_ssh_common_args": shlex.join(["-F", "/dev/null", *machine.ssh_options()]),
        # The percent sign is doubled for Ansible, which puts the directory in with it.
        "ansible_control_path": f"{lab.control_sockets}/{name}-%%r",
    }
