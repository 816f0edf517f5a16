# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops on the lab's machines, as an operator calls it: from `init` over a run with trouble to `status` and `report`.

The tests of this file run in order on one lab. The driver stage is left out, since it takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.site.plays import ROOT, lab, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# apt is told that docker's package must not be installed: preflight cannot know, and the stage fails.
PIN = "/etc/apt/preferences.d/forbidden"


class Site:
    """A site of its own for the lab's machines, and gpuops called in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def call(self, *words: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return subprocess.run(
            [sys.executable, "-m", "gpuops", *words],
            cwd=where or self.directory,
            env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )


@pytest.fixture(scope="module")
def made(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, subprocess.CompletedProcess[str]]:
    """What `gpuops init` made of the lab's machines, and said."""
    parent = tmp_path_factory.mktemp("operator")
    variables = json.loads(lab("inventory"))["_meta"]["hostvars"]
    common = {"ansible_user", "ansible_become", "ansible_host", "ansible_python_interpreter"}
    hosts = {
        name: {
            "role": "cpu" if name == "cpu1" else "gpu",
            "address": variables[name]["ansible_host"],
            "variables": {key: value for key, value in variables[name].items() if key not in common},
        }
        for name in ("gpu1", "gpu2", "cpu1")
    }
    answers = parent / "answers.yml"
    answers.write_text(yaml.safe_dump({"user": variables["gpu1"]["ansible_user"], "hosts": hosts}))
    site = Site(parent / "mysite")
    return site, site.call("init", "mysite", "--answers", "answers.yml", where=parent)


@pytest.fixture(scope="module")
def site(made: tuple[Site, subprocess.CompletedProcess[str]]) -> Site:
    assert made[1].returncode == 0, made[1].stdout + made[1].stderr
    return made[0]


def test_init_says_what_is_in_the_machines_and_sorts_them(
    made: tuple[Site, subprocess.CompletedProcess[str]],
) -> None:
    site, done = made
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^gpu1 +Debian 13.*2x A100 SXM4 40GB$", done.stdout, re.MULTILINE)
    assert re.search(r"^gpu2 +Debian 12.*1x Tesla K20c$", done.stdout, re.MULTILINE)
    variables = site.directory / "inventory" / "group_vars"
    assert yaml.safe_load((variables / "gpu_nodes_a100_sxm4_40gb.yml").read_text()) == {"gpu_verify_expected": 2}
    assert (variables / "gpu_nodes_tesla_k20c.yml").exists()


def test_plan_changes_nothing_and_names_what_would_be_installed(site: Site) -> None:
    before = lab("changes", "cpu1")
    done = site.call("plan", "--tags", "containers", "--limit", "cpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"install +containers: install package docker", done.stdout)
    assert "nothing was changed. 1 of 1 hosts would change" in done.stdout
    assert lab("changes", "cpu1") == before


def test_a_run_with_trouble_is_told_and_resumed(site: Site) -> None:
    ssh("gpu2", f"printf 'Package: docker*\\nPin: release *\\nPin-Priority: -1\\n' | sudo tee {PIN}")
    lab("power-cut", "cpu1")
    done = site.call("up", "--tags", "containers")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "✗ cpu1 unreachable" in done.stdout
    assert "✗ gpu2 failed in containers" in done.stdout
    assert re.search(r"3 hosts in .*: 1 done \(1 changed\), 1 failed, 1 unreachable", done.stdout)
    assert "`gpuops up --resume` runs" in done.stdout
    assert ssh("gpu1", "systemctl is-active docker").strip() == "active"

    doctor = site.call("doctor", "cpu1")
    assert doctor.returncode == 11, doctor.stdout + doctor.stderr

    ssh("gpu2", f"sudo rm {PIN}")
    lab("up")
    done = site.call("up", "--resume", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["hosts"] == {"gpu2": "done", "cpu1": "done"}


def test_a_finished_site_is_left_alone(site: Site) -> None:
    done = site.call("up", "--tags", "containers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"3 hosts in .*: 3 done \(nothing changed\)", done.stdout)
    done = site.call("plan", "--tags", "containers")
    assert done.returncode == 0
    assert re.search(r"the last run took \d+", done.stdout)


def test_status_doctor_and_report(site: Site) -> None:
    status = json.loads(site.call("status", "--json").stdout)
    nodes = {node["name"]: node for node in status["nodes"]}
    assert nodes["cpu1"]["state"] == "no_gpu"
    # There are cards, and no driver yet to ask about them.
    assert nodes["gpu1"]["state"] == "unknown"
    doctor = json.loads(site.call("doctor", "gpu1", "--json").stdout)
    assert "driver and cards" in doctor["checked"]
    done = site.call("report")
    assert done.returncode == 0, done.stderr
    report = json.loads((site.directory / "report.json").read_text())
    assert report["run"]["hosts"] == {"gpu1": "done", "gpu2": "done", "cpu1": "done"}
    assert {host["system"] for host in report["hosts"]} == {"debian-13", "debian-12"}
