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
    return any((gpu.get("mig") or {}).get("enabled") for gpu in facts["devices"])


@pytest.fixture(scope="session")
def asked(module):
    return module("gpu_query")


def test_facts_agree_with_nvidia_smi(facts, smi):
    assert facts["present"] is True
    assert facts["reason"] is None
    assert facts["driver"]["loaded"]
    assert facts["driver"]["nvml_error"] is None
    assert [(gpu["index"], gpu["uuid"]) for gpu in facts["devices"]] == [
        (int(row["index"]), row["uuid"]) for row in smi
    ]
    for gpu, row in zip(facts["devices"], smi, strict=True):
        assert gpu["pci_address"] == cuda_driver.normalise_pci_address(row["pci.bus_id"])
        assert gpu["name"] == row["name"]
        assert gpu["memory_mib"] == int(row["memory.total"])


def test_facts_name_the_gpu(facts):
    for gpu in facts["devices"]:
        assert gpu["architecture"]
        assert re.fullmatch(r"\d+\.\d+", gpu["compute_capability"])
        assert gpu["pci_address"] in {row["address"] for row in facts["pci"]}


def test_every_gpu_passes_the_query(asked, facts):
    assert asked["query"]["error"] is None
    assert [gpu["error"] for gpu in asked["query"]["devices"]] == [None] * asked["query"]["count"]
    assert asked["query"]["ok"] is True
    for gpu in asked["query"]["devices"]:
        assert gpu["kernel"]["wrong"] == 0
        # The slowest link that any GPU of these has is PCIe 2.0 x4; the memory of none is slower than that.
        assert gpu["copy"]["host_to_device_gb_s"] > 0.5
        assert gpu["copy"]["device_to_host_gb_s"] > 0.5
        assert gpu["copy"]["device_to_device_gb_s"] > gpu["copy"]["host_to_device_gb_s"] / 4


def test_query_and_facts_are_about_the_same_gpus(asked, facts):
    if has_mig(facts):
        pytest.skip("MIG is on: CUDA shows one partition only")
    by_uuid = {gpu["uuid"]: gpu for gpu in facts["devices"]}
    assert {gpu["uuid"] for gpu in asked["query"]["devices"]} == set(by_uuid)
    for gpu in asked["query"]["devices"]:
        fact = by_uuid[gpu["uuid"]]
        assert gpu["pci_address"] == fact["pci_address"]
        assert gpu["compute_capability"] == fact["compute_capability"]
        assert gpu["ecc"] == bool((fact["ecc"] or {}).get("enabled"))


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
        [gpu["compute_capability"] for gpu in asked["query"]["devices"]],
        execute=True,
        cache=str(tmp_path / "cache"),
    )
    assert answer["causes"] == []
    keys = ("uuid", "pci_address", "name", "compute_capability", "multiprocessors", "memory_mib", "ecc", "l2_cache_kib")
    seen = [[{key: gpu[key] for key in keys} for gpu in one["devices"]] for one in (answer["query"], asked["query"])]
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
    assert {gpu["uuid"] for gpu in facts["devices"]} <= set(names)
    targets = {Path(mount["containerPath"]).name for mount in spec["containerEdits"]["mounts"]}
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"} <= targets
    for mount in spec["containerEdits"]["mounts"]:
        assert Path(mount["hostPath"]).exists(), mount
