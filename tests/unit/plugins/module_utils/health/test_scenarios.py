# SPDX-License-Identifier: GPL-3.0-or-later
"""What is judged of each faulty host: from the real pynvml on the simulated library, over ten minutes of looks.

Each scenario has two GPUs, and the second one is sick or only looks so.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.health import look_shape
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from tests.simulators import generate

FAULTS = list(generate.FAULTS)
INTERVAL_S = 15.0
# Long enough that what must be bad for six of ten minutes was, and that a fabric should have come up after the boot.
LOOKS = 42
UPTIME_S = 400.0
# A child per look costs the deadline where it hangs.
DEADLINES = {"nvml-hang": 1.0, "nvml-hang-init": 1.0, "nvml-crash": 10.0}
DEADLINE_LOOKS = 3

# A rate or a text that is not written down here.
SOME = object()
# (code, verdict, action, value of the evidence)
Reason = tuple[str, str, str, Any]
OF_GPU: dict[str, list[Reason]] = {
    "nvml-hang": [("gpu_hang", "fatal", "reboot", "power_w")],
    "nvml-crash": [("gpu_crash", "fatal", "inspect", "temperature_c")],
    "nvml-garbage": [("gpu_error", "fatal", "reboot", None)],
    "gpu-unclaimed": [("gpu_missing", "fatal", "reboot", "0000:03:00.0")],
    "gpu-lost": [("gpu_lost", "fatal", "reboot", 15)],
    "gpu-reset-required": [("gpu_reset_required", "fatal", "reset_gpu", 16)],
    "gpu-power-missing": [("gpu_power_missing", "fatal", "inspect", 8)],
    "gpu-handle-unknown": [("gpu_error", "fatal", "reboot", 999)],
    "ecc-uncorrected": [("ecc_uncorrected", "fatal", "reset_gpu", 1)],
    "sram-uncorrected": [("ecc_sram_uncorrected", "degraded", "reset_gpu", 2)],
    "sram-threshold": [("ecc_sram_threshold", "fatal", "rma", True)],
    "row-remap-pending": [("row_remap_pending", "degraded", "reset_gpu", True)],
    "row-remap-failed": [("row_remap_failed", "fatal", "rma", True)],
    "retired-pages-pending": [("retired_pages_pending", "degraded", "reset_gpu", True)],
    "retired-pages-limit": [("retired_pages_limit", "fatal", "rma", 63)],
    "thermal-slowdown": [("thermal_slowdown", "degraded", "inspect", "0x48")],
    "temperature-over-limit": [("temperature_limit", "degraded", "inspect", 94)],
    "hbm-over-limit": [("temperature_limit", "degraded", "inspect", 97)],
    "power-brake": [("power_brake", "degraded", "inspect", "0x88")],
    "persistence-off": [("persistence_mode", "degraded", "inspect", False)],
    "clocks-locked": [("clocks_locked", "degraded", "inspect", [300, 5001])],
    "pcie-width": [("pcie_width", "degraded", "inspect", 8)],
    "pcie-generation": [("pcie_generation", "degraded", "inspect", 1)],
    "pcie-replays": [("pcie_replays", "degraded", "inspect", SOME)],
    "nvlink-down": [("nvlink_down", "degraded", "inspect", 10)],
    "nvlink-errors": [("nvlink_errors", "degraded", "inspect", SOME)],
    "fabric-in-progress": [("fabric_state", "fatal", "inspect", "in_progress")],
    "fabric-failed": [("fabric_state", "fatal", "inspect", "completed with status 999")],
    "fabric-degraded": [("fabric_unhealthy", "degraded", "inspect", ["degraded_bandwidth"])],
    "fabric-limited": [("fabric_unhealthy", "degraded", "inspect", ["limited_capacity"])],
    "memory-unrepairable": [("memory_unrepairable", "fatal", "rma", True)],
    "memory-repair-pending": [("memory_repair_pending", "degraded", "reset_gpu", ["channel_pending", "tpc_pending"])],
    "recovery-reset": [("gpu_recovery_action", "fatal", "reset_gpu", 1)],
    "recovery-reboot": [("gpu_recovery_action", "fatal", "reboot", 2)],
    "recovery-drain-p2p": [("gpu_recovery_action", "fatal", "reset_gpu", 3)],
    "recovery-drain-and-reset": [("gpu_recovery_action", "fatal", "reset_gpu", 4)],
    "recovery-unknown": [("gpu_recovery_action", "fatal", "reboot", 9)],
    "mig-pending": [("mig_mode", "degraded", "reset_gpu", False)],
    "inforom-corrupt": [("inforom_corrupt", "degraded", "rma", False)],
    "zombie-process": [("zombie_process", "degraded", "reset_gpu", [4194000])],
    "xid-48": [("ecc_uncorrected", "fatal", "reset_gpu", 1), ("xid_fatal", "fatal", "reset_gpu", 48)],
    "xid-63": [("row_remap_pending", "degraded", "reset_gpu", True), ("xid_degraded", "degraded", "reset_gpu", 63)],
    "xid-64": [("row_remap_failed", "fatal", "rma", True), ("xid_fatal", "fatal", "reset_gpu", 64)],
    "xid-74": [("nvlink_down", "degraded", "inspect", 11), ("xid_fatal", "fatal", "reset_gpu", 74)],
    "xid-79": [("gpu_lost", "fatal", "reboot", 15), ("xid_fatal", "fatal", "reboot", 79)],
    "xid-95": [("xid_fatal", "fatal", "reset_gpu", 95)],
    "xid-119": [("xid_fatal", "fatal", "reset_gpu", 119)],
    "log-xid-79": [("xid_fatal", "fatal", "reboot", 79)],
    "log-off-bus": [("gpu_off_bus", "fatal", "reboot", SOME)],
    "log-off-bus-three-lines": [("gpu_off_bus", "fatal", "reboot", SOME)],
    "log-xid-119": [("xid_fatal", "fatal", "reset_gpu", 119)],
    "log-xid-149": [("xid_fatal", "fatal", "reset_gpu", 149)],
    "log-xid-154-drain": [("xid_fatal", "fatal", "reset_gpu", 154)],
    "log-xid-154-reset": [("xid_fatal", "fatal", "reset_gpu", 154)],
}
OF_NODE: dict[str, list[Reason]] = {
    "nvml-hang-init": [("nvml_hang", "fatal", "reboot", "timeout")],
    "nvml-unknown-error": [("nvml_error", "fatal", "reboot", 999)],
    "gpu-gone": [("gpu_count", "fatal", "inspect", 1)],
    "fabric-manager-down": [("fabric_manager_down", "fatal", "inspect", False)],
}
# Nothing can be said of the GPUs, or of those that have no fault themselves.
UNKNOWN = {"nvml-hang", "nvml-hang-init", "nvml-crash", "nvml-unknown-error", "gpu-no-permission"}
# A fault acts at once if it is fatal by what the GPU itself says.
AT_ONCE = {
    name for name, reasons in OF_GPU.items() if any(verdict == "fatal" for _code, verdict, _action, _value in reasons)
} - {"nvml-hang", "nvml-crash", "nvml-garbage", "gpu-handle-unknown", "fabric-in-progress", "fabric-failed"}


def agrees(reasons: list[dict[str, Any]], wanted: list[Reason]) -> bool:
    found = sorted((row["code"], row["verdict"], row["action"], row["evidence"]["value"]) for row in reasons)
    wanted = sorted(wanted, key=lambda row: row[0])
    return [row[:3] for row in found] == [row[:3] for row in wanted] and all(
        one[3] == other[3] or (other[3] is SOME and bool(one[3])) for one, other in zip(found, wanted, strict=True)
    )


def has_its_shape(look: dict[str, Any]) -> None:
    """What a host can be like passes the check of the agent, whole and unchanged."""
    said = json.dumps({"snapshot": look, "seconds": 0.1})
    assert look_shape.message(said.encode(), len(said)) == json.loads(said)


@pytest.fixture
def watch(simulated_host):
    """The reports on a scenario, look by look."""

    def run(name):
        simulated_host.take(name)
        deadline_s = DEADLINES.get(name, 0.0)
        look = simulated_host.looking(deadline_s=deadline_s)
        policy = {"expected": {"gpus": 2}}
        history: dict[str, Any] | None = None
        for number in range(DEADLINE_LOOKS if deadline_s else LOOKS):
            seen = look(slow=number % 10 == 0, ahead_s=UPTIME_S + INTERVAL_S * number)
            has_its_shape(seen)
            records = simulated_host.records(seen["uptime"]) if number == 0 else []
            events = kernel_log.Parser(seen["boot_id"]).events(records)
            report, history = health.judge(seen, events, history, policy)
            yield report

    return run


@pytest.mark.parametrize("name", FAULTS)
def test_verdict_evidence_and_action(watch, name, simulated_host):
    reports = list(watch(name))
    first, last = reports[0], reports[-1]
    healthy, *rest = last["devices"]
    sick = rest[0] if rest else {"reasons": [], "verdict": "ok"}

    assert agrees(last["reasons"], OF_NODE.get(name, [])), last["reasons"]
    assert agrees(sick["reasons"], OF_GPU.get(name, [])), sick["reasons"]
    reasons = [*last["reasons"], *sick["reasons"]]
    assert all(reason["remedy"] and reason["text"] for reason in reasons)

    worst = "fatal" if any(reason["verdict"] == "fatal" for reason in reasons) else "degraded" if reasons else "ok"
    if name not in UNKNOWN:
        assert last["verdict"] == worst
        assert healthy["verdict"] == "ok", "a fault of one GPU is none of the other"
        if rest:
            assert sick["pci_address"] == simulated_host.scenario["devices"][1]["pci"]["address"]
    elif name != "gpu-no-permission":
        assert last["verdict"] == "fatal"
        assert healthy["verdict"] == "unknown"
        assert sick["verdict"] == ("fatal" if name in OF_GPU else "unknown")
    else:
        assert (healthy["verdict"], sick["verdict"]) == ("ok", "unknown")
    assert (first["verdict"] == "fatal") == (name in AT_ONCE or name == "gpu-gone")


def test_every_expectation_is_of_a_scenario():
    assert {*OF_GPU, *OF_NODE, *UNKNOWN, *DEADLINES} <= set(FAULTS)


@pytest.mark.parametrize(
    "name", ["k20c-x1", "gtx1080-x2", "v100-sxm2-16gb-x8", "a100-sxm4-40gb-x8", "a100-sxm4-40gb-x8-mig", "h100-sxm-x8"]
)
def test_a_healthy_host_is_healthy_for_ten_minutes(simulated_host, name):
    simulated_host.take(name)
    for gpu in simulated_host.scenario["devices"]:
        gpu["persistence"] = 1
    simulated_host.save()
    look = simulated_host.looking()
    history = None
    for number in range(LOOKS):
        seen = look(number % 10 == 0, UPTIME_S + INTERVAL_S * number)
        has_its_shape(seen)
        assert look_shape.senseless(seen) == []
        report, history = health.judge(seen, [], history)
        assert report["verdict"] == "ok", report["reasons"]
        assert {gpu["verdict"] for gpu in report["devices"]} == {"ok"}


def test_a_geforce_beside_an_a100_without_its_bridge(simulated_host):
    simulated_host.take("mixed")
    for gpu in simulated_host.scenario["devices"]:
        gpu["persistence"] = 1
    simulated_host.save()
    look = simulated_host.looking()
    history = None
    for number in range(LOOKS):
        report, history = health.judge(look(number % 10 == 0, UPTIME_S + INTERVAL_S * number), [], history)
    assert report["verdict"] == "ok", report["devices"]


def test_one_lost_of_eight_is_named_and_the_others_are_well(simulated_host):
    simulated_host.take("lost-one-of-eight")
    for gpu in simulated_host.scenario["devices"]:
        gpu["persistence"] = 1
    simulated_host.save()
    report, _history = health.judge(simulated_host.looking()(), [], None)
    assert [gpu["verdict"] for gpu in report["devices"]] == ["ok"] * 5 + ["fatal"] + ["ok"] * 2
    assert report["devices"][5]["uuid"] == simulated_host.scenario["devices"][5]["uuid"]
