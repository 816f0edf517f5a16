# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everybody counts the same GPUs of one made-up host: who asks does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish as agent_publish
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query
from ansible_collections.baremetal.gpu.plugins.plugin_utils import allocatable
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from gpuops.init import discover
from tests.unit.plugins.driver_host import driver_loaded

OURS = ["0000:3b:00.0", "0000:af:00.0"]


@pytest.fixture
def host(fake_host: Any) -> Any:
    """Two A100 with their driver, and whatever else of NVIDIA's there can be that is not the host's GPU."""
    driver_loaded(fake_host)
    fake_host.pci("0000:86:00.0", "26b9", driver="vfio-pci")
    fake_host.virtual_function("0000:3b:00.4", "0000:3b:00.0", "20b0")
    fake_host.virtual_function("0000:3b:00.5", "0000:3b:00.0", "20b0", driver="vfio-pci")
    fake_host.pci("0000:00:0d.0", "03d0", pci_class="030000")
    fake_host.pci("0000:00:08.0", "0373", pci_class="068000")
    fake_host.pci("0000:3b:00.1", "10f0", pci_class="040300")
    fake_host.switch_bridge("0000:05:00.0")
    return fake_host


def facts_of(host: Any) -> dict[str, Any]:
    def probe(*_args: Any) -> dict[str, Any]:
        return {"error": None, "cuda": "12.4", "devices": [{"index": 0, "pci_address": OURS[0]}], "topology": None}

    return gpu_facts.gather(root=host.path, kernel="6.12.1", probe=probe)


def test_facts(host: Any) -> None:
    facts = facts_of(host)
    # The L40S and the old chip are there, and only the second A100 is missed.
    assert [row["address"] for row in facts["pci"]] == ["0000:00:0d.0", "0000:3b:00.0", "0000:86:00.0", "0000:af:00.0"]
    assert facts["reason"] == "NVML cannot reach 0000:af:00.0"


def test_groups_of_the_inventory(host: Any) -> None:
    found = fleet.groups({**facts_of(host), "devices": []})
    assert [name for name in found if name.startswith(("gpu_count", "gpu_model"))] == [
        "gpu_model_a100_sxm4_40gb",
        "gpu_count_2",
    ]
    assert "gpu_arch_ada" not in found


def test_verification(host: Any) -> None:
    state = verify_query.host_state(host.path, "6.12.1")
    assert [gpu["address"] for gpu in state["gpus"]] == OURS
    assert state["nvswitches"] == 0


def test_device_nodes(host: Any) -> None:
    assert sorted(device_nodes.gpu_minors(host.path)) == OURS


def test_placement_and_the_first_inventory_file(host: Any) -> None:
    facts = facts_of(host)
    assert allocatable.feed(facts)["attributes"]["gpu_count_class"] == 2
    assert len(discover.read({"gpu": facts}).gpus) == 2


def test_health_and_what_the_agent_publishes(host: Any) -> None:
    look = snapshot.without_nvml(None, host.path)
    assert look["fabric_manager"] == {"needed": False, "running": None}
    report, _history = health.judge(look, [], {}, {"expected": {"gpus": 2}})
    assert report["checks"]["gpu_count"] == "ok"
    assert sorted(row["pci_address"] for row in report["devices"]) == OURS
    report, _history = health.judge(look, [], {}, {"expected": {"gpus": 3}})
    (reason,) = [row for row in report["reasons"] if row["code"] == "gpu_count"]
    assert "0000:86:00.0 (L40S) is bound to vfio-pci" in reason["text"]
    published = agent_publish.facts({"snapshot": look, "health": report})
    assert published["present"] is True


def test_switches_behind_bridges_need_fabric_manager(fake_host: Any) -> None:
    fake_host.pci("0000:1b:00.0", "2901", driver="nvidia")
    fake_host.switch_bridge("0000:05:00.0")
    look = snapshot.without_nvml(None, fake_host.path)
    assert look["fabric_manager"] == {"needed": True, "running": False}
    report = health.judge_once({**look, "uptime": 3600.0}, [])
    assert "fabric_manager_down" in [row["code"] for row in report["reasons"]]


def test_a_host_without_one_of_its_own_is_not_asked_through_nvml(fake_host: Any) -> None:
    fake_host.pci("0000:86:00.0", "26b9", driver="vfio-pci")
    look = health_probe.look(None, 0.0, fake_host.path)
    assert look["driver"]["nvml_error"] is None
    report, _history = health.judge(look, [], {})
    assert report["devices"] == []
    assert agent_publish.facts({"snapshot": look, "health": report})["present"] is False
