# SPDX-License-Identifier: GPL-3.0-or-later
"""Every fault scenario on a machine of the lab: the real agent as a unit of systemd, the real pynvml, one fault after
the other, each with its verdict, evidence and remedy, and the way back.

The faults and what is expected of them are those of tests/unit/plugins/module_utils/health/test_scenarios.py; here the
driver's files, the bus and the kernel's log are a whole machine's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.roles.conftest import DEBIAN_13, ROOT, Role
from tests.simulators import generate
from tests.unit.plugins.module_utils.health import test_scenarios as expected

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FAULTS = generate.FAULTS
# The agent judges heat and power over seconds.
SETTINGS: dict[str, Any] = {
    "gpu_agent_interval": 1,
    "gpu_agent_slow_interval": 2,
    "gpu_agent_look_timeout": 3,
    "gpu_agent_first_look_timeout": 3,
    "gpu_agent_policy": {
        "expected": {"gpus": 2},
        "thresholds": {"share_bad_s": 2, "share_window_s": 60},
        "checks": {"pcie_replays": {"looks": 1}, "nvlink_errors": {"looks": 1}},
    },
}
OF_GPU = {
    **expected.OF_GPU,
    # It was there before, and an agent remembers.
    "gpu-gone": [("gpu_missing", "fatal", "reboot", "0000:03:00.0")],
    # NVML has been telling of remapped rows, so the Xid says nothing new.
    "xid-63": [("row_remap_pending", "degraded", "reset_gpu", True)],
    # The driver of the machine is a 570, and only those from 580 on tell of it.
    "memory-unrepairable": [],
    "memory-repair-pending": [],
}
# Codes that end by an operator's word or after a boot, or only after minutes.
STICKY = {
    "gpu_lost",
    "gpu_off_bus",
    "xid_fatal",
    "xid_degraded",
    "thermal_slowdown",
    "temperature_limit",
    "power_brake",
    "pcie_replays",
    "nvlink_errors",
}
# What only shows to who opens NVML, or a GPU, anew.
OPENING = {
    "nvml-hang-init",
    "nvml-unknown-error",
    "nvml-garbage",
    "gpu-power-missing",
    "gpu-handle-unknown",
    "gpu-no-permission",
}
# Of these nothing can be said of either GPU; of all others the first one is well throughout.
SILENT = {"nvml-hang-init", "nvml-unknown-error"}


def well_for(row: dict[str, Any]) -> dict[str, Any]:
    """The host before the fault."""
    address = {path: value for path, value in row["change"].items() if path.endswith(".pci.address")}
    change = {**generate.EVERY_FAULT, **address}
    return generate.patched(
        {"name": f"well-{row['of']}", "of": row["of"], "imitates": "a host that is well", "change": change}
    )


def verdicts(name: str) -> list[str]:
    if name in SILENT:
        return ["unknown", "unknown"]
    worst = {verdict for _code, verdict, _action, _value in OF_GPU.get(name, [])}
    if name == "gpu-no-permission":
        return ["ok", "unknown"]
    return ["ok", "fatal" if "fatal" in worst else "degraded" if worst else "ok"]


def step(name: str) -> dict[str, Any]:
    row = FAULTS[name]
    codes = [[reason[0] for reason in part.get(name, [])] for part in (expected.OF_NODE, OF_GPU)]
    return {
        "name": name,
        "well": well_for(row),
        "sick": generate.scenario(name),
        "reasons": codes,
        "verdicts": verdicts(name),
        "quiet": not any(codes) and name != "gpu-no-permission",
        "sticky": bool(STICKY.intersection([*codes[0], *codes[1]])),
        "opening": name in OPENING,
        # Cutting a GPU needs files for its parts.
        "devices": name == "mig-on",
    }


@pytest.fixture(scope="module")
def walked(driven_machine: str) -> dict[str, dict[str, Any]]:
    """What the agent told of every fault, by its name."""
    Role("gpu_agent", (driven_machine,)).converge(SETTINGS)
    # More often than one would want it anywhere else.
    hurry = """sudo sed -i 's/"interval_s": 1,/"interval_s": 0.3,/' /etc/baremetal-gpu/agent.json"""
    _in_machine(f"{hurry} && sudo systemctl restart baremetal-gpu-agent")
    steps = sorted((step(name) for name in FAULTS), key=lambda one: json.dumps(one["well"]))
    program = Path(__file__).with_name("agent_walk.py").read_text(encoding="utf-8")
    for path, text in (("/tmp/agent_walk.py", program), ("/tmp/agent_steps.json", json.dumps(steps))):
        _in_machine(f"cat > {path}", text)
    told = json.loads(_in_machine("sudo python3 -I /tmp/agent_walk.py < /tmp/agent_steps.json"))
    return {row["name"]: row for row in told}


def _in_machine(command: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.machines", "ssh", DEBIAN_13, "--", command],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_verdict_evidence_and_remedy(walked: dict[str, dict[str, Any]], name: str) -> None:
    told = walked[name]
    health = told["sick"]
    assert expected.agrees(health["reasons"], expected.OF_NODE.get(name, [])), health["reasons"]
    healthy, sick = health["devices"]
    assert healthy["reasons"] == []
    assert expected.agrees(sick["reasons"], OF_GPU.get(name, [])), sick["reasons"]
    assert [healthy["verdict"], sick["verdict"]] == verdicts(name)
    address = generate.scenario(name)["devices"][1]["pci"]["address"]
    assert sick["pci_address"] == address
    for reason in [*health["reasons"], *sick["reasons"]]:
        assert reason["remedy"]
        assert reason["text"]
        assert reason["evidence"]["since"] > 0
    number = {"ok": 0, "degraded": 1, "fatal": 2, "unknown": 3}
    assert f"gpu_node_health_status {number[health['verdict']]}\n" in told["metrics"]
    for reason in sick["reasons"]:
        labels = f'code="{reason["code"]}",action="{reason["action"]}"'
        assert f"{labels}}} {number[reason['verdict']]}\n" in told["metrics"]
    assert told["children"] <= 1


@pytest.mark.parametrize("name", FAULTS)
def test_the_host_is_well_again(walked: dict[str, dict[str, Any]], name: str) -> None:
    health = walked[name]["well"]
    assert health["verdict"] == "ok", health["reasons"]
    assert [gpu["verdict"] for gpu in health["devices"]] == ["ok", "ok"], health["devices"]


def test_hanging_and_crashing_calls_name_the_call(walked: dict[str, dict[str, Any]]) -> None:
    for name, asked in (("nvml-hang", "power_w"), ("nvml-crash", "temperature_c")):
        assert f"asked for {asked} of GPU 1" in walked[name]["sick"]["devices"][1]["reasons"][0]["text"]
