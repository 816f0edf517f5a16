# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role gpu_mig puts on a host, and what it refuses before it touches one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import gpu_mig
from tests.unit.project.tree import load_yaml

DEFAULTS = {
    name.removeprefix("gpu_mig_"): value for name, value in load_yaml("roles/gpu_mig/defaults/main.yml").items()
}
LAYOUT = {"all": {"1g.10gb": 7}, "7": False}


def plan(**changes):
    return gpu_mig.desired({**DEFAULTS, "layout": LAYOUT, **changes}, {}, {})


def files(found):
    return {entry["path"]: entry for entry in found.desired["files"]}


def test_the_program_starts_before_whatever_hands_out_gpus_and_guards_it():
    there = files(plan())
    unit = there[gpu_mig.UNIT_FILE]["content"]
    before = next(line for line in unit.splitlines() if line.startswith("Before="))
    for name in ("slurmd", "kubelet", "docker", "containerd", "mesos-agent", "baremetal-gpu-agent"):
        assert f"{name}.service" in before
    assert "After=baremetal-gpu-device-nodes.service" in unit
    guard = there["/etc/systemd/system/slurmd.service.d/baremetal-gpu-mig.conf"]["content"]
    assert f"ExecStartPre=/usr/bin/python3 -I {gpu_mig.PROGRAM} check" in guard
    settings = json.loads(there[gpu_mig.CONFIG]["content"])
    assert (settings["layout"], settings["config"]) == (LAYOUT, "")
    assert settings["stop_units"] == DEFAULTS["stop_units"]


def test_the_unit_is_not_restarted_beside_jobs():
    (unit,) = plan().desired["units"]
    assert unit == {"name": "baremetal-gpu-mig.service", "enabled": True}


def test_an_empty_layout_takes_all_of_it_away():
    found = plan(layout={})
    assert found.problems == ()
    assert {entry["state"] for entry in found.desired["files"]} == {"absent"}
    assert set(files(found)) >= {entry["path"] for entry in plan().desired["files"] if entry.get("content")}


@pytest.mark.parametrize(
    ("changes", "subject", "said"),
    [
        ({"layout": {"all": {"seven": 1}}}, "gpu_mig_layout", "'seven' is not a profile"),
        ({"layout": {"mig-configs": {}}, "config": "all-1g"}, "gpu_mig_layout", "no configuration 'all-1g'"),
        ({"guarded_units": ["slurmd"]}, "gpu_mig_guarded_units", "not a name of a unit"),
        ({"before": ["a.service\nExecStart=/bin/sh"]}, "gpu_mig_before", "not a name of a unit"),
    ],
)
def test_what_is_refused_before_a_host_is_touched(changes, subject, said):
    found = plan(**changes)
    assert [problem.subject for problem in found.problems] == [subject]
    assert said in found.problems[0].cause
    assert found.desired == {}


def test_the_program_is_one_file_that_says_what_it_lacks(tmp_path):
    """Without a driver, and without a layout: by name, with what to do, and without a traceback."""
    program = tmp_path / "gpu-mig"
    program.write_text(files(plan())[gpu_mig.PROGRAM]["content"])
    settings = tmp_path / "mig.json"

    def run(*words):
        command = [sys.executable, "-I", str(program), *words, "--config", str(settings)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})

    missing = run("check")
    assert (missing.returncode, "Traceback" in missing.stderr) == (1, False)
    assert "gpuops up --tags mig" in missing.stderr
    settings.write_text('{"layout": {"all": {"x": 1}}, "stop_units": []}')
    assert "'x' is not a profile" in run("apply").stderr
    settings.write_text(files(plan())[gpu_mig.CONFIG]["content"])
    without = run("check")
    assert (without.returncode, "Traceback" in without.stderr) == (1, False)
    assert "NVML cannot be used" in without.stderr
