# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a machine of the lab, as root: breaks its simulated GPUs in one way after the other under the running agent,
and tells what the agent published of each. Knows nothing of the agent but its unit, its files and its command.

    agent_walk.py < STEPS

STEPS is JSON, a list of {name, well, sick, reasons, verdicts, sticky, quiet, opening, devices}. `well` and `sick` are
scenarios of the simulators. `reasons` are the codes to wait for, as [[of the host], [of the second GPU]], and
`verdicts` those of the GPUs; whether they come with the right evidence is for the reader of the answer to judge.
`sticky` faults are cleared by the operator's command, the others have to end by themselves; of the `quiet` ones
nothing is to be seen. `opening` shows when NVML is opened, and `devices` needs other device files.

The answer is JSON, a list of {name, sick, well, error, metrics, children, seconds}; `sick` and `well` are the reports.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIMULATORS = Path("/usr/lib/baremetal-gpu-simulators")
RESULT = Path("/run/baremetal-gpu/gpu.json")
METRICS = Path("/var/lib/prometheus/node-exporter/baremetal_gpu.prom")
UNIT = "baremetal-gpu-agent.service"
DEVICE_NODES = "baremetal-gpu-device-nodes.service"
VERDICTS = ("ok", "degraded", "fatal", "unknown")
# More than any check of the test's policy needs in a row.
QUIET_LOOKS = 6
PATIENCE_S = 90.0


def run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def result() -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    except FileNotFoundError:
        told = {"time": 0.0, "agent": {"probe_time": None}, "health": {"verdict": None, "reasons": [], "devices": []}}
    return told


def until(wanted: Callable[[dict[str, Any]], bool], patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """The first result that is as wanted, or the last before patience ends."""
    end = time.monotonic() + patience_s
    while True:
        told = result()
        if wanted(told) or time.monotonic() > end:
            return told
        time.sleep(0.05)


def metrics(verdict: str) -> str:
    """The metrics that go with a result; they are written right after it."""
    line = f"gpu_node_health_status {VERDICTS.index(verdict)}\n"
    end = time.monotonic() + PATIENCE_S
    while line not in (text := METRICS.read_text(encoding="utf-8")) and time.monotonic() < end:
        time.sleep(0.05)
    return text


def codes(part: dict[str, Any]) -> list[str]:
    return sorted(reason["code"] for reason in part["reasons"])


def is_well(told: dict[str, Any]) -> bool:
    devices = told["health"]["devices"]
    return told["health"]["verdict"] == "ok" and [gpu["verdict"] for gpu in devices] == ["ok", "ok"]


def shows(told: dict[str, Any], reasons: list[list[str]]) -> bool:
    health = told["health"]
    gpus = health["devices"]
    return codes(health) == sorted(reasons[0]) and len(gpus) == 2 and codes(gpus[1]) == sorted(reasons[1])


def take(scenario: dict[str, Any]) -> None:
    path = SIMULATORS / "scenario.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(scenario), encoding="utf-8")
    fresh.replace(path)
    run(str(SIMULATORS / "kernel.py"), "show")


def make_device_files() -> None:
    """What nvidia-modprobe does on a real host when a GPU comes or is cut."""
    # GPUs come and go here more often than systemd starts one unit.
    run("systemctl", "reset-failed", DEVICE_NODES)
    run("systemctl", "restart", DEVICE_NODES)


def begin_anew(scenario: dict[str, Any]) -> None:
    """Another host altogether."""
    run("systemctl", "stop", UNIT)
    run("systemctl", "reset-failed", UNIT)
    for path in glob.glob("/var/lib/baremetal-gpu/agent/*"):
        os.unlink(path)
    RESULT.unlink(missing_ok=True)
    take(scenario)
    make_device_files()
    run("systemctl", "start", UNIT)


def children() -> int:
    """Processes of the unit beside the agent itself."""
    group = run("systemctl", "show", "-p", "ControlGroup", "--value", UNIT).strip()
    for place in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/systemd"):
        path = Path(f"{place}{group}/cgroup.procs")
        if path.exists():
            return len(path.read_text(encoding="ascii").split()) - 1
    raise SystemExit(f"no control group {group}")


def looks(number: int) -> None:
    for _look in range(number):
        before = result()["agent"]["probe_time"]
        until(lambda told, before=before: told["agent"]["probe_time"] != before)


def walk(step: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    take(step["sick"])
    if step["devices"]:
        make_device_files()
    if step["opening"]:
        # A driver that cannot be opened does not matter to who has it open.
        run("gpu-agent", "look")
    if step["quiet"]:
        looks(QUIET_LOOKS)
        sick = result()
    else:
        sick = until(lambda told: shows(told, step["reasons"]) and step["verdicts"] == verdicts(told))
    found = {
        "name": step["name"],
        "sick": sick["health"],
        "error": sick["agent"]["probe_error"],
        "metrics": metrics(sick["health"]["verdict"]),
        "children": children(),
    }
    take(step["well"])
    if step["sticky"]:
        if not shows(sick, step["reasons"]):
            raise SystemExit(f"{step['name']}: the agent told something else: {json.dumps(sick)[:6000]}")
        run("gpu-agent", "clear")
    elif step["quiet"]:
        looks(1)
    else:
        # NVML is opened anew for it, which it would be by itself after a minute.
        run("gpu-agent", "look")
    well = until(is_well)
    return {**found, "well": well["health"], "seconds": round(time.monotonic() - began, 1)}


def verdicts(told: dict[str, Any]) -> list[str]:
    return [gpu["verdict"] for gpu in told["health"]["devices"]]


def main() -> None:
    run("systemctl", "stop", "baremetal-gpu-simulators-scenario.path")
    before: dict[str, Any] = {}
    seen: set[str] = set()
    answers = []
    for step in json.load(sys.stdin):
        # A fault that is back on the same GPU asks for more than the first time.
        if step["well"] != before or seen.intersection(step["reasons"][1]):
            begin_anew(step["well"])
            before, seen = step["well"], set()
            told = until(is_well)
            if not is_well(told):
                raise SystemExit(f"{step['name']}: not well before the fault: {json.dumps(told['health'])}")
        seen.update(step["reasons"][1])
        answers.append(walk(step))
    run("systemctl", "start", "baremetal-gpu-simulators-scenario.path")
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
