# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts through the real pynvml on the simulated NVML library: every kind of GPU, and every fault of one.

The bus is a hand-made tree of sysfs, made from the scenario; what an agent sees over time is shown in test_history.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators import generate

ROOT = Path(__file__).resolve().parents[5]
SIMULATORS = ROOT / "tests" / "simulators"

PROBE = """
import json, sys
from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
policy, root, deadline_s = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
print(json.dumps(health_probe.probe(policy, deadline_s=deadline_s, log=root + "/kmsg", root=root)))
"""


@pytest.fixture(scope="module")
def library():
    subprocess.run(
        ["make", "-s", "-C", str(SIMULATORS), "build/libnvidia-ml.so.1"], check=True, capture_output=True, text=True
    )
    return SIMULATORS / "build"


@pytest.fixture
def probe(library, tmp_path, fake_host):
    def run(name, change=lambda scenario: None, policy=None, log=(), deadline_s=20.0):
        scenario = generate.scenario(name)
        scenario["kernel"] = "assume-loaded"
        for gpu in scenario["devices"]:
            # The socket of nvidia-persistenced belongs to a whole machine.
            gpu["persistence"] = 1
        change(scenario)
        for gpu in scenario["devices"]:
            if gpu["state"] != "gone":
                fake_host.pci(gpu["pci"]["address"], gpu["pci"]["device"])
        for switch in scenario["switches"]:
            fake_host.pci(switch["pci"]["address"], switch["pci"]["device"], pci_class="068000")
        fake_host.write("kmsg", "".join(f"4,{n},{n}000000,-;{line}\n" for n, line in enumerate(log)))
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(scenario))
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_SIMULATOR_SCENARIO": str(path)}
        done = subprocess.run(
            [sys.executable, "-c", PROBE, json.dumps(policy or {}), fake_host.path, str(deadline_s)],
            env=environment,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout)
        assert found["log_error"] is None
        return found["health"]

    return run


def codes(part):
    return [reason["code"] for reason in part["reasons"]]


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("k20c-x1", 1),
        ("gtx1080-x2", 2),
        ("t4-x1", 1),
        ("mixed", 2),
        ("v100-sxm2-16gb-x8", 8),
        ("a100-sxm4-40gb-x2", 2),
        ("a100-sxm4-40gb-x8", 8),
        ("a100-sxm4-40gb-x8-mig", 8),
        ("h100-sxm-x8", 8),
    ],
)
def test_every_kind_of_gpu_is_ok_when_it_is_well(probe, name, gpus):
    report = probe(name, lambda scenario: scenario.update(switches=[]))
    assert [(row["verdict"], codes(row), row["suspected"]) for row in report["devices"]] == [("ok", [], [])] * gpus
    assert report["verdict"] == "ok"


def test_a_k20c_has_much_that_is_not_applicable(probe):
    (gpu,) = probe("k20c-x1")["devices"]
    absent = {code for code, state in gpu["checks"].items() if state == "not_applicable"}
    assert absent >= {"row_remap_pending", "row_remap_failed", "nvlink_down", "fabric_state", "mig_mode"}


def test_one_of_eight_is_lost(probe):
    report = probe("lost-one-of-eight", lambda scenario: scenario.update(switches=[]))
    assert report["verdict"] == "fatal"
    assert [row["verdict"] for row in report["devices"]] == ["ok"] * 5 + ["fatal"] + ["ok"] * 2
    sick = report["devices"][5]
    assert codes(sick) == ["gpu_lost"]
    assert sick["pci_address"] == generate.scenario("lost-one-of-eight")["devices"][5]["pci"]["address"]


def test_fabric_manager_is_missing(probe):
    report = probe("fabric-not-ready")
    assert report["verdict"] == "fatal"
    assert "fabric_manager_down" in codes(report)
    assert all("fabric_state" in codes(row) for row in report["devices"])


def gpu(number=0, **parts):
    """A change of a scenario: the given parts of a GPU, which may be nested."""

    def put(into, values):
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                put(into[key], value)
            else:
                into[key] = value

    return lambda scenario: put(scenario["devices"][number], parts)


def fault(**parts):
    return lambda scenario: scenario["faults"].append(parts)


def retire(scenario):
    scenario["devices"][0]["retired_pages"]["double_bit"] = [{"address": n, "time_us": 1} for n in range(63)]


FAULTS = [
    ("a100-sxm4-40gb-x2", gpu(state="lost"), "gpu_lost", "fatal", "reboot"),
    ("a100-sxm4-40gb-x2", gpu(state="reset_required"), "gpu_reset_required", "fatal", "reset_gpu"),
    ("a100-sxm4-40gb-x2", gpu(state="unclaimed"), "gpu_missing", "fatal", "reboot"),
    (
        "a100-sxm4-40gb-x2",
        fault(call="nvmlDeviceGetHandle*", device=0, error=8),
        "gpu_power_missing",
        "fatal",
        "inspect",
    ),
    ("a100-sxm4-40gb-x2", fault(call="nvmlDeviceGetHandle*", device=0, error=999), "gpu_error", "fatal", "reboot"),
    (
        "a100-sxm4-40gb-x2",
        gpu(ecc={"volatile": {"uncorrected": {"total": 2}}}),
        "ecc_uncorrected",
        "fatal",
        "reset_gpu",
    ),
    ("a100-sxm4-40gb-x2", gpu(ecc={"sram": {"threshold_exceeded": 1}}), "ecc_sram_threshold", "fatal", "rma"),
    ("a100-sxm4-40gb-x2", gpu(remapped_rows={"pending": 1}), "row_remap_pending", "degraded", "reset_gpu"),
    ("a100-sxm4-40gb-x2", gpu(remapped_rows={"failure": 1}), "row_remap_failed", "fatal", "rma"),
    ("v100-sxm2-16gb-x8", gpu(retired_pages={"pending": 1}), "retired_pages_pending", "degraded", "reset_gpu"),
    ("v100-sxm2-16gb-x8", retire, "retired_pages_limit", "fatal", "rma"),
    ("a100-sxm4-40gb-x2", gpu(pci={"width": 8}), "pcie_width", "degraded", "inspect"),
    (
        "a100-sxm4-40gb-x2",
        gpu(pci={"generation": 2}, utilization={"gpu": 97}),
        "pcie_generation",
        "degraded",
        "inspect",
    ),
    (
        "v100-sxm2-16gb-x8",
        lambda scenario: scenario["devices"][0]["nvlinks"]["links"][3].update(up=0),
        "nvlink_down",
        "degraded",
        "inspect",
    ),
    ("a100-sxm4-40gb-x2", gpu(persistence=0), "persistence_mode", "degraded", "inspect"),
    ("a100-sxm4-40gb-x2", gpu(clocks={"graphics": {"application": 765}}), "clocks_locked", "degraded", "inspect"),
    ("a100-sxm4-40gb-x2", gpu(mig={"pending": 1}), "mig_mode", "degraded", "reset_gpu"),
    ("a100-sxm4-40gb-x2", gpu(inforom={"valid": False}), "inforom_corrupt", "degraded", "rma"),
    (
        "a100-sxm4-40gb-x2",
        gpu(processes=[{"pid": 2**22 - 1, "memory_mib": 900, "type": "C"}]),
        "zombie_process",
        "degraded",
        "reset_gpu",
    ),
]


@pytest.mark.parametrize(("name", "change", "code", "verdict", "action"), FAULTS, ids=[row[2] for row in FAULTS])
def test_every_fault_of_a_gpu(probe, name, change, code, verdict, action):
    report = probe(name, change)
    address = generate.scenario(name)["devices"][0]["pci"]["address"]
    sick = next(row for row in report["devices"] if row["pci_address"] == address)
    (reason,) = [row for row in sick["reasons"] if row["code"] == code]
    assert (reason["verdict"], reason["action"], report["verdict"]) == (verdict, action, verdict)
    assert reason["remedy"]
    assert {row["verdict"] for row in report["devices"] if row is not sick} <= {"ok"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda scenario: scenario["driver"].update(library_version="560.35.03"), "driver_library_mismatch"),
        (fault(call="nvmlInit*", error=9), "driver_not_loaded"),
        (fault(call="nvmlInit*", error=999), "nvml_error"),
        (fault(call="nvmlInit*", hang=True), "nvml_hang"),
        (fault(call="nvmlInit*", crash=True), "nvml_crash"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_fault_of_the_driver(probe, change, code):
    report = probe("a100-sxm4-40gb-x2", change, deadline_s=3.0)
    assert codes(report) == [code]
    assert report["verdict"] == "fatal"
    assert [row["pci_address"] for row in report["devices"]], "the GPUs are on the bus all the same"


@pytest.mark.parametrize(("how", "code"), [("hang", "gpu_hang"), ("crash", "gpu_crash")])
def test_a_gpu_over_which_nvml_hangs_or_crashes_is_named(probe, how, code):
    report = probe("a100-sxm4-40gb-x2", fault(call="nvmlDeviceGetTemperature", device=1, **{how: True}), deadline_s=3.0)
    healthy, sick = report["devices"]
    assert codes(report) == []
    assert (codes(healthy), codes(sick)) == ([], [code])
    assert "asked for temperature_c of GPU 1" in sick["reasons"][0]["text"]
    assert (report["verdict"], healthy["verdict"], sick["verdict"]) == ("fatal", "unknown", "fatal")


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("a100-sxm4-40gb-x2", "nvmlDeviceGet[EPRTU]*"),
        ("k20c-x1", "nvmlDeviceGet*"),
        ("v100-sxm2-16gb-x8", "nvmlDeviceGet*"),
    ],
)
def test_garbage_of_one_gpu_is_no_verdict_on_the_others(probe, name, calls):
    report = probe(name, fault(call=calls, device=0, garbage=True, after=12))
    assert {row["verdict"] for row in report["devices"][1:]} <= {"ok"}
    assert codes(report) == []


def test_xids_in_the_log_count(probe):
    report = probe(
        "a100-sxm4-40gb-x2",
        log=["NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x, DBE", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=x"],
        change=gpu(pci={"address": "0000:3b:00.0"}),
    )
    (reason,) = report["devices"][0]["reasons"]
    assert (reason["code"], reason["evidence"]["xids"]) == ("xid_fatal", {"48": 1})


def test_the_site_expects_more_gpus(probe):
    report = probe("a100-sxm4-40gb-x2", policy={"expected": {"gpus": 8}})
    assert codes(report) == ["gpu_count"]
