# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts, both queries, device nodes and the CDI specification against real NVML, CUDA and kernel files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import runtime as verify_runtime

SOURCE = Path(__file__).resolve().parents[2] / "roles" / "gpu_verify" / "files" / "device_query.cu"


def has_mig(facts):
    return any((card.get("mig") or {}).get("enabled") for card in facts["devices"])


@pytest.fixture(scope="session")
def asked(module):
    return module("gpu_query")


def test_facts_agree_with_nvidia_smi(facts, smi):
    assert facts["present"] is True
    assert facts["reason"] is None
    assert facts["driver"]["loaded"]
    assert facts["driver"]["nvml_error"] is None
    assert [(card["index"], card["uuid"]) for card in facts["devices"]] == [
        (int(row["index"]), row["uuid"]) for row in smi
    ]
    for card, row in zip(facts["devices"], smi, strict=True):
        assert card["pci_address"] == cuda_driver.normalise_pci_address(row["pci.bus_id"])
        assert card["name"] == row["name"]
        assert card["memory_mib"] == int(row["memory.total"])


def test_facts_name_the_card(facts):
    for card in facts["devices"]:
        assert card["architecture"]
        assert re.fullmatch(r"\d+\.\d+", card["compute_capability"])
        assert card["pci_address"] in {row["address"] for row in facts["pci"]}


def test_every_card_passes_the_query(asked, facts):
    assert asked["query"]["error"] is None
    assert [card["error"] for card in asked["query"]["devices"]] == [None] * asked["query"]["count"]
    assert asked["query"]["ok"] is True
    for card in asked["query"]["devices"]:
        assert card["kernel"]["wrong"] == 0
        # The slowest link that any card of these has is PCIe 2.0 x4; the memory of none is slower than that.
        assert card["copy"]["host_to_device_gb_s"] > 0.5
        assert card["copy"]["device_to_host_gb_s"] > 0.5
        assert card["copy"]["device_to_device_gb_s"] > card["copy"]["host_to_device_gb_s"] / 4


def test_query_and_facts_are_about_the_same_cards(asked, facts):
    if has_mig(facts):
        pytest.skip("MIG is on: CUDA shows one partition only")
    by_uuid = {card["uuid"]: card for card in facts["devices"]}
    assert {card["uuid"] for card in asked["query"]["devices"]} == set(by_uuid)
    for card in asked["query"]["devices"]:
        fact = by_uuid[card["uuid"]]
        assert card["pci_address"] == fact["pci_address"]
        assert card["compute_capability"] == fact["compute_capability"]
        assert card["ecc"] == bool((fact["ecc"] or {}).get("enabled"))


def test_the_counts_agree(asked, facts):
    counts, causes = verify_query.compare_counts(asked["state"], facts["devices"], asked["query"])
    assert causes == []
    assert counts["pci"] == counts["nvml"] == len(facts["devices"])


def test_the_cuda_runtime_sees_and_computes_the_same(asked, tmp_path):
    nvcc = verify_runtime.find_nvcc()
    if nvcc is None:
        pytest.skip("no CUDA toolkit here")
    answer = verify_runtime.run_all(
        SOURCE.read_text(),
        cuda_driver.Options(),
        asked["state"],
        [card["compute_capability"] for card in asked["query"]["devices"]],
        execute=True,
        cache=str(tmp_path / "cache"),
    )
    assert answer["causes"] == []
    keys = ("uuid", "pci_address", "name", "compute_capability", "multiprocessors", "memory_mib", "ecc", "l2_cache_kib")
    seen = [[{key: card[key] for key in keys} for card in one["devices"]] for one in (answer["query"], asked["query"])]
    assert seen[0] == seen[1]


def test_device_nodes_have_the_numbers_that_the_driver_asks_for():
    wrong = [
        problem for problem in device_nodes.compare(device_nodes.expected_nodes()) if problem.kind == "wrong_number"
    ]
    assert wrong == []
    paths = {node.path for node in device_nodes.expected_nodes()}
    assert {str(path) for path in Path("/dev").glob("nvidia[0-9]*")} <= paths


def test_the_cdi_specification_of_this_host(facts):
    try:
        found = cdi.gather(given=facts["devices"])
    except cdi.CannotTell as error:
        pytest.skip(f"this host cannot have one: {error}")
    spec = cdi.build(found)
    assert cdi.validate(spec) == []
    names = [device["name"] for device in spec["devices"]]
    assert {card["uuid"] for card in facts["devices"]} <= set(names)
    targets = {Path(mount["containerPath"]).name for mount in spec["containerEdits"]["mounts"]}
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"} <= targets
    for mount in spec["containerEdits"]["mounts"]:
        assert Path(mount["hostPath"]).exists(), mount
