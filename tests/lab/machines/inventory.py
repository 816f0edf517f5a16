# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as an Ansible inventory."""

from __future__ import annotations

import shlex
from typing import Any

from .disks import link_of
from .machine import Machine
from .state import CHECKOUT, USER, Lab
from .system import say

# A machine with disks is a host of the storage cluster, with everything that such a cluster has. All machines mount it.
CEPH_GROUPS = ("ceph_mons", "ceph_mgrs", "ceph_osds", "ceph_mdss")
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


def answers(lab: Lab) -> dict[str, Any]:
    """The lab as `gpuops init --answers` takes it: machines without roles, and what is special about them.

    Machines with disks are to be storage nodes. Two users log in with the key of the lab.
    """
    key = lab.private_key.with_suffix(".pub").read_text(encoding="utf-8").strip()
    return {
        "hosts": {name: answers_of_host(lab, name) for name in lab.machines},
        "users": [{"name": name, "groups": ["physics"], "ssh_keys": [key]} for name in ("alice", "bob")],
    }


def answers_of_host(lab: Lab, name: str) -> dict[str, Any]:
    """A machine: how it is reached, its role, its disks, and variables that a real site does not set."""
    variables = host_variables(lab, name)
    address, disks = variables.pop("ansible_host"), variables.pop("ceph_osd_devices", [])
    return {
        "address": address,
        **({"roles": ["controller", "storage"], "disks": disks} if disks else {}),
        "variables": {**variables, **special()},
    }


def special() -> dict[str, Any]:
    """What the inventory of the lab sets. Nothing but the host sets the machines' clocks, and their disks are small."""
    import yaml

    files = sorted((CHECKOUT / "inventories" / "lab" / "group_vars").iterdir())
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]
    small = {"gpu_preflight_refuse": [], "cephfs_homes_size": "500M"}
    return {**small, **{key: value for content in found for key, value in content.items()}}


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
