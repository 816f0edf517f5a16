# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU leaves the bus of a host that the agent watches: everybody who tells of the host says that it is fatal.

The agent runs in its unit, with the protection that hides a machine's boot id from it; the GPUs are simulated.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils import allocatable
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from tests.roles.conftest import DEBIAN_13, INVENTORY, ROOT, Role, ssh
from tests.site import plays
from tests.site.plays import KERNEL_LOG

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WANTED: dict[str, Any] = {"gpu_agent_kernel_log": KERNEL_LOG, "gpu_agent_interval": 2}
SCENARIO = "/opt/baremetal-gpu-simulators/scenario.json"
RESULT = "/run/baremetal-gpu/gpu.json"


def gpuops(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuops", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )


def on_node() -> dict[str, Any]:
    return json.loads(ssh(DEBIAN_13, "gpu-agent status --json", check=False))


until = functools.partial(plays.until, seconds=60, told=on_node)


def facts(directory: Path) -> dict[str, Any]:
    """What gpu_facts tells the controller."""
    play = directory / "facts.yml"
    into = directory / "facts.json"
    tasks = [
        {"baremetal.gpu.gpu_facts": {}},
        {
            "ansible.builtin.copy": {"content": "{{ ansible_facts['gpu'] | to_json }}", "dest": str(into)},
            "delegate_to": "localhost",
            "become": False,
        },
    ]
    play.write_text(yaml.safe_dump([{"hosts": DEBIAN_13, "gather_facts": False, "become": True, "tasks": tasks}]))
    done = plays.run_playbook(play, limit=f"{DEBIAN_13},localhost")
    assert done.rc == 0, done.tail()
    return json.loads(into.read_text())


def row_of(status: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in status["nodes"] if row["name"] == DEBIAN_13)


@pytest.fixture(scope="module")
def watched(driven_machine: str) -> str:
    Role("gpu_agent", (driven_machine,)).converge(WANTED)
    until(lambda: [row["verdict"] for row in on_node()["health"]["devices"]] == ["ok", "ok"])
    return driven_machine


def test_the_agents_word_is_what_the_site_goes_by(watched: str, tmp_path: Path) -> None:
    told = facts(tmp_path)
    assert (told["health"]["source"], told["health"]["verdict"]) == ("agent", "ok"), told["health"]
    boots = ssh(DEBIAN_13, f"cat /proc/sys/kernel/random/boot_id; sudo cat {RESULT}").split("\n", 1)
    assert json.loads(boots[1])["boot_id"] == boots[0].strip()


def test_a_gpu_off_the_bus_is_fatal_for_everybody(watched: str, tmp_path: Path) -> None:
    scenario = json.loads(ssh(DEBIAN_13, f"cat {SCENARIO}"))
    gone = scenario["devices"][1]["uuid"]
    scenario["devices"][1]["state"] = "gone"
    ssh(DEBIAN_13, f"sudo tee {SCENARIO}.new >/dev/null <<'END'\n{json.dumps(scenario)}\nEND")
    ssh(DEBIAN_13, f"sudo mv {SCENARIO}.new {SCENARIO}")
    until(lambda: on_node()["health"]["verdict"] == "fatal")
    (sick,) = [row for row in on_node()["health"]["devices"] if row["verdict"] == "fatal"]
    assert sick["uuid"] == gone
    assert [reason["code"] for reason in sick["reasons"]] == ["gpu_missing"]
    metrics = ssh(DEBIAN_13, "cat /var/lib/prometheus/node-exporter/baremetal_gpu.prom")
    assert "\ngpu_node_health_status 2\n" in metrics

    told = facts(tmp_path)
    assert (told["health"]["source"], told["health"]["verdict"]) == ("agent", "fatal"), told["health"]
    assert fleet.UNHEALTHY in fleet.groups(told)
    feed = allocatable.feed(told, told["health"], keep=[row["uuid"] for row in scenario["devices"]])
    assert gone not in [gpu["uuid"] for gpu in feed["gpus"]]
    assert len(feed["gpus"]) == 1

    status = gpuops("status", "-i", str(INVENTORY), "--limit", DEBIAN_13, "--json")
    row = row_of(json.loads(status.stdout))
    assert (status.returncode, row["state"]) == (2, "fatal"), row
    assert [gpu["uuid"] for gpu in row["gpus"] if gpu["verdict"] == "fatal"] == [gone]
    doctor = gpuops("doctor", DEBIAN_13, "-i", str(INVENTORY), "--json")
    assert "gpu_fatal" in [finding["cause"] for finding in json.loads(doctor.stdout)["findings"]], doctor.stdout
    page = tmp_path / "report.html"
    gpuops("report", "-i", str(INVENTORY), "--limit", DEBIAN_13, "-o", str(page))
    assert gone in page.read_text()
    assert gone in page.with_suffix(".json").read_text()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("result['boot_id'] = '0' * 8", "another boot"),
        ("result['time'] += 3600", "in the future"),
        ("result['time'] -= 3600", "s old"),
        ("result.clear()", "another boot"),
    ],
)
def test_a_report_that_cannot_be_used_leaves_nothing_well(watched: str, tmp_path: Path, change: str, why: str) -> None:
    ssh(DEBIAN_13, "sudo systemctl stop baremetal-gpu-agent")
    program = f"import json; result = json.load(open('{RESULT}')); {change}; json.dump(result, open('{RESULT}', 'w'))"
    ssh(DEBIAN_13, f'sudo python3 -c "{program}"')
    try:
        told = facts(tmp_path)
        assert (told["health"]["source"], told["health"]["verdict"]) == ("look", "unknown")
        assert why in told["health"]["agent_error"]
        status = gpuops("status", "-i", str(INVENTORY), "--limit", DEBIAN_13, "--json")
        row = row_of(json.loads(status.stdout))
        assert (status.returncode, row["state"]) == (3, "unknown")
        assert why in row["problem"]["cause"]
    finally:
        ssh(DEBIAN_13, "sudo systemctl start baremetal-gpu-agent")
        until(lambda: not on_node().get("stale", True))
