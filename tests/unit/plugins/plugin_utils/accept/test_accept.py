# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement of an acceptance: what fails is named, and nothing else is."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import gpu, node
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    FAIL,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    PASS,
    odd,
    outliers,
)

MODEL = "NVIDIA A100-SXM4-40GB"
PCIE = {"generation": 4, "generation_max": 4, "width": 16, "width_max": 16}


def facts(*uuids):
    return {
        "present": True,
        "driver": {"loaded": "550.163.01", "flavour": "open"},
        "health": {"verdict": "ok", "reasons": [], "devices": []},
        "devices": [
            {
                "index": index,
                "uuid": uuid,
                "name": MODEL,
                "ecc": {"enabled": True},
                "mig": {"enabled": False},
                "pcie": dict(PCIE),
                "numa_node": 0,
                "nvlinks": 12,
                "process_count": 0,
            }
            for index, uuid in enumerate(uuids)
        ],
    }


HOST = {
    "schema": 1,
    "versions": {"kernel": "6.12.1", "os": "Debian 13", "bios": "1.2", "board": "X"},
    "command_line": ["iommu=pt"],
    "numa_nodes": 2,
    "iommu_groups": 40,
    "iommu_types": {"groups": {"identity": 40}, "displays": {}},
    "acs_redirects": [],
    "hugepages": {"reserved": 0, "transparent": "madvise"},
    "limits": {"slurmd": {"locked_bytes": None, "open_files": 65536}},
    "time_synchronised": True,
    "interfaces": [{"name": "eth0", "state": "up", "speed_mb_s": 25000, "errors": {"rx_errors": 0}}],
    "infiniband": [{"name": "mlx5_0/1", "state": "4: ACTIVE", "rate": "200 Gb/sec", "errors": {}}],
    "memory_errors": {"corrected": 2, "uncorrected": 0},
    "libraries": ["NCCL", "MPI", "modules"],
    "identities": {"sources": ["files", "sss"], "ids": {"alice": "2001:2001"}},
    "dmabuf": {"built": True, "peermem": False},
    "disks": [{"name": "sda", "model": "disk", "passed": True}],
}


def device(index, uuid):
    rate = {"tflops": 16.0, "launches": 9, "wrong": 0, "multiprocessors": []}
    return {
        "index": index,
        "uuid": uuid,
        "name": MODEL,
        "compute_capability": "8.0",
        "error": None,
        "tested_mib": 40000,
        "own_flip": {"byte": 77, "bit": 3, "found": True, "others": 0},
        "fp32": dict(rate),
        "fp64": {**rate, "tflops": 8.0},
        "bf16": {**rate, "tflops": 250.0},
        "memory": {"gb_s": 1300.0, "launches": 9, "wrong": 0},
        "copies": {
            "wrong": 0,
            **{f"{way}_gb_s": 26.0 if "pinned" in way else 16.0 for way in gpu.COPIES},
        },
        "readings": {"most": {"power_w": 390.0}, "held_back": [], "grown": {}, "pcie": PCIE},
    }


@pytest.fixture
def fleet():
    """Four sound hosts with two GPUs each."""
    hosts = {}
    for name in ("n1", "n2", "n3", "n4"):
        uuids = [f"GPU-{name}-{index}" for index in range(2)]
        hosts[name] = {
            "gpu": facts(*uuids),
            "accept": copy.deepcopy(HOST),
            "load": {
                "error": None,
                "devices": [device(index, uuid) for index, uuid in enumerate(uuids)],
                "pairs": [
                    {"first": uuids[0], "second": uuids[1], "peers": True, "wrong": 0, "error": None}
                    | {"there_gb_s": 260.0, "back_gb_s": 260.0}
                ],
            },
        }
    return hosts


def failures(items):
    return {(item.host, item.subject, item.id) for item in items if item.outcome == FAIL}


def outcome(items, id, host="n2"):
    return {item.outcome for item in items if item.id == id and item.host == host}


def test_a_sound_fleet_passes_every_item(fleet):
    items = node.items(fleet) + gpu.items(fleet)
    assert failures(items) == set()
    assert {item.outcome for item in items} == {PASS}
    assert all(item.remedy == "" for item in items)
    assert {item.host for item in items} == set(fleet)


NODE_FAULTS = {
    "another driver": (("gpu", "driver", "loaded"), "535.247.01", "", "node.driver"),
    "another kernel": (("accept", "versions", "kernel"), "6.1.0", "", "node.kernel"),
    "another BIOS": (("accept", "versions", "bios"), "0.9", "", "node.bios"),
    "a narrow link": (("gpu", "devices", 1, "pcie", "width"), 8, "GPU 1", "node.pcie_width"),
    "no error correction": (("gpu", "devices", 0, "ecc", "enabled"), False, "GPU 0", "node.ecc"),
    "MIG on one GPU": (("gpu", "devices", 0, "mig", "enabled"), True, "", "node.mig"),
    "no NUMA node": (("gpu", "devices", 0, "numa_node"), -1, "", "node.numa"),
    "a clock on its own": (("accept", "time_synchronised"), False, "", "node.time"),
    "ACS": (("accept", "acs_redirects"), ["0000:3a:00.0"], "", "node.acs"),
    "a translating IOMMU": (("accept", "iommu_types", "groups"), {"DMA-FQ": 40}, "", "node.iommu"),
    "a low limit": (("accept", "limits", "slurmd", "locked_bytes"), 65536, "slurmd", "node.limits"),
    "a bad disk": (("accept", "disks", 0, "passed"), False, "sda", "node.disk"),
    "a bad cable": (("accept", "interfaces", 0, "errors", "rx_errors"), 12, "eth0", "node.nic"),
    "errors of memory": (("accept", "memory_errors", "uncorrected"), 1, "", "node.memory"),
    "memory that is about to fail": (("accept", "memory_errors", "corrected"), 5000, "", "node.memory"),
    "no NCCL": (("accept", "libraries"), ["MPI", "modules"], "", "node.libraries"),
    "another uid": (("accept", "identities", "ids", "alice"), "2002:2002", "alice", "node.users"),
    "an unknown user": (("accept", "identities", "ids", "alice"), None, "", "node.identity"),
    "no way for RDMA": (("accept", "dmabuf", "built"), False, "", "node.gpudirect"),
    "no huge pages": (("accept", "hugepages", "transparent"), "never", "", "node.hugepages"),
}


def put(row, path, value):
    for part in path[:-1]:
        row = row[part]
    row[path[-1]] = value


@pytest.mark.parametrize("fault", NODE_FAULTS)
def test_a_fault_of_a_node_is_named_and_nothing_else(fleet, fault):
    path, value, subject, id = NODE_FAULTS[fault]
    fleet = copy.deepcopy(fleet)
    put(fleet["n2"], path, value)
    found = node.items(fleet)
    assert failures(found) == {("n2", subject, id)}
    (item,) = [item for item in found if item.outcome == FAIL]
    assert item.remedy
    assert item.evidence


@pytest.mark.parametrize(("passed", "outcomes"), [(None, {NOT_TESTABLE}), (True, {PASS}), (False, {FAIL})])
def test_what_smartctl_says_of_a_disk_is_in_the_report(fleet, passed, outcomes):
    fleet["n2"]["accept"]["disks"] = [{"name": "sda", "passed": passed, "said": "/dev/sda: Permission\x1b denied"}]
    (item,) = [one for one in node.items(fleet) if (one.id, one.host) == ("node.disk", "n2")]
    assert {item.outcome} == outcomes
    assert item.evidence.endswith(": /dev/sda: Permission\ufffd denied")


def test_a_missing_gpu_and_a_degraded_one_are_named(fleet):
    fleet["n2"]["gpu"]["devices"].pop()
    fleet["n3"]["gpu"]["health"] = {
        "verdict": "degraded",
        "reasons": [],
        "devices": [{"reasons": [{"text": "a link is down", "remedy": "reseat it"}]}],
    }
    assert failures(node.items(fleet)) == {("n2", "", "node.gpus"), ("n3", "", "node.health")}


def test_a_gpu_that_is_five_percent_slow_is_named(fleet):
    fleet["n3"]["load"]["devices"][1]["bf16"]["tflops"] *= 0.95
    found = gpu.items(fleet)
    assert failures(found) == {("n3", "GPU 1", "gpu.fleet.bf16")}
    (item,) = [item for item in found if item.outcome == FAIL]
    assert "95.0%" in item.evidence


def test_noise_is_no_finding(fleet):
    for number, row in enumerate(row for host in fleet.values() for row in host["load"]["devices"]):
        row["fp32"]["tflops"] *= 1 + 0.02 * (-1) ** number
    assert failures(gpu.items(fleet)) == set()


def test_of_two_gpus_nobody_can_say_which_is_slow(fleet):
    fleet["n2"]["load"]["devices"][1]["fp32"]["tflops"] *= 0.9
    found = gpu.items({"n2": fleet["n2"]})
    assert failures(found) == set()
    assert outcome(found, "gpu.fleet.fp32") == {NOT_APPLICABLE}
    assert all("differ by 10.0%" in item.evidence for item in found if item.id == "gpu.fleet.fp32")


def test_a_gpu_far_below_its_data_sheet_fails_alone(fleet):
    fleet["n2"]["load"]["devices"][0]["memory"]["gb_s"] = 500
    assert ("n2", "GPU 0", "gpu.nominal.memory") in failures(gpu.items({"n2": fleet["n2"]}))


LOAD_FAULTS = {
    "a flipped bit": (("memory", "wrong"), 2, "gpu.memory"),
    "a blind test": (("own_flip", "found"), False, "gpu.memory_test"),
    "wrong arithmetic": (("fp64", "wrong"), 1, "gpu.fp64"),
    "a wrong copy": (("copies", "wrong"), 1, "gpu.copies"),
    "heat": (("readings", "held_back"), ["hardware thermal slowdown"], "gpu.throttle"),
    "errors under load": (("readings", "grown"), {"pcie_replays": [0, 9]}, "gpu.errors"),
    "a link that does not wake up": (("readings", "pcie"), {**PCIE, "generation": 1}, "gpu.pcie_load"),
    "a hang": (("error",), {"call": "memory", "name": "TIMEOUT", "text": "no answer"}, "gpu.runs"),
}


@pytest.mark.parametrize("fault", LOAD_FAULTS)
def test_a_fault_under_load_is_named_and_nothing_else(fleet, fault):
    path, value, id = LOAD_FAULTS[fault]
    put(fleet["n2"]["load"]["devices"][1], path, value)
    assert failures(gpu.items(fleet)) == {("n2", "GPU 1", id)}


def test_a_pair_that_goes_through_the_host_despite_its_links(fleet):
    pair = fleet["n2"]["load"]["pairs"][0]
    pair.update(peers=False, there_gb_s=10.0, back_gb_s=10.0)
    assert failures(gpu.items(fleet)) == {("n2", "GPU 0 and GPU 1", "gpu.peer")}


def test_memory_that_is_wrong_is_not_blamed_on_the_way_to_it(fleet):
    fleet["n2"]["load"]["pairs"][0]["wrong"] = 2
    assert failures(gpu.items(fleet)) == {("n2", "GPU 0 and GPU 1", "gpu.peer")}
    fleet["n2"]["load"]["devices"][1]["memory"]["wrong"] = 8
    assert failures(gpu.items(fleet)) == {("n2", "GPU 1", "gpu.memory")}


def test_what_cannot_be_tested_is_said_and_does_not_fail(fleet):
    fleet["n1"]["gpu"]["devices"][0]["process_count"] = 3
    fleet["n1"]["load"]["devices"].pop(0)
    fleet["n1"]["load"]["pairs"] = []
    fleet["n2"]["gpu"]["devices"][0]["mig"]["enabled"] = True
    fleet["n3"] = {}
    fleet["n4"]["gpu"] = {"present": False}
    found = gpu.items(fleet)
    assert failures(found) == set()
    assert outcome(found, "gpu.free", "n1") == {NOT_TESTABLE}
    assert outcome(found, "gpu.present", "n2") == outcome(found, "gpu.present", "n3") == {NOT_TESTABLE}
    assert outcome(found, "gpu.present", "n4") == {NOT_APPLICABLE}
    assert outcome(node.items(fleet), "node.facts", "n3") == {NOT_TESTABLE}


def test_a_host_that_lies_breaks_nothing(fleet):
    for nonsense in (None, 7, "x", [], [7], {"devices": 7}, {"devices": ["x", {"fp32": 3, "name": []}]}):
        fleet["n2"] = {"gpu": nonsense, "accept": nonsense, "load": nonsense}
        found = node.items(fleet) + gpu.items(fleet)
        assert {item.host for item in found if item.outcome == FAIL} <= {"n2"}


def test_who_is_the_odd_one():
    assert odd({"a": 1, "b": 1, "c": 2}) == (1, ["c"])
    assert odd({"a": 1, "b": 2}) == (None, ["a", "b"])
    assert odd({"a": 1, "b": 1}) == (1, [])


def test_outliers_are_the_slow_ones_only():
    values = {"a": 100.0, "b": 101.0, "c": 99.0, "d": 94.0, "e": 200.0}
    assert [row.key for row in outliers(values, 0.05)] == ["d"]
    assert outliers({"a": 100.0, "b": 50.0}, 0.05) == []
    assert outliers({"a": 0.0, "b": 0.0, "c": 0.0}, 0.05) == []


def test_a_gpu_that_a_job_of_slurm_did_not_get_is_not_testable(fleet):
    for index, row in enumerate(fleet["n2"]["gpu"]["devices"]):
        row["minor"] = index
    fleet["n2"]["held"] = {"job": 7, "minors": [1], "why": ""}
    fleet["n2"]["load"]["devices"].pop(0)
    fleet["n2"]["load"]["pairs"] = []
    found = gpu.items(fleet)
    assert failures(found) == set()
    (item,) = [item for item in found if item.id == "gpu.free"]
    assert (item.subject, item.evidence) == ("GPU 0", "another job of Slurm has the GPU")
    fleet["n3"].update(load=None, held={"job": None, "minors": [], "why": "other jobs have all GPUs of the node"})
    (item,) = [item for item in gpu.items(fleet) if item.host == "n3" and item.id == "gpu.present"]
    assert (item.outcome, item.evidence) == (NOT_TESTABLE, "other jobs have all GPUs of the node")
