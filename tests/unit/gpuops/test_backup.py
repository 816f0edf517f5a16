# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops backup and gpuops restore-head, as they are called, on hosts that all are this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import archive
from gpuops.backup import site_archive
from tests.unit.gpuops.conftest import DEAD, HERE, Bench

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def site(bench: Bench) -> Bench:
    """A site with secrets, and a host that alone knows a directory."""
    heads(bench, head1={})
    (bench.path / "only").mkdir()
    (bench.path / "only" / "job_state").write_text("all jobs")
    (bench.path / ".secrets").mkdir(mode=0o700)
    (bench.path / ".secrets" / "slurm.json").write_text(json.dumps({"munge": SECRET}))
    return bench


def heads(bench: Bench, **hosts: dict[str, object]) -> None:
    also = {"backup_also": [str(bench.path / "only")]}
    rows = {name: {**HERE, **also, **variables} for name, variables in hosts.items()}
    bench.inventory.write_text(json.dumps({"backup_hosts": {"hosts": rows}}))


def archives(bench: Bench, place: str = ".gpuops/backups") -> list[Path]:
    return sorted((bench.path / place).iterdir()) if (bench.path / place).exists() else []


def test_one_file_has_what_controller_and_hosts_know_and_no_output_has_a_secret(site: Bench, tmp_path: Path) -> None:
    done = site.call("backup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "head1: also: 1 files, 8 bytes" in done.stdout
    (path,) = archives(site)
    assert path.stat().st_mode & 0o777 == 0o600
    inner = tmp_path / "inner"
    inner.mkdir()
    assert site_archive.read(path, inner).hosts == ("head1",)
    rows = archive.read(str(inner / "controller.tar.gz")).parts[0].rows
    told = {str(Path(row.path).relative_to(site.path)) for row in rows if row.kind == archive.FILE}
    assert told >= {"hosts.json", "ansible.cfg", ".secrets/slurm.json"}
    assert not [name for name in told if "backups" in name or "runs" in name]
    written = [file.read_text() for file in (site.path / ".gpuops" / "runs").rglob("*") if file.is_file()]
    assert not [text for text in [done.stdout, done.stderr, *written] if SECRET in text]

    listed = site.call("backup", "--list")
    assert listed.returncode == 0
    assert str(path) in listed.stdout
    assert listed.stdout.strip().endswith("head1")


def test_check_writes_nothing(site: Bench) -> None:
    done = site.call("backup", "--check", "--to", "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "head1: also" in done.stdout
    assert str(site.path / ".secrets") in done.stdout
    assert not (site.path / "kept").exists()


def test_without_a_host_there_is_no_archive_and_the_earlier_ones_stay(site: Bench) -> None:
    site.call("backup")
    before = archives(site)
    heads(site, head1={}, head2=dict(DEAD, ansible_connection="ssh"))
    done = site.call("backup", "--keep", "1")
    assert done.returncode == 4, done.stdout
    assert "no archive was written; the earlier ones stay" in done.stderr
    assert archives(site) == before


def test_the_last_ones_stay_and_one_that_is_not_whole_is_told(site: Bench) -> None:
    kept = site.path / "kept"
    kept.mkdir()
    for day in (1, 2, 3):
        (kept / f"site-2026110{day}-023000.tar").write_text("not whole")
    done = site.call("backup", "--to", "kept", "--keep", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [path.name for path in archives(site, "kept")]
    assert names[0] == "site-20261103-023000.tar"
    assert len(names) == 2
    listed = site.call("backup", "--to", "kept", "--list")
    assert listed.returncode == 2
    assert "NOT WHOLE" in listed.stdout


def test_the_controllers_files_come_back_once_and_over_no_other_file(site: Bench) -> None:
    site.call("backup")
    (path,) = archives(site)
    done = site.call("restore-head", str(path), "--controller", "new")
    assert done.returncode == 0, done.stdout + done.stderr
    new = site.path / "new"
    assert (new / ".secrets" / "slurm.json").read_text() == (site.path / ".secrets" / "slurm.json").read_text()
    assert (new / ".secrets" / "slurm.json").stat().st_mode & 0o077 == 0
    assert "0 files written" in site.call("restore-head", str(path), "--controller", "new").stdout
    (new / ".secrets" / "slurm.json").write_text("{}")
    (new / "hosts.json").unlink()
    refused = site.call("restore-head", str(path), "--controller", "new")
    assert refused.returncode == 64
    assert "is another file" in refused.stderr
    assert not (new / "hosts.json").exists()


def test_what_stands_against_a_restore_is_told_before_anything_changes(site: Bench) -> None:
    site.call("backup")
    (path,) = archives(site)
    (site.path / "only" / "job_state").write_text("newer")
    refused = site.call("restore-head", str(path), "--host", "head1")
    assert refused.returncode == 2
    assert "has also of its own" in " ".join(refused.stdout.split())
    assert (site.path / "only" / "job_state").read_text() == "newer"
    # As a bare machine of another name.
    os.unlink(site.path / "only" / "job_state")
    heads(site, head2={})
    missing = site.call("restore-head", str(path), "--host", "head2", "--check")
    assert missing.returncode == 64
    assert "nothing of head2, only of the hosts head1" in missing.stderr
    would = site.call("restore-head", str(path), "--host", "head2", "--from", "head1", "--check")
    assert would.returncode == 0, would.stdout + would.stderr
    assert "head2: would be put back: also" in would.stdout
    assert not (site.path / "only" / "job_state").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["x.tar"], "--host"),
        (["x.tar", "--host", "nobody"], "nobody"),
        (["x.tar", "--host", "head1"], "x.tar"),
        (["bad.tar", "--host", "head1"], "not a complete archive"),
    ],
)
def test_what_cannot_be_meant_is_refused(site: Bench, words: list[str], told: str) -> None:
    (site.path / "bad.tar").write_bytes(b"x" * 4096)
    done = site.call("restore-head", *words)
    assert done.returncode == 64
    assert told in done.stderr
