# SPDX-License-Identifier: GPL-3.0-or-later
"""The example inventory is complete, and the playbooks understand it."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from jinja2 import Environment, PackageLoader

from ansible_collections.baremetal.gpu.plugins.filter.site_users import site_users
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.osd_rows import rows
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.users import homes
from tests.unit.project.tree import BIN, ROOT, load_yaml, role_names, run, tracked

EXAMPLE = ROOT / "inventories" / "example"


@functools.cache
def inventory() -> dict[str, Any]:
    return json.loads(run(BIN / "ansible-inventory", "-i", EXAMPLE, "--list", ANSIBLE_INVENTORY_UNPARSED_FAILED="true"))


def test_every_configuration_of_ansible_has_the_settings_that_were_measured(tmp_path):
    """That of the checkout, that of the example, and the one that `gpuops init` writes."""
    made = Environment(loader=PackageLoader("gpuops.init"), autoescape=False).get_template("ansible.cfg.j2")
    (tmp_path / "ansible.cfg").write_text(made.render(vault=False))
    found = []
    for path in (ROOT / "ansible.cfg", EXAMPLE / "ansible.cfg", tmp_path / "ansible.cfg"):
        told = json.loads(
            run(
                BIN / "ansible-config",
                "dump",
                "--only-changed",
                "--format=json",
                "--type=base",
                ANSIBLE_CONFIG=str(path),
            )
        )
        settings = {row["name"]: row["value"] for row in told if "name" in row}
        found.append(
            {name: settings.get(name) for name in ("DEFAULT_FORKS", "INJECT_FACTS_AS_VARS", "DEFAULT_STRATEGY")}
        )
        assert "pipelining = true" in path.read_text().splitlines()
    assert found == [{"DEFAULT_FORKS": 20, "INJECT_FACTS_AS_VARS": False, "DEFAULT_STRATEGY": None}] * 3


def members(group: str) -> set[str]:
    content = inventory().get(group, {})
    return set(content.get("hosts", [])).union(*(members(child) for child in content.get("children", [])))


def test_the_site_is_as_described():
    sizes = {group: len(members(group)) for group in ("controllers", "gpu_nodes", "storage_nodes", "cpu_nodes")}
    assert sizes == {"controllers": 3, "gpu_nodes": 8, "storage_nodes": 3, "cpu_nodes": 1}
    models = inventory()["gpu_nodes"]["children"]
    assert sorted(len(members(model)) for model in models) == [4, 4]
    assert len(members("gpu_cluster")) == 15


def test_the_storage_has_a_quorum_and_spare_daemons_and_everybody_who_computes_mounts_it():
    storage = members("storage_nodes")
    assert {group: len(members(group)) for group in ("ceph_mons", "ceph_mgrs", "ceph_osds", "ceph_mdss")} == {
        "ceph_mons": 3,
        "ceph_mgrs": 3,
        "ceph_osds": 3,
        "ceph_mdss": 2,
    }
    assert members("ceph_mons") | members("ceph_mgrs") | members("ceph_osds") | members("ceph_mdss") == storage
    assert members("ceph_clients") == members("gpu_nodes") | members("cpu_nodes")


def test_the_disks_are_what_the_role_takes_and_no_two_are_one():
    variables = inventory()["_meta"]["hostvars"]
    disks = [disk for host in members("ceph_osds") for disk in variables[host]["ceph_osd_devices"]]
    assert len(set(disks)) == len(disks) == 12
    for host in members("ceph_osds"):
        given = variables[host]
        method = {"method": given["ceph_osd_method"]}
        _rows, problems = rows(given["ceph_osd_devices"], method, given["ceph_osd_wipe"])
        assert problems == []


def test_users_who_are_listed_need_not_be_known_to_the_hosts():
    given = inventory()["_meta"]["hostvars"]["cpu1"]
    found = site_users(given["cluster_users"], given["cluster_groups"], str(EXAMPLE))
    assert found["problems"] == []
    listed, problems = homes(found["homes"], [], [], given["cephfs_homes_size"])
    assert problems == []
    assert [(home["name"], home["size"]) for home in listed] == [("alice", "200G"), ("bob", "2T")]


def test_storage_is_made_from_the_groups():
    said = run(BIN / "ansible-playbook", "-i", EXAMPLE, "--list-hosts", ROOT / "playbooks" / "storage.yml")
    listed = dict(re.findall(r"play #\d+ \([^)]*\): (.*?)\t.*?hosts \((\d+)\)", said, flags=re.DOTALL))
    assert (listed["Monitors"], listed["OSDs"]) == ("3", "3")
    assert listed["Metadata servers and the file system"] == "2"
    assert listed["Homes and mounts, verified by a client"] == "9"


def test_every_host_has_an_address_of_its_own_from_the_documentation_range():
    hosts = inventory()["_meta"]["hostvars"]
    addresses = [variables["ansible_host"] for variables in hosts.values()]
    assert len(set(addresses)) == 15
    assert all(address.startswith("192.0.2.") for address in addresses)


def site_variables() -> set[str]:
    """Variables that the inventory sets, without Ansible's own connection variables."""
    names = set().union(*(set(load_yaml(path) or {}) for path in tracked("inventories/example/group_vars", ".yml")))
    names |= set().union(*(set(load_yaml(path) or {}) for path in tracked("inventories/example/host_vars", ".yml")))
    return {name for name in names if not name.startswith("ansible_")}


def known_options() -> dict[str, dict[str, Any]]:
    """What every role takes, by the name of the variable."""
    known = {}
    for role in role_names():
        for entry in load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"].values():
            known.update(entry.get("options") or {})
    return known


# What the defaults of several roles read.
OF_THE_SITE = {"cluster_users", "cluster_groups", "cluster_homes"}


def test_every_variable_is_one_that_a_role_knows():
    unknown = site_variables() - set(known_options()) - OF_THE_SITE
    assert not unknown, f"no role takes: {sorted(unknown)}"


@pytest.mark.parametrize("host", sorted(members("gpu_cluster")))
def test_values_are_what_the_roles_take(host):
    known = known_options()
    given = {
        name: value
        for name, value in inventory()["_meta"]["hostvars"][host].items()
        if name in known and "{{" not in str(value)
    }
    assert given
    validator = ArgumentSpecValidator({name: {**known[name], "required": False} for name in given})
    assert not validator.validate(given).error_messages


def test_every_variable_is_explained():
    """A comment stands above it (or above the block of variables it belongs to)."""
    files = tracked("inventories/example/group_vars", ".yml") + tracked("inventories/example/host_vars", ".yml")
    assert files
    for path in files:
        explained = False
        for line in (ROOT / path).read_text().splitlines():
            if not line.strip():
                explained = False
            elif line.startswith("#"):
                explained = True
            elif line[0].isalpha():
                assert explained, f"{path}: no comment above {line}"


def test_playbooks_pass_the_syntax_check():
    playbooks = [path for path in tracked("playbooks", ".yml") if "tasks" not in path.parts]
    assert playbooks
    said = run(BIN / "ansible-playbook", "--syntax-check", "-i", EXAMPLE, *(ROOT / path for path in playbooks))
    assert said.count("playbook: ") == len(playbooks)


def test_what_playbooks_include_is_a_list_of_tasks():
    included = [path for path in tracked("playbooks", ".yml") if "tasks" in path.parts]
    assert included
    assert [path for path in included if not isinstance(load_yaml(path), list)] == []
