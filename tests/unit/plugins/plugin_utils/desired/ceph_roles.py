# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A storage site, and what Ansible makes of the variables of a role for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from tests.unit.project.tree import BIN, ROOT, try_run

DOCUMENTS = Path(__file__).parent / "documents"
FSID = "2f7c1d3e-2a64-4b6f-9d53-6f1f9f0c1a11"
OTHER_FSID = "11111111-2222-4333-8444-555555555555"
NAMES = ("mon.", "client.admin", "client.bootstrap-mgr", "client.bootstrap-osd", "client.bootstrap-mds", "client.crash")
KEYS = {name: f"key-of-{name}" for name in NAMES}

DEBIAN_12 = {"os_family": "Debian", "distribution": "Debian", "distribution_version": "12.9"}
DEBIAN_12["distribution_major_version"] = "12"
DEBIAN_13 = {**DEBIAN_12, "distribution_version": "13.2", "distribution_major_version": "13"}
UBUNTU = {"os_family": "Debian", "distribution": "Ubuntu", "distribution_version": "24.04"}
UBUNTU["distribution_major_version"] = "24"
ROCKY_9 = {"os_family": "RedHat", "distribution": "Rocky", "distribution_version": "9.6"}
ROCKY_9["distribution_major_version"] = "9"
SUSE = {"os_family": "Suse", "distribution": "SLES", "distribution_version": "15.6", "distribution_major_version": "15"}


def node(hostname: str, version: str = "18.2.7+ds-1", addresses: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The answer of ceph_node_info."""
    return {"hostname": hostname, "version": version, "addresses": list(addresses), "traces": [], **more}


SECRETS = {"ceph_common_secrets": {"fsid": FSID, "keys": KEYS}}
DISK = "/dev/disk/by-id/wwn-0x5000c5000000000"
HOSTS: dict[str, dict[str, Any]] = {
    "stor1.example.org": {
        **SECRETS,
        "ansible_host": "192.0.2.11",
        "ceph_common_node": node("stor1", addresses=("192.0.2.11",)),
        "ceph_osd_devices": [f"{DISK}1", f"{DISK}2"],
        "ceph_osd_result": {"osds": [0, 3]},
    },
    "stor2.example.org": {
        **SECRETS,
        "ansible_host": "192.0.2.12",
        "ceph_common_id": "two",
        "ceph_common_node": node("stor2", addresses=("192.0.2.12",)),
        "ceph_osd_devices": [f"{DISK}3"],
        "ceph_osd_result": {"osds": [1]},
    },
    "stor3.example.org": {
        **SECRETS,
        "ansible_host": "203.0.113.3",
        "ceph_common_mon_address": "192.0.2.13",
        "ceph_common_node": node("stor3", addresses=("203.0.113.3", "192.0.2.13")),
        "ceph_osd_devices": [f"{DISK}4"],
    },
    "node1.example.org": {**SECRETS, "ceph_common_node": node("node1")},
}
GROUPS = {
    "ceph_mons": ["stor1.example.org", "stor2.example.org", "stor3.example.org"],
    "ceph_mgrs": ["stor1.example.org", "stor2.example.org"],
    "ceph_osds": ["stor1.example.org", "stor2.example.org", "stor3.example.org"],
    "ceph_mdss": ["stor2.example.org", "stor3.example.org"],
    "ceph_clients": ["node1.example.org"],
}

Case = tuple[str, dict[str, Any], dict[str, Any]]


def documents(role: str) -> dict[str, dict[str, Any]]:
    """By case: params, facts and peers, and what the role makes of them.

    `objections` are the texts that the role had for people before its problems were data.
    """
    read: dict[str, dict[str, Any]] = json.loads((DOCUMENTS / f"{role}.json").read_text())
    return read


def assert_same(actual: Any, expected: Any) -> None:
    """Both are the same, byte for byte as JSON with sorted keys."""
    assert json.dumps(actual, indent=1, sort_keys=True) == json.dumps(expected, indent=1, sort_keys=True)


def assert_as_recorded(role: str, case: str, plan: dict[str, Any]) -> None:
    """The plan of a role in a case is what its document says, and its problems say what they said as text."""
    document = documents(role)[case]
    for file in plan["desired"].get("files", ()):
        # It changes with every source in it.
        if file["path"] == "/usr/libexec/baremetal-gpu/ceph-osd-activate":
            assert file["content"] == bundle("ceph.osd.activate")
            file["content"] = "PROGRAM"
    assert_same(plan, {**document["parts"], "desired": document["desired"], "problems": document["problems"]})
    causes = [problem["cause"] for problem in plan["problems"]]
    objections = document.get("objections", causes)
    assert len(objections) == len(causes)
    assert all(text.startswith(cause) for text, cause in zip(objections, causes, strict=True))


def check(role: str, case: str) -> None:
    """The same of what the function of the role makes."""
    document = documents(role)[case]
    assert_as_recorded(role, case, desired(document["params"], role, document["facts"], document["peers"]))


def through_ansible(directory: Path, cases: Mapping[str, Case]) -> dict[str, dict[str, Any]]:
    """What Ansible makes of the variables of roles: their plans by role.

    :param cases: by role the host, its facts, and variables.
    """
    inventory = {
        "all": {
            "hosts": HOSTS,
            "vars": {"ansible_python_interpreter": sys.executable},
            "children": {group: {"hosts": dict.fromkeys(hosts)} for group, hosts in GROUPS.items()},
        }
    }
    (directory / "inventory.yml").write_text(yaml.safe_dump(inventory))
    steps: list[dict[str, Any]] = []
    for role, (host, facts, variables) in cases.items():
        defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
        # In a task they would win over those of the host, and a role does not have the defaults of others.
        defaults = {name: value for name, value in defaults.items() if name not in HOSTS[host]}
        made = f"{{{{ __{role}_plan }}}}"
        step = {
            "name": f"Read the plan of {role}",
            "ansible.builtin.set_fact": {"results": "{{ results | default({}) | combine({role_name: made}) }}"},
            "vars": {**defaults, **variables, "ansible_facts": facts, "role_name": role, "made": made},
            "when": f"inventory_hostname == '{host}'",
        }
        steps.append(step)
    path = f"{directory}/{{{{ inventory_hostname }}}}.json"
    copy = {"content": "{{ results | to_json }}", "dest": path, "mode": "0600"}
    steps.append({"name": "Write what was made", "ansible.builtin.copy": copy, "when": "results is defined"})
    play = {
        "hosts": "all",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles" / role / "vars/main.yml") for role in cases],
        "tasks": steps,
    }
    (directory / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
    done = try_run(
        [BIN / "ansible-playbook", "-i", directory / "inventory.yml", directory / "play.yml"],
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read: dict[str, dict[str, Any]] = {}
    for result in directory.glob("*.json"):
        read.update(json.loads(result.read_text()))
    return read
