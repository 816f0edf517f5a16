# SPDX-License-Identifier: GPL-3.0-or-later
"""The head of a cluster of Slurm dies while a job runs, a bare machine takes its place, and the job goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site.plays import ROOT, lab, services, ssh, until
from tests.site.test_slurm import CONTROLLER, NODE, Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]


class Site(Cluster):
    def gpuops_status(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", words[0], *words[1:], "-i", str(self.inventory)],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("backup"))
    groups = json.loads((found.inventory.parent / "slurm.yml").read_text())
    groups["backup_hosts"] = {"hosts": {CONTROLLER: {}}}
    (found.inventory.parent / "slurm.yml").write_text(json.dumps(groups))
    found.converge()
    yield found


def state(job: str) -> str:
    return ssh(CONTROLLER, f"squeue --noheader --jobs={job} --Format=State:20 2>&1", check=False).strip()


def test_a_job_goes_on_when_its_head_is_put_back_onto_a_bare_machine(site: Site, tmp_path: Path) -> None:
    job = ssh(CONTROLLER, "sbatch --parsable --mem=50 --output=/dev/null --wrap 'sleep 3600'").strip()
    waiting = ssh(CONTROLLER, "sbatch --parsable --hold --output=/dev/null --wrap hostname").strip()
    until(lambda: state(job) == "RUNNING", 60, lambda: state(job))
    began = ssh(NODE, "pgrep -x -f 'sleep 3600'").strip()

    kept = tmp_path / "kept"
    status, told = site.gpuops_status("backup", "--to", str(kept), "--check")
    assert status == 0 and not kept.exists(), told
    status, told = site.gpuops_status("backup", "--to", str(kept))
    assert status == 0, told
    (archive,) = kept.glob("site-*.tar")
    assert archive.stat().st_mode & 0o777 == 0o600
    status, told = site.gpuops_status("backup", "--to", str(kept), "--list")
    assert status == 0 and CONTROLLER in told, told

    # One that lives is refused, and not touched.
    before = services(CONTROLLER)
    status, told = site.gpuops_status("restore-head", str(archive), "--host", CONTROLLER)
    assert status == 2 and "of its own" in told, told
    assert services(CONTROLLER) == before

    lab("reset", CONTROLLER)
    status, told = site.gpuops_status("restore-head", str(archive), "--host", CONTROLLER, "--check")
    assert status == 0 and "would be put back: slurm" in told, told
    assert "/var/lib/slurm" not in lab("changes", CONTROLLER)
    status, told = site.gpuops_status("restore-head", str(archive), "--host", CONTROLLER)
    assert status == 0, told
    site.converge()

    until(lambda: state(job) == "RUNNING", 120, lambda: state(job))
    assert ssh(NODE, "pgrep -x -f 'sleep 3600'").strip() == began
    assert state(waiting) == "PENDING"
    # The accounting knows it from before.
    assert "RUNNING" in ssh(CONTROLLER, f"sacct --noheader --parsable2 --format=State --jobs={job}")

    before = services(CONTROLLER)
    status, told = site.gpuops_status("restore-head", str(archive), "--host", CONTROLLER)
    assert status == 0 and "nothing changed" in told, told
    again = site.run()
    assert again.rc == 0 and not again.changed(CONTROLLER), again.tail()
    assert services(CONTROLLER) == before
    assert ssh(CONTROLLER, f"scancel {job} {waiting}; srun hostname").strip() == NODE
