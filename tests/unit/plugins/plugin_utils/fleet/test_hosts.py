# SPDX-License-Identifier: GPL-3.0-or-later
"""What facts say to an inventory. The facts are made by gpu.gather(), the answers of NVML in them by hand."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from tests.bench import made_up_fleet

A100 = 0  # a host of the made-up fleet with A100s in MIG mode, and a fatal verdict on its first GPU
T4 = 3

LOST = {"code": 15, "name": "gpu_is_lost", "text": "GPU is lost", "remedy": "reboot"}


def facts(number: int = T4, **changes) -> dict:
    return {**copy.deepcopy(made_up_fleet.facts_of(number)), **changes}


@pytest.mark.parametrize("number", range(4))
def test_every_model_of_the_made_up_fleet(number):
    assert sorted(fleet.groups(facts(number))) == sorted(made_up_fleet.groups_of(number))


def test_a_host_without_a_gpu():
    bare = {"schema": 1, "present": False, "reason": "no NVIDIA GPU on the PCI bus", "pci": [], "devices": []}
    assert fleet.groups(bare) == ["gpu_absent"]
    # All its GPUs have vanished, and the health report knows that there were some.
    assert fleet.groups({**bare, "health": {"verdict": "fatal"}}) == ["gpu_absent", "gpu_unhealthy"]


def test_a_bus_that_cannot_be_read():
    assert fleet.groups({"schema": 1, "present": None, "reason": "no sysfs", "pci": []}) == ["gpu_unknown"]


def test_before_there_is_a_driver_the_bus_names_the_gpu():
    row = {"address": "0000:3b:00.0", "kind": "gpu", "model": "A100 SXM4 40GB", "architecture": "ampere"}
    switch = {"address": "0000:c1:00.0", "kind": "nvswitch", "model": None, "architecture": None}
    driver = {"branch": None, "cuda": None, "nvml_error": {"code": 9}}
    assert fleet.groups({"schema": 1, "present": True, "pci": [row, row, switch], "driver": driver, "devices": []}) == [
        "gpu_model_a100_sxm4_40gb",
        "gpu_count_2",
        "gpu_arch_ampere",
    ]
    assert "gpu_count_2" in fleet.groups({"schema": 1, "present": True, "pci": [row, row]})


def test_a_mixed_node_is_in_the_groups_of_both():
    mixed = facts(T4)
    mixed["devices"][1] = facts(A100)["devices"][1]
    found = fleet.groups(mixed)
    assert {"gpu_model_tesla_t4", "gpu_model_a100_sxm4_40gb", "gpu_arch_turing", "gpu_arch_ampere", "mig"} <= set(found)


def test_a_host_is_in_the_group_of_each_profile_that_it_has():
    cut = facts(devices=[{"mig": {"enabled": True, "instances": [{"profile": "1g.5gb"}, {"profile": "1g.5gb+me"}]}}])
    assert {"mig", "mig_1g_5gb", "mig_1g_5gb_me"} <= set(fleet.groups(cut))
    assert not any(name.startswith("mig") for name in fleet.groups(facts(T4)))


def test_nvlinks_may_be_told_one_by_one():
    told = facts(T4)
    told["devices"][0]["nvlinks"] = [{"link": 0, "active": False}]
    assert "nvlink" not in fleet.groups(told)
    told["devices"][0]["nvlinks"].append({"link": 1, "active": True})
    assert "nvlink" in fleet.groups(told)


@pytest.mark.parametrize(
    ("verdict", "unhealthy"), [("ok", False), ("degraded", True), ("fatal", True), ("unknown", False)]
)
def test_unhealthy_is_what_the_health_report_says(verdict, unhealthy):
    told = facts(T4)
    told["health"]["verdict"] = verdict
    assert ("gpu_unhealthy" in fleet.groups(told)) is unhealthy


def test_without_a_health_report_a_gpu_out_of_reach_is_unhealthy():
    told = facts(T4, health=None)
    assert "gpu_unhealthy" not in fleet.groups(told)
    lost = copy.deepcopy(told)
    lost["devices"][7] = {"index": 7, "error": LOST, "pci_address": "0000:48:00.0"}
    assert "gpu_unhealthy" in fleet.groups(lost)
    assert "gpu_count_8" in fleet.groups(lost)
    vanished = copy.deepcopy(told)
    del vanished["devices"][7]
    assert "gpu_unhealthy" in fleet.groups(vanished)
    # Where the driver cannot be asked at all, nothing is known of the GPUs.
    vanished["driver"]["nvml_error"] = {"code": 9, "name": "driver_not_loaded"}
    assert "gpu_unhealthy" not in fleet.groups(vanished)


def test_gpus_and_their_verdicts():
    assert fleet.gpus(facts(A100)) == made_up_fleet.gpus_of(A100)


def test_a_lost_gpu_is_fatal_and_one_without_a_report_is_unknown():
    told = facts(T4, health=None)
    told["devices"][7] = {"index": 7, "error": LOST, "pci_address": "0000:48:00.0"}
    assert fleet.verdicts(told) == ["unknown"] * 7 + ["fatal"]


def test_a_verdict_is_found_by_address_where_there_is_no_uuid():
    told = facts(T4)
    told["devices"][7] = {"index": 7, "pci_address": "0000:48:00.0"}
    told["health"]["devices"][7] = {"uuid": None, "pci_address": "0000:48:00.0", "verdict": "degraded"}
    assert fleet.verdicts(told)[7] == "degraded"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (None, "NoneType"),
        ([], "list"),
        ({}, "schema None"),
        ({"schema": 0, "present": True}, "schema 0"),
        (facts(devices="none"), "devices"),
        (facts(devices=["GPU-1"]), "devices"),
        (facts(pci={}), "pci"),
        (facts(driver="550"), "driver"),
        (facts(driver={"branch": [550]}), r"\[550\].*driver_branch"),
        (facts(health={"devices": {}}), "devices"),
        (facts(devices=[{"slug": {"a": 1}}]), "gpu_model"),
        (facts(devices=[{"mig": "on"}]), "mig"),
        (facts(devices=[{"mig": {"instances": ["1g.5gb"]}}]), "instances"),
        (facts(devices=[{"mig": {"instances": [{"profile": {}}]}}]), "mig_"),
    ],
)
def test_broken_facts_are_named(broken, said):
    with pytest.raises(fleet.BrokenFacts, match=said):
        fleet.groups(broken)


def test_a_name_from_a_host_cannot_leave_its_prefix():
    told = facts(T4)
    for device in told["devices"]:
        device["slug"] = "../all:children\n[gpu_absent]"
    assert fleet.groups(told)[0] == "gpu_model_all_children_gpu_absent"


def test_the_agents_facts_complete_those_of_the_module():
    local = facts(T4)
    assert fleet.facts_of({"ansible_local": {"gpu": local}}) == local
    only_bus = {key: local[key] for key in ("schema", "present", "reason", "pci")}
    assert fleet.facts_of({"gpu": only_bus, "ansible_local": {"gpu": local}}) == local
    newer = {**local, "devices": []}
    assert fleet.facts_of({"gpu": newer, "ansible_local": {"gpu": local}})["devices"] == []


@pytest.mark.parametrize("local", [{}, {"gpu": "error loading fact"}, {"gpu": {}}, []])
def test_without_facts_of_the_gpus(local):
    assert fleet.facts_of({"ansible_distribution": "Debian", "ansible_local": local}) is None


HANDED = {"address": "0000:3b:00.0", "kind": "gpu", "model": "L4", "architecture": "ada", "driver": "vfio-pci"}


def test_a_gpu_that_is_handed_through_is_in_no_group():
    told = facts(T4)
    before = fleet.groups(told)
    told["pci"].append(HANDED)
    assert fleet.groups(told) == before
    assert "gpu_unhealthy" not in before


@pytest.mark.parametrize("present", [True, False])
def test_a_host_that_hands_all_its_gpus_through_is_one_without(present):
    assert fleet.groups({"schema": 1, "present": present, "pci": [HANDED], "devices": []}) == ["gpu_absent"]


def test_what_an_agent_left_behind_tells_of_nothing_that_it_is_well():
    gpus = [{"uuid": "GPU-1", "verdict": "ok"}, {"uuid": "GPU-2", "verdict": "fatal"}]
    local = {"present": True, "stale": True, "devices": [], "health": {"verdict": "ok", "devices": gpus}}
    health = fleet.facts_of({"ansible_local": {"gpu": local}})["health"]
    assert (health["verdict"], [row["verdict"] for row in health["devices"]]) == ("unknown", ["unknown", "fatal"])
    for broken in (None, [], {"verdict": "ok", "devices": "x"}, {"devices": [1]}):
        fleet.facts_of({"ansible_local": {"gpu": {**local, "health": broken}}})
