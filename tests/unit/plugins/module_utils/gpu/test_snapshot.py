# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at simulated GPUs through the real pynvml: what readings say, and that no GPU or library upsets a look."""

from __future__ import annotations

import os
import stat

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.readings import QUICK, SLOW
from tests.unit.plugins.driver_host import driver_loaded


@pytest.fixture
def look(simulated_host):
    """One look at a scenario, as a new process takes it."""

    def take(name, slow=True, change=None, **changes):
        simulated_host.take(name, **changes)
        if change:
            change(simulated_host.scenario)
            simulated_host.save()
        return simulated_host.looking()(slow)

    return take


def values(device):
    return {key: reading.get("value", reading.get("state")) for key, reading in device["readings"].items()}


def on_first(**sections):
    """Changes values of the first GPU of a scenario."""

    def change(scenario):
        for section, wanted in sections.items():
            scenario["devices"][0][section].update(wanted)

    return change


def test_a_healthy_a100(look):
    found = look("a100-sxm4-40gb-x8")
    assert found["schema"] == 1
    assert found["boot_id"] == "5c3a1f2e-8f6b-4c1d-9e2a-000000000001"
    assert found["driver"]["loaded"] == "550.163.01"
    assert found["driver"]["cuda"] == "12.4"
    assert found["driver"]["nvml_error"] is None
    assert len(found["pci"]) == 14
    assert [device["index"] for device in found["devices"]] == list(range(8))
    assert found["devices"][7]["cpus"] == "16-31"
    assert found["devices"][7]["numa_node"] == 1
    first = found["devices"][0]
    assert first["error"] is None
    assert first["pci_address"] == "0000:07:00.0"
    assert values(first) == {
        "temperature_c": 34,
        "memory_temperature_c": 33,
        "temperature_limits_c": {"slowdown": 89, "shutdown": 92, "gpu_max": 85, "memory_max": 95},
        "clocks_event_reasons": 1,
        "power_w": 54.0,
        "power_limit_w": 400.0,
        "energy_mj": 1_000_000,
        "clocks_mhz": {"sm": 210, "memory": 1215},
        "utilization_percent": {"gpu": 0, "memory": 0},
        "engine_utilization_percent": {"encoder": 0, "decoder": 0},
        "memory_bytes": {
            "total": 40960 << 20,
            "used": 0,
            "free": (40960 - 571) << 20,
            "reserved": 571 << 20,
        },
        "ecc_mode": {"enabled": True, "pending": True},
        "ecc_volatile": {"corrected": 0, "uncorrected": 0},
        "ecc_aggregate": {"corrected": 0, "uncorrected": 0},
        "ecc_sram": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "threshold_exceeded": False},
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "retired_pages": "not_applicable",
        "memory_unrepairable": "not_applicable",
        "memory_repair": "not_applicable",
        "recovery_action": "not_applicable",
        "pcie": {"generation": 4, "generation_max": 4, "width": 16, "width_max": 16},
        "pcie_replays": 0,
        "nvlinks": [
            {
                "link": link,
                "active": True,
                "remote": f"0000:c{link // 2}:00.0",
                "crc_errors": 0,
                "replay_errors": 0,
                "recovery_errors": 0,
            }
            for link in range(12)
        ],
        "fabric": "not_applicable",
        "persistence_mode": False,
        "application_clocks_mhz": {
            "graphics": 1095,
            "memory": 1215,
            "default_graphics": 1095,
            "default_memory": 1215,
        },
        "mig": {"enabled": False, "pending": False, "instances": []},
        "processes": [],
        "inforom_valid": True,
    }


def test_a_quick_look_leaves_the_slow_questions_out(look):
    (device,) = look("t4-x1", slow=False)["devices"]
    assert set(device["readings"]) == set(QUICK)
    assert set(SLOW) - set(QUICK) == {"inforom_valid"}


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        (
            "k20c-x1",
            {
                *("memory_temperature_c", "energy_mj", "ecc_sram", "remapped_rows", "nvlinks", "fabric", "mig"),
            },
        ),
        (
            "gtx1080-x2",
            {
                *("memory_temperature_c", "energy_mj", "ecc_mode", "ecc_volatile", "ecc_aggregate", "ecc_sram"),
                *("remapped_rows", "retired_pages", "nvlinks", "fabric", "application_clocks_mhz", "mig"),
            },
        ),
        ("v100-sxm2-16gb-x8", {"ecc_sram", "remapped_rows", "fabric", "mig"}),
        ("h100-sxm-x8", {"retired_pages"}),
    ],
)
def test_what_a_gpu_does_not_have(look, name, absent):
    for device in look(name)["devices"]:
        states = {key: reading["state"] for key, reading in device["readings"].items() if "value" not in reading}
        # Newer than the drivers of these hosts.
        newer = {"memory_unrepairable", "memory_repair", "recovery_action"}
        assert states == dict.fromkeys(absent | newer, "not_applicable")
        assert device["error"] is None


def test_what_drivers_from_570_and_580_on_tell_of_a_gpu(look):
    def change(scenario):
        scenario["devices"][0]["repair"] = {"channel": 1, "tpc": 0}
        scenario["devices"][0]["recovery_action"] = 4

    driver = {"version": "580.65.06", "library_version": None, "cuda_version": None}
    told = values(look("h100-sxm-x8", change=change, driver=driver)["devices"][0])
    assert told["recovery_action"] == 4
    assert told["memory_repair"] == {"channel_pending": True, "tpc_pending": False}
    assert told["memory_unrepairable"] is False
    driver["version"] = "570.133.20"
    told = values(look("h100-sxm-x8", change=change, driver=driver)["devices"][0])
    assert told["recovery_action"] == 4
    assert (told["memory_repair"], told["memory_unrepairable"]) == ("not_applicable", "not_applicable")


def test_a_driver_before_510_has_older_names_and_tells_no_reserved_memory(look):
    def change(scenario):
        gpu = scenario["devices"][0]
        gpu["ecc"]["absent"].remove("cbu")
        gpu["ecc"]["volatile"]["uncorrected"]["sram"] = 4
        gpu["processes"] = [{"pid": 1, "memory_mib": 100}]

    driver = {"version": "470.256.02", "library_version": None, "cuda_version": None}
    first = look("a100-sxm4-40gb-x8", change=change, driver=driver)["devices"][0]
    assert [process["pid"] for process in first["readings"]["processes"]["value"]] == [1]
    assert first["readings"]["ecc_sram"]["value"] == {
        "volatile_uncorrected": 4,
        "aggregate_uncorrected": 0,
        "threshold_exceeded": None,
    }
    assert first["readings"]["clocks_event_reasons"]["value"] == 1
    assert first["readings"]["memory_bytes"]["value"] == {
        "total": 40960 << 20,
        "used": 571 << 20,
        "free": (40960 - 571) << 20,
        "reserved": None,
    }


def test_mig_hides_some_readings_and_shows_its_instances(look):
    found = look("a100-sxm4-40gb-x8-mig")["devices"]
    instances = found[1]["readings"]["mig"]["value"]["instances"]
    assert [(row["profile"], row["memory_mib"]) for row in instances] == [
        ("3g.20gb", 19968),
        ("2g.10gb", 9856),
        ("1g.5gb", 4864),
    ]
    assert len({row["uuid"] for row in instances}) == 3
    assert found[1]["readings"]["remapped_rows"]["state"] == "not_applicable"
    assert found[1]["readings"]["utilization_percent"]["state"] == "not_applicable"
    assert found[7]["readings"]["mig"]["value"] == {"enabled": False, "pending": False, "instances": []}


def test_processes_that_are_gone(look):
    def change(scenario):
        scenario["devices"][0]["processes"] = [{"pid": 1, "memory_mib": 100}, {"pid": 4194000, "memory_mib": 39000}]

    alive, gone = look("a100-sxm4-40gb-x2", change=change)["devices"][0]["readings"]["processes"]["value"]
    assert (alive["pid"], alive["exists"], alive["memory_mib"]) == (1, True, 100)
    assert alive["name"]
    assert gone == {"pid": 4194000, "name": None, "memory_mib": 39000, "exists": False}


def test_a_fabric_that_is_not_ready(look):
    found = look("fabric-not-ready")
    assert found["fabric_manager"] == {"needed": True, "running": False}
    assert found["devices"][0]["readings"]["fabric"]["value"] == {
        "state": "not_started",
        "status": 0,
        "unhealthy": [],
    }


def test_an_unhealthy_fabric_names_what_is_wrong(look):
    # Bandwidth degraded, route recovery: no, not enough NVLinks.
    mask = 1 | 2 << 2 | 5 << 8
    found = look("h100-sxm-x8", change=on_first(fabric={"health_mask": mask}))["devices"]
    assert found[0]["readings"]["fabric"]["value"]["unhealthy"] == ["degraded_bandwidth", "incorrect_configuration_5"]
    assert found[1]["readings"]["fabric"]["value"]["unhealthy"] == []


def test_fabric_manager_is_found_by_its_pid(look, simulated_host):
    assert look("h100-sxm-x8")["fabric_manager"] == {"needed": True, "running": True}
    # It died without taking its file along.
    simulated_host.write("run/nvidia-fabricmanager/nv-fabricmanager.pid", "4711\n")
    assert snapshot.without_nvml(None, simulated_host.path)["fabric_manager"] == {"needed": True, "running": False}


def test_a_corrupted_inforom(look):
    found = look("a100-sxm4-40gb-x2", change=on_first(inforom={"valid": False}))["devices"]
    assert [device["readings"]["inforom_valid"]["value"] for device in found] == [False, True]


def test_a_gpu_that_was_lost_before_the_first_look_is_named_by_bus_and_driver(look, simulated_host):
    found = look("lost-one-of-eight")["devices"]
    gpu = simulated_host.scenario["devices"][5]
    lost = found[5]
    assert (lost["uuid"], lost["pci_address"], lost["minor"]) == (gpu["uuid"], gpu["pci"]["address"], 5)
    assert (lost["error"]["code"], lost["error"]["name"]) == (15, "gpu_is_lost")
    assert {reading["state"] for reading in lost["readings"].values()} == {"lost"}
    assert set(lost["readings"]) == set(SLOW)
    assert [device["error"] for device in found if device["index"] != 5] == [None] * 7


def test_a_gpu_is_lost_between_looks_and_comes_back(simulated_host):
    simulated_host.take("a100-sxm4-40gb-x8")
    look = simulated_host.looking()
    before = look()["devices"][5]
    simulated_host.scenario["devices"][5]["state"] = "lost"
    simulated_host.save()
    lost = look()["devices"][5]
    assert lost["error"]["code"] == 15
    assert lost["uuid"] == before["uuid"]
    assert look()["devices"][5]["uuid"] == before["uuid"]
    simulated_host.scenario["devices"][5]["state"] = "ok"
    simulated_host.save()
    again = look()["devices"][5]
    assert again["error"] is None
    assert again["uuid"] == before["uuid"]
    assert "value" in again["readings"]["temperature_c"]


def test_a_gpu_that_needs_a_reset(look):
    found = look("a100-sxm4-40gb-x2", change=lambda scenario: scenario["devices"][1].update(state="reset_required"))
    assert found["devices"][0]["error"] is None
    assert found["devices"][1]["error"]["name"] == "reset_required"
    assert found["devices"][1]["readings"]["power_w"]["code"] == 16


def test_a_gpu_that_appears_while_nvml_is_open(simulated_host):
    simulated_host.take("a100-sxm4-40gb-x2")
    whole = list(simulated_host.scenario["devices"])
    simulated_host.scenario["devices"] = whole[:1]
    simulated_host.save()
    look = simulated_host.looking(retry_s=3600)
    assert len(look()["devices"]) == 1
    simulated_host.scenario["devices"] = whole
    simulated_host.save()
    assert [device["uuid"] for device in look()["devices"]] == [gpu["uuid"] for gpu in whole]


def test_what_nvml_counts_no_more_is_still_on_the_bus(look):
    found = look("a100-sxm4-40gb-x2", change=lambda scenario: scenario["devices"][1].update(state="unclaimed"))
    assert len(found["devices"]) == 1
    assert [row["address"] for row in found["pci"]] == ["0000:3b:00.0", "0000:af:00.0"]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (3, "not_applicable"),
        (13, "not_applicable"),
        (22, "not_applicable"),
        (26, "not_applicable"),
        (4, "unknown"),
        (10, "unknown"),
        (999, "unknown"),
        (15, "lost"),
        (16, "lost"),
    ],
)
def test_what_a_failure_of_one_question_means(look, code, state):
    faults = [{"call": "nvmlDeviceGetPowerUsage", "device": 1, "error": code}]
    first, second = look("a100-sxm4-40gb-x2", faults=faults)["devices"]
    assert (second["readings"]["power_w"]["state"], second["readings"]["power_w"]["code"]) == (state, code)
    assert first["error"] is None
    assert "value" in first["readings"]["power_w"]
    # One failed question says nothing of the GPU as a whole, except that it is lost.
    assert (second["error"] is None) == (state != "lost")
    assert ("value" in second["readings"]["power_limit_w"]) == (state != "lost")


def test_a_library_that_answers_garbage(look):
    found = look("a100-sxm4-40gb-x2", faults=[{"call": "nvmlDeviceGet*", "device": 1, "garbage": True}])
    first, second = found["devices"]
    assert first["error"] is None
    states = {key: reading["state"] for key, reading in second["readings"].items() if "value" not in reading}
    assert states["temperature_c"] == "unknown"
    assert states["utilization_percent"] == "unknown"
    assert second["uuid"] is None or second["uuid"].startswith("GPU-")
    assert second["error"]["name"] == "garbage"


@pytest.mark.parametrize(
    ("changes", "code", "name"),
    [
        ({"kernel": "stand-in"}, 9, "driver_not_loaded"),
        ({"faults": [{"call": "nvmlDeviceGetCount*", "error": 999}]}, 999, "unknown"),
        ({"faults": [{"call": "nvmlInit*", "error": 15}]}, 15, "gpu_is_lost"),
    ],
)
def test_nvml_cannot_be_asked(look, changes, code, name):
    found = look("a100-sxm4-40gb-x2", **changes)
    assert found["devices"] == []
    assert (found["driver"]["nvml_error"]["code"], found["driver"]["nvml_error"]["name"]) == (code, name)
    assert len(found["pci"]) == 2


def test_nvml_starts_when_the_driver_is_loaded(simulated_host):
    simulated_host.take("a100-sxm4-40gb-x2", kernel="stand-in")
    look = simulated_host.looking()
    assert look()["driver"]["nvml_error"]["code"] == 9
    simulated_host.scenario["kernel"] = "assume-loaded"
    simulated_host.save()
    found = look()
    assert found["driver"]["nvml_error"] is None
    assert len(found["devices"]) == 2


def test_missing_device_files_are_named(simulated_host):
    simulated_host.take("a100-sxm4-40gb-x2")
    simulated_host.write("dev/nvidiactl", "a plain file")
    assert snapshot.without_nvml(None, simulated_host.path)["device_files"] == dict.fromkeys(
        ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"), False
    )


def test_device_files_with_their_numbers_are_right(simulated_host, monkeypatch):
    simulated_host.take("a100-sxm4-40gb-x2")
    numbers = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia1": (195, 7)}

    class Status:
        st_mode = stat.S_IFCHR | 0o666

        def __init__(self, name):
            self.st_rdev = os.makedev(*numbers[name])

    real = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, **more: Status(os.path.basename(path)) if "/dev/" in str(path) else real(path, **more)
    )
    numbers.update({"nvidia-uvm": (511, 0), "nvidia-uvm-tools": (511, 1)})
    found = snapshot.without_nvml(None, simulated_host.path)["device_files"]
    assert [path for path, right in found.items() if not right] == ["/dev/nvidia1"]


def test_a_host_without_a_driver(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0")
    error = {"code": 12, "name": "library_not_found", "text": "NVML Shared Library Not Found", "remedy": "install it"}
    found = snapshot.without_nvml(error, fake_host.path)
    assert found["driver"]["nvml_error"] == error
    assert (found["driver"]["installed"], found["driver"]["loaded"]) == (None, None)
    assert (found["device_files"], found["devices"]) == ({}, [])
    assert found["uptime"] > 0


def test_the_files_of_a_hanging_driver_are_left_alone(simulated_host):
    simulated_host.take("a100-sxm4-40gb-x2")
    error = {"code": None, "name": "timeout", "text": "no answer", "remedy": "reboot"}
    assert snapshot.without_nvml(error, simulated_host.path)["device_files"] == {}


def test_files_that_only_an_administrator_opens_are_not_missed(fake_host):
    driver_loaded(fake_host)
    found = snapshot.without_nvml(None, fake_host.path)["device_files"]
    names = ("nvidiactl", "nvidia0", "nvidia1", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
    assert set(found) == {f"/dev/{name}" for name in names}
