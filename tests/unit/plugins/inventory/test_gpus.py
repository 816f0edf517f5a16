# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin, as `ansible-inventory` shows it."""

from __future__ import annotations

import json
import shutil

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from tests.bench import made_up_fleet
from tests.unit.sites import members

GROUPS = {f"node{number}": sorted(made_up_fleet.groups_of(number)) for number in range(5)}


def groups_by_host(listed) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group, content in listed.items():
        for host in content.get("hosts", []):
            found.setdefault(host, []).append(group)
    return {host: sorted(set(names) - {"ungrouped"}) for host, names in found.items()}


def with_cache(site, cache) -> None:
    site.environment.update(ANSIBLE_CACHE_PLUGIN="jsonfile", ANSIBLE_CACHE_PLUGIN_CONNECTION=str(cache))


@pytest.mark.parametrize("gpus_variable", ["", "gpu_gpus"])
def test_the_same_as_static_yaml(site, gpus_variable):
    """Hosts, groups, variables and their order are what the same fleet written down by hand gives."""
    hosts = 60
    (site.path / "static").mkdir()
    (site.path / "plugin").mkdir()
    made_up_fleet.write_static(site.path / "static" / "hosts.yml", hosts, gpus_variable)
    made_up_fleet.write_snapshot(site.path / "plugin" / ".gpus.jsonl", hosts)
    made_up_fleet.write_plugin(site.path / "plugin" / "gpus.yml", gpus_variable)
    static, _warnings = site.load(source="static")
    plugin, warnings = site.load(source="plugin")
    assert len(plugin["_meta"]["hostvars"] or members(plugin, "gpu_count_8")) == hosts
    assert {group: members(plugin, group) for group in plugin} == {group: members(static, group) for group in static}
    assert plugin["_meta"]["hostvars"] == static["_meta"]["hostvars"]
    assert "WARNING" not in warnings


def test_on_top_of_another_source(site):
    """Hosts of the inventory are matched, in its order; those that only the snapshot knows are left out."""
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 4)
    names = [made_up_fleet.host_name(number) for number in (3, 1)]
    site.write("hosts.yml", json.dumps({"rack": {"hosts": {**dict.fromkeys(names), "new": {"ansible_host": "::1"}}}}))
    site.write_plugin("snapshot: .gpus.jsonl")
    listed, warnings = site.load()
    assert members(listed, "rack") == [*names, "new"]
    assert groups_by_host(listed) == {
        names[0]: sorted(["rack", *made_up_fleet.groups_of(3)]),
        names[1]: sorted(["rack", *made_up_fleet.groups_of(1)]),
        "new": ["gpu_unknown", "rack"],
    }
    assert listed["_meta"]["hostvars"]["new"]["ansible_host"] == "::1"
    assert "WARNING" not in warnings


def test_from_the_fact_cache(site, fact_cache):
    """A host whose facts are broken takes no other along, and is named with the reason."""
    with_cache(site, fact_cache)
    site.write_hosts(*GROUPS, "node5", "bare", "never_seen")
    site.write_plugin()
    listed, warnings = site.load()
    assert groups_by_host(listed) == {
        **GROUPS,
        "node5": ["gpu_unknown"],
        "bare": ["gpu_unknown"],
        "never_seen": ["gpu_unknown"],
    }
    assert "the facts of 1 hosts cannot be used" in warnings
    assert "node5: they have schema 0, and this version reads 1" in warnings
    assert "gpuops inventory" in warnings


def test_a_cache_file_that_is_no_json(site, fact_cache, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy") / "cache"
    shutil.copytree(fact_cache, copy)
    (broken,) = copy.glob("*node2")
    broken.write_text('{"half a')
    with_cache(site, copy)
    site.write_hosts("node1", "node2", "node3")
    site.write_plugin()
    listed, warnings = site.load()
    assert groups_by_host(listed) == {"node1": GROUPS["node1"], "node2": ["gpu_unknown"], "node3": GROUPS["node3"]}
    assert "node2: " in warnings


def test_hosts_that_only_the_fact_cache_knows(site, fact_cache):
    with_cache(site, fact_cache)
    site.write_hosts("node1")
    site.write_plugin("add_hosts: true", "gpus_variable: gpu_gpus")
    listed, _warnings = site.load()
    assert groups_by_host(listed) == GROUPS
    for number, host in enumerate(GROUPS):
        assert listed["_meta"]["hostvars"][host]["gpu_gpus"] == made_up_fleet.gpus_of(number)


def test_within_leaves_the_others_alone(site):
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 2)
    one, two = made_up_fleet.host_name(0), made_up_fleet.host_name(1)
    site.write(
        "hosts.yml",
        json.dumps(
            {
                "nodes": {"children": {"rack": {"hosts": {one: None, "new": None}}}},
                "others": {"hosts": {two: None, "switch": None}},
            }
        ),
    )
    site.write_plugin("snapshot: .gpus.jsonl", "within: [nodes]")
    listed, _warnings = site.load()
    assert members(listed, "gpu_unknown") == ["new"]
    assert members(listed, "gpu_count_8") == [one]
    site.write_plugin("snapshot: .gpus.jsonl", "within: [noddes]")
    said = site.failure()
    assert "zz_gpus.yml: within names the group noddes" in said
    assert "nodes, others, rack" in said


def test_constructed_options_filter_and_tests(site):
    """compose, groups and keyed_groups see the facts; the filter and the tests answer to their full names."""
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 4)
    names = [made_up_fleet.host_name(number) for number in range(4)]
    site.write("hosts.yml", json.dumps({"rack": {"hosts": dict.fromkeys([*names, "new"]), "vars": {"wanted": 40000}}}))
    site.write_plugin(
        "snapshot: .gpus.jsonl",
        "strict: true",
        "compose:",
        "  gpu_memory_mib: gpu.devices | sum(attribute='memory_mib')",
        "  gpu_left: >-",
        "    gpu | baremetal.gpu.select_gpus(model='a100*', memory_mib_min=wanted, verdict='ok') | length",
        "groups:",
        "  healthy: gpu is baremetal.gpu.gpu_healthy",
        "  sick: gpu is baremetal.gpu.gpu_unhealthy",
        "  all_a100: gpu.devices | reject('baremetal.gpu.gpu_model', ['a100*']) | length == 0",
        "  big: gpu.devices | select('baremetal.gpu.gpu_memory', wanted) | length >= 8",
        "keyed_groups:",
        "  - {key: gpu.devices | map(attribute='compute_capability') | unique, prefix: cc}",
    )
    listed, _warnings = site.load()
    variables = listed["_meta"]["hostvars"]
    assert [variables[name]["gpu_memory_mib"] for name in names] == [8 * 40960, 8 * 81559, 8 * 16384, 8 * 15360]
    assert [variables[name]["gpu_left"] for name in names] == [7, 0, 0, 0]
    assert members(listed, "sick") == names[:1]
    assert members(listed, "healthy") == names[1:]
    assert members(listed, "all_a100") == names[:1]
    assert members(listed, "big") == names[:2]
    assert {group for group in listed if group.startswith("cc_")} == {"cc_8_0", "cc_9_0", "cc_7_0", "cc_7_5"}
    assert members(listed, "gpu_unknown") == ["new"]


def test_the_filter_names_what_is_wrong(site):
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 1)
    site.write_hosts(made_up_fleet.host_name(0))
    site.write_plugin(
        "snapshot: .gpus.jsonl", "strict: true", "compose: {x: gpu | baremetal.gpu.select_gpus(verdict='healthy')}"
    )
    assert "verdict is 'healthy'; there are ok, degraded, unknown, fatal" in site.failure()


def test_facts_are_no_templates(site):
    """A node cannot make the controller evaluate what it reports."""
    facts = made_up_fleet.facts_of(1)
    for device in facts["devices"]:
        device["name"] = "{{ lookup('pipe', 'echo evaluated') }}"
    fleet_file.write(str(site.path / ".gpus.jsonl"), 1.0, [fleet_file.row_of("node1", 1.0, facts)])
    site.write_hosts("node1")
    site.write_plugin(
        "snapshot: .gpus.jsonl",
        "gpus_variable: gpu_gpus",
        "compose: {said: 'gpu.devices[0].name ~ gpu_gpus[0].name'}",
    )
    listed, _warnings = site.load()
    assert "evaluated'" in listed["_meta"]["hostvars"]["node1"]["said"]


def test_the_inventory_cache_spares_reading_the_facts_again(site, tmp_path_factory):
    site.environment.update(
        ANSIBLE_INVENTORY_CACHE="true",
        ANSIBLE_INVENTORY_CACHE_PLUGIN="jsonfile",
        ANSIBLE_INVENTORY_CACHE_CONNECTION=str(tmp_path_factory.mktemp("inventory-cache")),
    )
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 2)
    one = made_up_fleet.host_name(1)
    site.write_hosts(one)
    site.write_plugin("snapshot: .gpus.jsonl")
    first, _warnings = site.load()
    (site.path / ".gpus.jsonl").unlink()
    assert site.load()[0] == first
    assert groups_by_host(first) == {one: sorted(made_up_fleet.groups_of(1))}
    # What is kept has no facts, so an option that needs them reads them anew; so does --flush-cache.
    site.write_plugin("snapshot: .gpus.jsonl", "gpus_variable: gpu_gpus")
    assert members(site.load()[0], "gpu_unknown") == [one]
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 2)
    refreshed, _warnings = site.load("--flush-cache")
    assert refreshed["_meta"]["hostvars"][one]["gpu_gpus"] == made_up_fleet.gpus_of(1)
    (site.path / ".gpus.jsonl").unlink()
    assert site.load()[0] == refreshed


def test_before_the_first_snapshot(site):
    site.write_hosts("a", "b")
    site.write_plugin("snapshot: .gpus.jsonl")
    listed, warnings = site.load()
    assert members(listed, "gpu_unknown") == ["a", "b"]
    assert f"{site.path}/.gpus.jsonl does not exist yet" in warnings


def test_a_name_that_comes_before_the_hosts_is_pointed_out(site):
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 1)
    site.write_hosts(made_up_fleet.host_name(0))
    site.write("gpus.yml", "plugin: baremetal.gpu.gpus\nsnapshot: .gpus.jsonl\n")
    listed, warnings = site.load()
    assert "gpu_count_8" not in listed
    assert "no source before this one has a host" in warnings
    assert "zz_gpus.yml" in warnings


def test_a_host_with_the_name_of_a_group(site):
    rows = [fleet_file.Row(name, 1.0, ["nvlink", "mig"], "{}") for name in ("mig", "other")]
    fleet_file.write(str(site.path / ".gpus.jsonl"), 1.0, rows)
    site.write_hosts("mig", "other")
    site.write_plugin("snapshot: .gpus.jsonl")
    listed, _warnings = site.load()
    assert members(listed, "mig") == members(listed, "nvlink") == ["mig", "other"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["snapshott: x"], "zz_gpus.yml: unknown option snapshott; did you mean snapshot?"),
        (["colour: green"], "zz_gpus.yml: unknown option colour; there are add_hosts, cache,"),
        (["snapshot: .gpus.jsonl", "gpus_variable: gpu-gpus"], "zz_gpus.yml: gpus_variable is 'gpu-gpus'"),
        (["snapshot: hosts.yml"], "hosts.yml is not a snapshot"),
        (["snapshot: ."], "cannot be read: Is a directory"),
        (["snapshot: .old"], ".old has schema 0, and this version reads 2; write it anew with `gpuops inventory`"),
        ([], "zz_gpus.yml: there are no facts to read: fact_caching is 'memory', which keeps no facts"),
    ],
    ids=str,
)
def test_bad_input_is_named_with_the_remedy(site, options, said):
    site.write_hosts("a")
    site.write(".old", '{"kind": "baremetal.gpu snapshot", "schema": 0, "time": 1}\n')
    site.write_plugin(*options)
    assert said in site.failure()
