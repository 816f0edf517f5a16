# SPDX-License-Identifier: GPL-3.0-or-later
"""The state directory of slurmctld as a host sees it. The mounts are written by hand, in the kernel's form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state_directory

MOUNTS = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:45 / /shared rw,relatime shared:20 - autofs systemd-1 rw,fd=51
41 40 0:50 / /shared rw,relatime shared:21 - nfs4 store:/export/slurm rw,vers=4.2
42 22 0:51 / /with\040blank rw,relatime - fuse.glusterfs store:/volume rw
""".strip()


@pytest.mark.parametrize(
    ("path", "mount", "kind", "source"),
    [
        ("/var/lib/slurm/slurmctld", "/", "ext4", "/dev/vda1"),
        ("/shared/slurmctld", "/shared", "nfs4", "store:/export/slurm"),
        ("/shared", "/shared", "nfs4", "store:/export/slurm"),
        ("/shared2", "/", "ext4", "/dev/vda1"),
        ("/with blank/state", "/with blank", "fuse.glusterfs", "store:/volume"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_and_last_mount(
    path: str, mount: str, kind: str, source: str
) -> None:
    assert state_directory.mount_of(path, MOUNTS) == {"mount": mount, "type": kind, "source": source}


class Host:
    """A host whose slurm.conf names one directory, and which is to have another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running = False
        self.old, self.new = root / "var/old", root / "shared/new"
        self.old.mkdir(parents=True)
        (root / "shared").mkdir()
        (root / "etc/slurm").mkdir(parents=True)
        (root / "etc/slurm/slurm.conf").write_text("ClusterName=c\nStateSaveLocation=/var/old\n")

    def save(self, directory: Path, when: int) -> None:
        directory.mkdir(exist_ok=True)
        for name in state_directory.STATE_FILES:
            (directory / name).write_text("state")
            os.utime(directory / name, (when, when))

    def look(self, path: str = "/shared/new") -> dict[str, Any]:
        def call(_argv: Any) -> tuple[int, str]:
            return (0, "active") if self.running else (3, "inactive")

        return state_directory.read(path, str(self.root), call)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_directory_that_is_not_there_yet_is_known_by_the_one_above_it(host: Host) -> None:
    found = host.look("/shared/not/yet")
    assert (found["nearest"], found["inode"]) == ("/shared", (host.root / "shared").stat().st_ino)
    assert not found["error"]


def test_state_in_another_directory_is_found_until_it_was_copied(host: Host) -> None:
    assert host.look()["elsewhere"] == ""
    host.save(host.old, 1000)
    assert (host.look()["elsewhere"], host.look()["copied"]) == ("/var/old", False)
    host.save(host.new, 1000)
    assert host.look()["copied"]
    # One that was started there since then has saved again.
    host.save(host.new, 2000)
    assert host.look()["copied"]
    assert host.look("/var/old")["elsewhere"] == ""


def test_a_copy_that_is_older_or_lacks_a_file_is_none(host: Host) -> None:
    host.save(host.old, 1000)
    host.save(host.new, 900)
    assert not host.look()["copied"]
    host.save(host.new, 1000)
    (host.new / "node_state").unlink()
    assert not host.look()["copied"]


def test_the_heartbeat_of_a_primary_controller_is_seen(host: Host) -> None:
    host.new.mkdir()
    assert host.look()["heartbeat"] is False
    (host.new / "heartbeat").write_text("1")
    assert host.look()["heartbeat"] is True


def test_whether_slurmctld_runs_is_told(host: Host) -> None:
    assert host.look()["running"] is False
    host.running = True
    assert host.look()["running"] is True


def test_a_file_system_that_does_not_answer_is_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_given: Any) -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(state_directory, "_read", hang)
    assert host.look()["error"]


def statvfs(free_mib: int, inodes: int = 1000, known: int = 2000) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, 1 << 20, 0, free_mib << 8, known, 0, inodes, 0, 255))


@pytest.mark.parametrize(
    ("there", "count"),
    [
        (statvfs(64), 0),
        (statvfs(63), 1),
        (statvfs(4096, inodes=0), 1),
        # btrfs counts none.
        (statvfs(4096, inodes=0, known=0), 0),
    ],
)
def test_a_full_state_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: os.statvfs_result, count: int
) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("ClusterName=slurm\nStateSaveLocation=/shared/state\n")
    monkeypatch.setattr(os, "statvfs", lambda _path: there)
    found = state_directory.problems(str(tmp_path))
    assert [problem.code for problem in found] == ["state_directory_full"] * count
    assert all("/shared/state" in problem.cause for problem in found)


def test_a_host_without_state_has_no_full_directory(tmp_path: Path) -> None:
    assert state_directory.problems(str(tmp_path)) == []
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("StateSaveLocation=/shared/state\n")
    assert state_directory.problems(str(tmp_path)) == []
