# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host as a whole."""

from __future__ import annotations

import json
import shutil

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdicts as gpu_verdicts

KERNEL = "6.12.48+deb13-amd64"


def device(index: int) -> dict:
    return {
        "index": index,
        "uuid": f"GPU-5c3a1f2e-8f6b-4c1d-9e2a-00000000000{index}",
        "minor": index,
        "pci_address": f"0000:{index:02x}:00.0",
        "name": "NVIDIA A100-SXM4-40GB",
        "slug": "a100-sxm4-40gb",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "memory_mib": 40960,
        "ecc": {"enabled": True, "pending": True},
        "mig": {"enabled": False, "pending": False},
        "numa_node": index // 4,
        "cpus": "0-31,64-95",
        "pcie": {"generation": 4, "generation_max": 4, "width": 16, "width_max": 16},
        "nvlinks": 12,
        "not_applicable": [],
    }


def answers(devices=(), error=None, cuda="12.4"):
    devices = list(devices)
    count = len(devices)
    topology = {
        "scores": [[None if one == other else 1250 for one in range(count)] for other in range(count)],
        "kinds": {"1250": {"nvlinks": 12, "pcie": "pix"}},
    }

    def probe(source, deadline_s, root, bus, subset):
        return {"error": error, "cuda": cuda, "devices": devices, "topology": topology}

    return probe


def never(source, deadline_s, root, bus, subset):
    raise AssertionError("NVML was asked")


def test_a_bare_host(fake_host):
    assert gpu_facts.gather(root=fake_host.path, probe=never) == {
        "schema": 1,
        "present": False,
        "reason": "no NVIDIA GPU on the PCI bus",
        "pci": [],
        "driver": {
            "installed": None,
            "loaded": None,
            "nouveau_loaded": False,
            "branch": None,
            "flavour": None,
            "cuda": None,
            "nvml_error": None,
        },
        "devices": [],
        "topology": None,
    }


def test_only_switches_are_no_gpus(fake_host):
    fake_host.pci("0000:c4:00.0", "22a3", pci_class="068000")
    facts = gpu_facts.gather(root=fake_host.path, probe=never)
    assert facts["present"] is False
    assert len(facts["pci"]) == 1


def test_a_bus_that_cannot_be_read_leaves_it_open(fake_host):
    shutil.rmtree(fake_host.root / "sys")
    facts = gpu_facts.gather(root=fake_host.path, probe=answers([device(0)]))
    assert facts["present"] is None
    assert facts["reason"] == "/sys/bus/pci/devices cannot be read: No such file or directory"
    assert len(facts["devices"]) == 1


@pytest.mark.parametrize(
    ("subset", "keys"),
    [
        (["pci"], {"pci"}),
        (["driver"], {"driver"}),
        (["devices"], {"devices"}),
        (["topology"], {"devices", "topology"}),
        (["details"], {"devices"}),
        (["pci", "driver"], {"pci", "driver"}),
        (["health"], {"health"}),
        (gpu_facts.SUBSETS, {"pci", "driver", "devices", "topology", "health"}),
    ],
)
def test_only_what_was_asked_for(fake_host, subset, keys):
    fake_host.pci("0000:3b:00.0", "20b0")
    probe = answers([device(0)]) if keys & {"devices", "health"} else never
    facts = gpu_facts.gather(subset, root=fake_host.path, probe=probe, verdicts=gpu_verdicts)
    assert set(facts) == {"schema", "present", "reason"} | keys
    assert facts["present"] is True


def test_the_driver_answers_for_cuda_before_the_table_does(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0", driver="nvidia")
    fake_host.loaded("550.163.01")
    assert gpu_facts.gather(root=fake_host.path, probe=answers(cuda="12.5"))["driver"]["cuda"] == "12.5"
    assert gpu_facts.gather(root=fake_host.path, probe=answers(cuda=None))["driver"]["cuda"] == "12.4"


def test_why_the_gpus_cannot_be_asked(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0")
    error = {"code": 9, "name": "driver_not_loaded", "text": "Driver Not Loaded", "remedy": "load it"}
    facts = gpu_facts.gather(root=fake_host.path, probe=answers(error=error, cuda=None))
    assert facts["present"] is True
    assert facts["reason"] == "Driver Not Loaded: load it"
    assert facts["driver"]["nvml_error"] == error


def test_the_facts_of_eight_gpus_stay_small(fake_host):
    for index in range(8):
        fake_host.pci(f"0000:{index:02x}:00.0", "20b0", driver="nvidia")
    fake_host.loaded("550.163.01")
    facts = gpu_facts.gather(root=fake_host.path, probe=answers(device(index) for index in range(8)))
    assert len(json.dumps(facts, separators=(",", ":"))) < 5500


def test_a_lost_gpu_is_the_reason(fake_host):
    for index in range(3):
        fake_host.pci(f"0000:0{index}:00.0", "20b0", driver="nvidia")
    error = {"code": 15, "name": "gpu_is_lost", "text": "GPU is lost", "remedy": "reboot"}
    devices = [device(0), {"index": 1, "error": error, "pci_address": "0000:01:00.0"}, device(2)]
    facts = gpu_facts.gather(root=fake_host.path, probe=answers(devices))
    assert facts["reason"] == "NVML cannot reach 0000:01:00.0: GPU is lost: reboot"


def test_a_question_that_failed_does_not_make_a_gpu_unreachable(fake_host):
    fake_host.pci("0000:00:00.0", "20b0", driver="nvidia")
    error = {"code": 999, "name": "unknown", "text": "Unknown Error", "remedy": "look into dmesg"}
    facts = gpu_facts.gather(root=fake_host.path, probe=answers([{**device(0), "error": error}]))
    assert facts["reason"] is None


def test_a_gpu_that_nvml_does_not_count(fake_host):
    for index in range(2):
        fake_host.pci(f"0000:0{index}:00.0", "20b0", driver="nvidia")
    facts = gpu_facts.gather(root=fake_host.path, probe=answers([device(0)]))
    assert facts["reason"] == "NVML cannot reach 0000:01:00.0"


def test_a_gpu_that_is_handed_through_is_told_and_not_missed(fake_host):
    fake_host.pci("0000:00:00.0", "20b0", driver="nvidia")
    fake_host.pci("0000:01:00.0", "20b0", driver="vfio-pci")
    facts = gpu_facts.gather(root=fake_host.path, kernel=KERNEL, probe=answers([device(0)]))
    assert (facts["present"], facts["reason"]) == (True, None)
    assert [(row["address"], row["driver"]) for row in facts["pci"]] == [
        ("0000:00:00.0", "nvidia"),
        ("0000:01:00.0", "vfio-pci"),
    ]


def test_a_host_that_hands_all_its_gpus_through_has_none_and_says_why(fake_host):
    fake_host.pci("0000:01:00.0", "20b0", driver="vfio-pci")
    facts = gpu_facts.gather(root=fake_host.path, kernel=KERNEL, probe=never)
    assert facts["present"] is False
    assert facts["reason"] == (
        "no NVIDIA GPU for this host: 0000:01:00.0 (A100 SXM4 40GB) is bound to vfio-pci, so it is another's, such as "
        "a virtual machine's"
    )
