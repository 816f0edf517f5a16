# SPDX-License-Identifier: GPL-3.0-or-later
"""The head of a cluster of Slurm dies while a job runs, a bare machine takes its place, and the job goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.site.plays import lab, run_gpuops, services, ssh, until
from tests.site.test_slurm import CONTROLLER, NODE, Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]


class Site(Cluster):
    def called(self, *words: str, status: int = 0) -> str:
        """What a command of gpuops prints in all."""
        done = run_gpuops(self.inventory, *words, status=status)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Site:
    found = Site(tmp_path_factory.mktemp("backup"))
    groups = json.loads((found.inventory.parent / "slurm.yml").read_text())
    groups["backup_hosts"] = {"hosts": {CONTROLLER: {}}}
    (found.inventory.parent / "slurm.yml").write_text(json.dumps(groups))
    found.converge()
    return found


def state(job: str) -> str:
    return ssh(CONTROLLER, f"squeue --noheader --jobs={job} --Format=State:20 2>&1", check=False).strip()


def test_a_job_goes_on_when_its_head_is_put_back_onto_a_bare_machine(site: Site, tmp_path: Path) -> None:
    job = ssh(CONTROLLER, "sbatch --parsable --mem=50 --output=/dev/null --wrap 'sleep 3600'").strip()
    waiting = ssh(CONTROLLER, "sbatch --parsable --hold --output=/dev/null --wrap hostname").strip()
    until(lambda: state(job) == "RUNNING", 60, lambda: state(job))
    began = ssh(NODE, "pgrep -x -f 'sleep 3600'").strip()

    kept = tmp_path / "kept"
    site.called("backup", "--to", str(kept), "--check")
    assert not kept.exists()
    site.called("backup", "--to", str(kept))
    (archive,) = kept.glob("site-*.tar")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert CONTROLLER in site.called("backup", "--to", str(kept), "--list")
    restore = ("restore-head", str(archive), "--host", CONTROLLER)

    # One that lives is refused, and not touched.
    before = services(CONTROLLER)
    assert "of its own" in site.called(*restore, status=2)
    assert services(CONTROLLER) == before

    lab("reset", CONTROLLER)
    assert "would be put back: slurm" in site.called(*restore, "--check")
    assert "/var/lib/slurm" not in lab("changes", CONTROLLER)
    site.called(*restore)
    site.converge()

    until(lambda: state(job) == "RUNNING", 120, lambda: state(job))
    assert ssh(NODE, "pgrep -x -f 'sleep 3600'").strip() == began
    assert state(waiting) == "PENDING"
    # The accounting knows it from before.
    assert "RUNNING" in ssh(CONTROLLER, f"sacct --noheader --parsable2 --format=State --jobs={job}")

    before = services(CONTROLLER)
    assert "nothing changed" in site.called(*restore)
    again = site.run()
    assert (again.rc, again.changed(CONTROLLER)) == (0, 0), again.tail()
    assert services(CONTROLLER) == before
    assert ssh(CONTROLLER, f"scancel {job} {waiting}; srun hostname").strip() == NODE
