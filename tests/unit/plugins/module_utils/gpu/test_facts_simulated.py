# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_facts GPU by GPU, through the real pynvml on the simulated library: what an operator would look for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding
from tests.unit.plugins.fake_host import FakeHost

GATHER = """
import json, os, pathlib, sys
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdicts as gpu_verdicts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
root = os.environ["SIMULATED_ROOT"]
# The file tree is a plain user's, who can make no device files.
snapshot.device_nodes.is_right = lambda node, root: True
source = pathlib.Path(root, "binding.py").read_text()
facts = gpu_facts.gather(sys.argv[1:], source, 20.0, root, verdicts=gpu_verdicts)
"""
TELL = f"{GATHER}print(json.dumps(facts))"
RULES = "[name for name in sys.modules if '.health.' in name and not name.endswith('.verdicts')]"
LOADED = f"{GATHER}print(json.dumps({RULES}))"


@pytest.fixture
def facts(simulated_host):
    def run(name, subset=gpu_facts.SUBSETS, log=(), **changes):
        simulated_host.take(name, **changes)
        for gpu in simulated_host.scenario["devices"]:
            for one in (gpu["mig"] or {"instances": []})["instances"]:
                where = f"proc/driver/nvidia/capabilities/gpu{gpu['minor']}/mig/gi{one['id']}"
                simulated_host.write(f"{where}/access", f"DeviceFileMinor: {100 * one['id']}\n")
                simulated_host.write(f"{where}/ci0/access", f"DeviceFileMinor: {100 * one['id'] + 1}\n")
        for gpu in simulated_host.scenario["devices"]:
            # The socket of nvidia-persistenced belongs to a whole machine.
            gpu["persistence"] = 1
        simulated_host.save()
        simulated_host.write("binding.py", nvml.unpack(nvml_binding.packed_source()))
        simulated_host.write("dev/kmsg", "".join(f"{line}\n" for line in log))
        return simulated_host.python(TELL, *subset)

    return run


def of_all(found: dict[str, Any], key: str) -> list[Any]:
    return [device.get(key) for device in found["devices"]]


def test_k20c_on_its_last_branch(facts):
    found = facts("k20c-x1")
    assert (found["present"], found["reason"]) == (True, None)
    assert (found["driver"]["branch"], found["driver"]["cuda"]) == (470, "11.4")
    (gpu,) = found["devices"]
    assert (gpu["name"], gpu["architecture"], gpu["compute_capability"]) == ("Tesla K20c", "kepler", "3.5")
    assert gpu["memory_mib"] == 4743
    assert gpu["ecc"]["enabled"] is True
    assert gpu["ecc"]["volatile"] == {"corrected": 0, "uncorrected": 0}
    assert gpu["pcie"] == {"generation": 2, "generation_max": 2, "width": 16, "width_max": 16}
    assert (gpu["mig"], gpu["nvlinks"], gpu["process_count"]) == (None, None, 0)
    assert gpu["not_applicable"] == ["mig", "nvlinks"]
    assert found["topology"] is None
    assert found["health"]["verdict"] == "ok"
    (judged,) = found["health"]["devices"]
    assert {judged["checks"][code] for code in ("nvlink_down", "row_remap_failed", "mig_mode")} == {"not_applicable"}


def test_gtx_1080_has_neither_serial_nor_error_correction(facts):
    found = facts("gtx1080-x2")
    assert of_all(found, "slug") == ["geforce-gtx-1080"] * 2
    assert of_all(found, "compute_capability") == ["6.1"] * 2
    for key in ("serial", "ecc", "mig", "nvlinks"):
        assert of_all(found, key) == [None, None]
        assert all(key in gpu["not_applicable"] for gpu in found["devices"])
    assert [kind["pcie"] for kind in found["topology"]["kinds"].values()] == ["sys"]
    assert found["health"]["verdict"] == "ok"


def test_v100_of_a_dgx_1(facts):
    found = facts("v100-sxm2-16gb-x8")
    assert of_all(found, "nvlinks") == [6] * 8
    assert of_all(found, "compute_capability") == ["7.0"] * 8
    assert sorted(set(of_all(found, "numa_node"))) == [0, 1]
    assert found["devices"][0]["cpus"] != found["devices"][7]["cpus"]
    first = found["devices"][0]
    peers = set(first["nvlink_peers"])
    assert peers <= {gpu["pci_address"] for gpu in found["devices"]} - {first["pci_address"]}
    assert len(peers) == 4
    assert "mig" in first["not_applicable"]
    nearest = max(score for score in found["topology"]["scores"][0] if score)
    assert found["topology"]["kinds"][str(nearest)]["nvlinks"] == 2
    assert found["health"]["verdict"] == "ok"


def test_a100_cut_by_mig(facts):
    found = facts("a100-sxm4-40gb-x8-mig")
    assert [mode["enabled"] for mode in of_all(found, "mig")] == [True, True, *[False] * 6]
    instances = found["devices"][1]["mig"]["instances"]
    assert [(row["profile"], row["memory_mib"] > 4000) for row in instances] == [
        ("3g.20gb", True),
        ("2g.10gb", True),
        ("1g.5gb", True),
    ]
    assert all(row["uuid"].startswith("MIG-") for row in instances)
    assert [(row["gpu_instance"], row["compute_instance"], row["placement"]) for row in instances] == [
        (1, 0, [0, 4]),
        (2, 0, [4, 2]),
        (3, 0, [6, 1]),
    ]
    assert instances[2]["device_nodes"] == ["/dev/nvidia-caps/nvidia-cap300", "/dev/nvidia-caps/nvidia-cap301"]
    assert "memory_bytes" not in instances[0]
    assert "instances" not in found["devices"][7]["mig"]
    assert [row["kind"] for row in found["pci"]].count("nvswitch") == 6
    assert [row["verdict"] for row in found["health"]["devices"]] == ["ok"] * 8


@pytest.mark.parametrize("error", [3, 4, 999])
def test_an_instance_whose_place_is_not_told_is_a_fact_all_the_same(facts, error):
    found = facts("a100-sxm4-40gb-x8-mig", faults=[{"call": "nvmlDeviceGetGpuInstanceById", "error": error}])
    instances = found["devices"][1]["mig"]["instances"]
    assert [(row["profile"], row["placement"]) for row in instances] == [
        ("3g.20gb", None),
        ("2g.10gb", None),
        ("1g.5gb", None),
    ]


def test_h100_with_its_fabric(facts):
    found = facts("h100-sxm-x8")
    assert of_all(found, "architecture") == ["hopper"] * 8
    assert of_all(found, "nvlinks") == [18] * 8
    assert of_all(found, "not_applicable") == [[]] * 8
    assert len(set(of_all(found, "serial"))) == 8
    assert {score for row in found["topology"]["scores"] for score in row if score is not None} <= set(
        map(int, found["topology"]["kinds"])
    )
    assert found["health"]["verdict"] == "ok"
    assert found["health"]["devices"][0]["checks"]["fabric_state"] == "ok"


def test_h100_without_fabric_manager_is_not_fit_for_work(facts):
    found = facts("fabric-not-ready")
    # The GPUs are there and answer; only the verdict says that CUDA will not run on them.
    assert found["reason"] is None
    assert of_all(found, "nvlinks") == [0] * 8
    assert found["health"]["verdict"] == "fatal"
    assert "fabric_manager_down" in [reason["code"] for reason in found["health"]["reasons"]]


def test_a_mixed_node(facts):
    found = facts("mixed")
    geforce, tesla = found["devices"]
    assert (geforce["slug"], tesla["slug"]) == ("geforce-gtx-1080", "a100-sxm4-40gb")
    assert (geforce["ecc"], tesla["ecc"]["enabled"]) == (None, True)
    assert "serial" in geforce["not_applicable"]
    assert tesla["not_applicable"] == []
    # An A100 without its bridge reports its links as down, which is no fault.
    assert (tesla["nvlinks"], tesla["nvlinks_down"]) == (0, list(range(12)))
    assert found["health"]["verdict"] == "ok"


def test_a_node_that_lost_one_of_eight(facts, simulated_host):
    found = facts("lost-one-of-eight")
    lost = simulated_host.scenario["devices"][5]
    assert found["present"] is True
    assert found["reason"].startswith(f"NVML cannot reach {lost['pci']['address']}: GPU is lost")
    gpu = found["devices"][5]
    assert (gpu["uuid"], gpu["pci_address"]) == (lost["uuid"], lost["pci"]["address"])
    assert gpu["error"]["name"] == "gpu_is_lost"
    assert found["topology"]["scores"][5] == [None] * 8
    assert found["health"]["verdict"] == "fatal"
    verdicts = {row["index"]: row["verdict"] for row in found["health"]["devices"]}
    assert verdicts == {**dict.fromkeys(range(8), "ok"), 5: "fatal"}
    (reason,) = found["health"]["devices"][5]["reasons"]
    assert (reason["code"], reason["action"]) == ("gpu_lost", "reboot")


def test_one_that_is_not_even_on_the_bus_any_more(facts):
    found = facts("gpu-gone")
    assert len(found["devices"]) == 1
    assert (found["reason"], found["health"]["verdict"]) == (None, "ok")


def test_an_xid_in_the_kernels_log(facts):
    line = "4,7,1000000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1, name=x, GPU has fallen off the bus."
    address = facts("a100-sxm4-40gb-x2", ["devices"])["devices"][1]["pci_address"]
    found = facts("a100-sxm4-40gb-x2", ["health"], [line.replace("0000:07:00", address[:-2])])
    assert (found["health"]["source"], found["health"]["log_error"]) == ("look", None)
    assert [row["verdict"] for row in found["health"]["devices"]] == ["ok", "fatal"]
    assert set(found) == {"schema", "present", "reason", "health"}


def test_a_library_that_does_not_answer(facts):
    found = facts("driver-library-mismatch")
    assert found["health"]["verdict"] == "fatal"
    assert [reason["code"] for reason in found["health"]["reasons"]] == ["driver_library_mismatch"]
    assert found["devices"] == []


def agent(host: FakeHost, path: str = "run/baremetal-gpu/gpu.json", **changes: Any) -> None:
    """What the agent publishes, hand-made."""
    gpu = {"uuid": "GPU-1", "index": 0, "pci_address": "0000:07:00.0", "verdict": "degraded", "since": 1.0}
    gpu.update(reasons=[{"code": "pcie_width"}], suspected=[], checks={"pcie_width": "fail"})
    health = {"schema": 1, "verdict": "degraded", "since": 1.0, "reasons": [], "suspected": [], "checks": {}}
    result = {"time": time.time(), "interval_s": 15.0, "boot_id": "5c3a1f2e-8f6b-4c1d-9e2a-000000000001"}
    result.update(health={**health, "devices": [gpu]})
    host.write(path, json.dumps({**result, **changes}))


def test_the_agents_verdict_is_the_one_that_is_told(facts, simulated_host):
    agent(simulated_host)
    found = facts("a100-sxm4-40gb-x2", gpu_facts.COMPACT)
    assert found["health"]["source"] == "agent"
    assert found["health"]["devices"] == [
        {
            "uuid": "GPU-1",
            "index": 0,
            "pci_address": "0000:07:00.0",
            "verdict": "degraded",
            "reasons": [{"code": "pcie_width"}],
        }
    ]
    assert len(found["devices"]) == 2


def test_the_agents_verdict_costs_no_question_to_nvml(facts, simulated_host):
    agent(simulated_host)
    faults = [{"call": "nvml*", "hang": True}]
    assert facts("a100-sxm4-40gb-x2", ["health"], faults=faults)["health"]["source"] == "agent"


@pytest.mark.parametrize(
    "changes",
    [{"time": 1.0}, {"boot_id": "another"}, {"health": None}, {"health": {"verdict": "ok"}}, {"time": None}],
)
def test_what_an_agent_left_behind_does_not_count(facts, simulated_host, changes):
    agent(simulated_host, **changes)
    assert facts("a100-sxm4-40gb-x2", ["health"])["health"]["source"] == "look"


def test_the_agents_result_is_where_its_configuration_says(facts, simulated_host):
    simulated_host.write("etc/baremetal-gpu/agent.json", json.dumps({"result": "/srv/gpu.json"}))
    agent(simulated_host, "srv/gpu.json")
    assert facts("a100-sxm4-40gb-x2", ["health"])["health"]["source"] == "agent"


def test_who_watches_a_host_without_gpus(facts, simulated_host):
    assert facts("no-gpu", ["health"])["health"] is None
    # It was told to expect some.
    agent(simulated_host)
    assert facts("no-gpu", ["health"])["health"]["verdict"] == "degraded"


@pytest.mark.parametrize(("subset", "paid"), [("devices", False), ("health", True)])
def test_who_wants_no_verdict_does_not_load_the_rules(facts, simulated_host, subset, paid):
    facts("t4-x1", ["pci"])
    assert bool(simulated_host.python(LOADED, subset)) is paid


def test_by_default_the_facts_of_eight_gpus_stay_small(facts):
    small, large = (facts("a100-sxm4-40gb-x8", subset) for subset in (gpu_facts.COMPACT, gpu_facts.SUBSETS))
    assert "checks" not in small["health"]
    assert large["health"]["devices"][0]["checks"]["pcie_width"] == "ok"
    assert len(json.dumps(small, separators=(",", ":"))) < 8000
