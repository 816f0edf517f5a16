# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops on the lab's machines, as an operator calls it: from `init` over a run with trouble to `status` and `report`.

The tests of this file run in order on one lab. The site is not the lab's own: `gpuops init` makes it, with storage, so
that there are secrets that nobody is to read afterwards.
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

MACHINES = ("gpu1", "gpu2", "cpu1")
# apt is told not to install what the driver's packages need: preflight cannot know, and the stage fails.
PIN = "/etc/apt/preferences.d/forbidden"
# What is special about the lab's machines, as its own inventory has it.
LAB = ROOT / "inventories" / "lab" / "group_vars"


class Site:
    """A site of its own for the lab's machines, and gpuops called in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def call(self, *words: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "gpuops", *words, where=where)

    def run(self, *words: str | Path, where: Path | None = None) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return subprocess.run(
            [str(word) for word in words],
            cwd=where or self.directory,
            env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )


@pytest.fixture(scope="module")
def made(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, subprocess.CompletedProcess[str]]:
    """What `gpuops init` made of the lab's machines, and said."""
    # Its GPUs are nouveau's, and in use: only a reboot frees them.
    lab("scenario", "gpu1", "nouveau-in-use")
    lab("power-cut", "gpu1")
    lab("up")
    lab("disk", "cpu1", "first", "second", "--size", "8")
    parent = tmp_path_factory.mktemp("operator")
    variables = json.loads(lab("inventory"))["_meta"]["hostvars"]
    common = {"ansible_user", "ansible_become", "ansible_host", "ansible_python_interpreter", "ceph_osd_devices"}
    hosts = {
        name: {
            "roles": ["cpu", "storage"] if name == "cpu1" else ["gpu"],
            "address": variables[name]["ansible_host"],
            "variables": {
                # Nothing sets the clock of the lab's machines but their host.
                "gpu_preflight_refuse": [],
                **{key: value for key, value in variables[name].items() if key not in common},
            },
        }
        for name in MACHINES
    }
    hosts["cpu1"]["disks"] = variables["cpu1"]["ceph_osd_devices"]
    special: dict[str, object] = {"cuda_versions": []}
    for path in sorted(LAB.glob("*.yml")):
        special |= yaml.safe_load(path.read_text())
    for name in ("gpu1", "gpu2"):
        hosts[name]["variables"] |= {key: value for key, value in special.items() if not key.startswith("ceph_")}
    hosts["cpu1"]["variables"] |= special
    answers = parent / "answers.yml"
    user = variables["gpu1"]["ansible_user"]
    answers.write_text(yaml.safe_dump({"user": user, "reboot": "allowed", "hosts": hosts}))
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


def test_plan_changes_nothing_and_names_what_would_be_done(site: Site) -> None:
    before = {machine: lab("changes", machine) for machine in MACHINES}
    done = site.call("plan")
    assert done.returncode == 0, done.stdout + done.stderr
    plans = dict(re.findall(r"^(\w+): .*?\n(.*?)(?=^\S|\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    assert "REBOOT   perhaps: nouveau is bound to " in plans["gpu1"]
    assert re.search(r"install +driver: install package nvidia-kernel-dkms 550", plans["gpu1"])
    assert re.search(r"install +driver: install package nvidia-tesla-470-kernel-dkms 470", plans["gpu2"])
    assert re.search(r"disk +/dev/disk/by-id/lab-first becomes an OSD \(it is empty\)", plans["cpu1"])
    assert "nothing was changed. 3 of 3 hosts would change, 1 host may reboot\n" in done.stdout
    assert {machine: lab("changes", machine) for machine in MACHINES} == before


@pytest.fixture(scope="module")
def trouble(site: Site) -> tuple[Site, subprocess.CompletedProcess[str]]:
    """A run with one host that is off, one that cannot install its driver, and one that has to reboot."""
    ssh("gpu2", f"printf 'Package: dkms\\nPin: release *\\nPin-Priority: -1\\n' | sudo tee {PIN}")
    lab("power-cut", "cpu1")
    boot = ssh("gpu1", "cat /proc/1/stat").split()[21]
    done = site.call("up")
    assert ssh("gpu1", "cat /proc/1/stat").split()[21] != boot, "gpu1 was to reboot"
    return site, done


def test_every_host_in_trouble_is_told_and_goes_as_far_as_it_can(
    trouble: tuple[Site, subprocess.CompletedProcess[str]],
) -> None:
    site, done = trouble
    assert done.returncode == 6, done.stdout + done.stderr
    assert re.search(r"^✗ cpu1 unreachable in preflight after ", done.stdout, re.MULTILINE)
    assert "  remedy: see that `ssh cpu1` gets in" in done.stdout
    assert "✗ gpu2 failed in driver" in done.stdout
    # Every stage of its own is done there; the storage, which it is to mount, is on the host that is off.
    assert "✗ gpu1 unreachable in storage" in done.stdout
    told = " ".join(done.stdout.split())
    assert "cause: cpu1, where this has to be done for gpu1, cannot be reached: " in told
    assert re.search(r"^3 hosts in .*: 0 done, 1 failed, 2 unreachable$", done.stdout, re.MULTILINE)
    assert re.search(r"`gpuops up --resume` runs (\w+, ){2}\w+ again", done.stdout)
    assert "nvidia_drm" not in ssh("gpu2", "cat /proc/modules")
    assert ssh("gpu1", "nvidia-smi -L").count("A100") == 2
    doctor = site.call("doctor", "cpu1")
    assert doctor.returncode == 11, doctor.stdout + doctor.stderr


@pytest.fixture(scope="module")
def finished(trouble: tuple[Site, subprocess.CompletedProcess[str]]) -> Site:
    """What was in the way is mended, and the run resumed."""
    site, _done = trouble
    ssh("gpu2", f"sudo rm {PIN}")
    lab("up")
    done = site.call("up", "--resume", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["hosts"] == dict.fromkeys(MACHINES, "done")
    return site


def test_a_finished_site_is_left_alone(finished: Site) -> None:
    done = finished.call("up")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"3 hosts in .*: 3 done \(nothing changed\)", done.stdout)
    done = finished.call("plan", "--tags", "containers")
    assert done.returncode == 0
    assert "nothing to do" in done.stdout


def test_a_plan_still_fails_where_nothing_would_change_and_the_host_is_not_well(finished: Site) -> None:
    done = finished.call("plan", "--limit", "gpu1", "--", "-e", "gpu_verify_expected=3")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "gpu1" in done.stdout


def test_status_doctor_and_report(finished: Site) -> None:
    status = json.loads(finished.call("status", "--json").stdout)
    nodes = {node["name"]: node for node in status["nodes"]}
    assert {name: node["state"] for name, node in nodes.items()} == {"gpu1": "ok", "gpu2": "ok", "cpu1": "no_gpu"}
    assert len(nodes["gpu1"]["gpus"]) == 2
    assert status["storage"]["osds"]["up"] == 2
    doctor = json.loads(finished.call("doctor", "gpu1", "--json").stdout)
    assert "driver and GPUs" in doctor["checked"]
    done = finished.call("report")
    assert done.returncode == 0, done.stderr
    report = json.loads((finished.directory / "report.json").read_text())
    assert report["run"]["hosts"] == {"gpu1": "done", "gpu2": "done", "cpu1": "done"}
    assert {host["system"] for host in report["hosts"]} == {"Debian 13", "Debian 12"}
    (gpu1,) = [host for host in report["hosts"] if host["name"] == "gpu1"]
    assert [gpu["verification"]["ok"] for gpu in gpu1["gpus"]] == [True, True]


def test_drift_is_planned_through_all_stages_and_mended_by_one_run(finished: Site) -> None:
    """What is proven later is proven of the host as it will be: a plan announces that, and does not fail over it."""
    cdi = "/etc/cdi/nvidia.json"
    ssh("gpu1", f"ls {cdi} && sudo rm {cdi} && sudo chmod 0600 /dev/nvidia0")
    ssh("gpu1", "sudo systemctl disable --now baremetal-gpu-agent")
    done = finished.call("plan", "--limit", "gpu1")
    told = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not be planned" not in told
    assert re.search(r"change driver: Create the device nodes that the loaded driver needs", told), told
    assert re.search(r"change containers: Write the CDI specification of the GPUs", told), told
    assert re.search(r"change agent: .*baremetal-gpu-agent", told), told
    assert re.search(r"prove verify: every GPU is verified", told), told
    assert ssh("gpu1", f"test -e {cdi} || echo gone").strip() == "gone"
    done = finished.call("up", "--limit", "gpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    done = finished.call("plan", "--limit", "gpu1")
    assert done.returncode == 0
    assert "gpu1: nothing to do" in done.stdout


def test_no_generated_secret_is_in_what_was_kept_or_told(finished: Site) -> None:
    """The values of the vault and of .secrets, and the password of the vault, in every other file below the site."""
    vault = finished.directory / "inventory" / "group_vars" / "all" / "vault.yml"
    viewed = finished.run(Path(sys.executable).parent / "ansible-vault", "view", vault)
    assert viewed.returncode == 0, viewed.stderr
    keys = set(re.findall(r"AQ[A-Za-z0-9+/]{36}==", viewed.stdout))
    assert len(keys) >= 5, "the vault was to have the keys of the storage"
    keys.add((finished.directory / "inventory" / ".secrets" / "vault-password").read_text().strip())
    looked = [
        path
        for path in finished.directory.rglob("*")
        if path.is_file() and ".secrets" not in path.parts and path != vault
    ]
    assert {"output.log", "events.jsonl", "report.html", "report.xml"} <= {path.name for path in looked}
    for path in looked:
        text = path.read_text(errors="replace")
        assert not [key for key in keys if key in text], f"a secret is in {path}"
