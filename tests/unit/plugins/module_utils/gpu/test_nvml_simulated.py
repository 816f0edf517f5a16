# SPDX-License-Identifier: GPL-3.0-or-later
"""The real pynvml on the simulated NVML library: scenarios of GPUs, and of what goes wrong with them."""

from __future__ import annotations

import time

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding

PROBE = """
import json, os, pathlib, sys
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
root = os.environ["SIMULATED_ROOT"]
source = pathlib.Path(root, "binding.py").read_text()
print(json.dumps(gpu_facts.probe(source, float(sys.argv[1]), root, pci.scan(root), (*gpu_facts.HARDWARE, "details"))))
"""


@pytest.fixture
def probe(simulated_host):
    def run(name, deadline_s=20.0, **changes):
        simulated_host.take(name, **changes)
        simulated_host.write("binding.py", nvml.unpack(nvml_binding.packed_source()))
        return simulated_host.python(PROBE, str(deadline_s))

    return run


def test_eight_h100(probe):
    answer = probe("h100-sxm-x8")
    assert answer["error"] is None
    assert answer["cuda"] == "12.4"
    assert [gpu["index"] for gpu in answer["devices"]] == list(range(8))
    assert len({gpu["uuid"] for gpu in answer["devices"]}) == 8
    first = answer["devices"][0]
    assert (first["slug"], first["architecture"], first["compute_capability"]) == ("h100-80gb-hbm3", "hopper", "9.0")
    assert (first["memory_mib"], first["nvlinks"]) == (81559, 18)
    assert first["pcie"] == {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16}
    assert first["not_applicable"] == []


def test_a_k20c_says_what_it_does_not_have(probe):
    (gpu,) = probe("k20c-x1")["devices"]
    assert gpu["architecture"] == "kepler"
    assert (gpu["mig"], gpu["nvlinks"]) == (None, None)
    assert gpu["not_applicable"] == ["mig", "nvlinks"]
    assert "error" not in gpu


def test_a_geforce_beside_an_a100(probe):
    geforce, tesla = probe("mixed")["devices"]
    assert geforce["not_applicable"] == ["ecc", "mig", "nvlinks", "serial"]
    assert tesla["ecc"]["enabled"] is True


def test_mig_on_one_gpu(probe):
    modes = [gpu["mig"]["enabled"] for gpu in probe("a100-sxm4-40gb-x8-mig")["devices"]]
    assert modes[0] is True
    assert modes[7] is False


def test_one_of_eight_is_lost(probe):
    answer = probe("lost-one-of-eight")
    assert answer["error"] is None
    assert {gpu["index"]: gpu["error"]["name"] for gpu in answer["devices"] if "error" in gpu} == {5: "gpu_is_lost"}


def test_library_and_module_of_different_versions(probe):
    error = probe("driver-library-mismatch")["error"]
    assert (error["code"], error["name"]) == (18, "lib_rm_version_mismatch")


def test_no_module_is_loaded(probe):
    error = probe("a100-sxm4-40gb-x2", kernel="stand-in")["error"]
    assert (error["code"], error["name"]) == (9, "driver_not_loaded")


def test_a_gpu_that_hangs_is_named(probe):
    start = time.monotonic()
    faults = [{"call": "nvmlDeviceGetCurrPcieLinkWidth", "device": 1, "hang": True}]
    answer = probe("a100-sxm4-40gb-x2", deadline_s=3, faults=faults)
    assert (answer["error"]["name"], answer["error"]["device"]) == ("timeout", 1)
    assert answer["error"]["text"] == "NVML did not answer within 3 s; asked for pcie of GPU 1"
    assert time.monotonic() - start < 30


def test_a_library_that_hangs_before_any_gpu_is_asked(probe):
    answer = probe("t4-x1", deadline_s=1, faults=[{"call": "nvmlInit*", "hang": True}])
    assert answer["error"]["text"] == "NVML did not answer within 1 s"
    assert "device" not in answer["error"]


def test_a_library_that_crashes(probe):
    answer = probe("t4-x1", faults=[{"call": "nvmlDeviceGetName", "crash": True}])
    assert answer["error"]["name"] == "crashed"
    assert answer["error"]["text"] == "the process that asked NVML ended by signal 6; asked for name of GPU 0"


@pytest.mark.parametrize(("code", "name"), [(16, "reset_required"), (999, "unknown")])
def test_a_question_that_fails_on_one_gpu(probe, code, name):
    first, second = probe(
        "a100-sxm4-40gb-x2", faults=[{"call": "nvmlDeviceGetMemoryInfo", "device": 1, "error": code}]
    )["devices"]
    assert "error" not in first
    assert first["memory_mib"] == 40960
    assert second["error"]["name"] == name
    assert second.get("memory_mib") is None


def test_a_mixed_and_a_lost_gpu_leave_the_facts_of_the_others(probe, simulated_host):
    answer = probe("lost-one-of-eight")
    lost = answer["devices"][5]
    gpu = simulated_host.scenario["devices"][5]
    assert {key: lost[key] for key in ("index", "uuid", "minor", "pci_address")} == {
        "index": 5,
        "uuid": gpu["uuid"],
        "minor": 5,
        "pci_address": gpu["pci"]["address"],
    }
    scores = answer["topology"]["scores"]
    assert scores[5] == [None] * 8
    assert scores[0][1] is not None


def test_nvlinks_with_what_they_lead_to(probe):
    first = probe("a100-sxm4-40gb-x8")["devices"][0]
    assert first["nvlink_peers"] == {f"0000:c{switch}:00.0": f"{2 * switch}-{2 * switch + 1}" for switch in range(6)}
    assert first["nvlinks_down"] == []


def test_a_gpu_without_its_bridge(probe):
    gpu = probe("mixed")["devices"][1]
    assert (gpu["nvlinks"], gpu["nvlink_peers"], gpu["nvlinks_down"]) == (0, {}, list(range(12)))


def test_the_cube_mesh_of_a_dgx_1(probe):
    """GPU 0 has one NVLink to each of two GPUs, two to each of two others, and none to three."""
    topology = probe("v100-sxm2-16gb-x8")["topology"]
    assert topology["scores"][0] == [None, 140, 120, 220, 210, 10, 10, 10]
    assert topology["kinds"]["210"] == {"nvlinks": 2, "pcie": "sys"}
    assert topology["kinds"]["140"] == {"nvlinks": 1, "pcie": "pxb"}


def test_every_gpu_behind_switches_has_all_links_to_every_other(probe):
    topology = probe("h100-sxm-x8")["topology"]
    assert {kind["nvlinks"] for kind in topology["kinds"].values()} == {18}


def test_gpus_that_share_nothing_but_the_machine(probe):
    topology = probe("gtx1080-x2")["topology"]
    assert topology == {"scores": [[None, 10], [10, None]], "kinds": {"10": {"nvlinks": 0, "pcie": "sys"}}}


def test_a_machine_that_hides_its_pcie(probe):
    faults = [{"call": "nvmlDeviceGetTopologyCommonAncestor", "error": 3}]
    topology = probe("a100-sxm4-40gb-x2", faults=faults)["topology"]
    assert topology["kinds"] == {"1200": {"nvlinks": 12, "pcie": None}}


def test_instances_of_mig(probe):
    gpu = probe("a100-sxm4-40gb-x8-mig")["devices"][1]
    assert [row["profile"] for row in gpu["mig"]["instances"]] == ["3g.20gb", "2g.10gb", "1g.5gb"]
