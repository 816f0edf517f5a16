# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory mounted for a moment: what mount(8) is told, who can read the secret, and what is left."""

from __future__ import annotations

import os
import stat

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import scratch_mount
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.probe import Failed

MOUNT = {"subpath": "/volumes/_nogroup/scratch/1", "client": "scratch", "secret": "c2VjcmV0"}
SETTINGS = {
    "filesystem": "cephfs",
    "monitors": ["192.0.2.21", "192.0.2.22"],
    "fsid": "11111111-2222-4333-8444-555555555555",
    "ms_mode": "prefer-crc",
    "timeout": 20,
}


@pytest.fixture
def mount_program(tmp_path, monkeypatch):
    """A mount(8) that writes down what it was told, and does as a script says."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(script: str = "exit 0") -> None:
        program = tmp_path / "mount"
        program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/told\n{script}\n')
        program.chmod(0o755)

    install()
    return install


@pytest.mark.parametrize(
    ("kernel", "told", "content"),
    [
        (True, "-t ceph -o name=scratch,secretfile={place}/secret,conf={place}/ceph.conf,", "c2VjcmV0\n"),
        (
            False,
            "-t fuse.ceph -o ceph.id=scratch,ceph.keyring={place}/secret,",
            "[client.scratch]\n\tkey = c2VjcmV0\n",
        ),
    ],
)
def test_the_secret_is_in_a_file_for_root_alone_and_nothing_is_left(tmp_path, mount_program, kernel, told, content):
    place = tmp_path / "place"
    with scratch_mount.mounted(MOUNT, {**SETTINGS, "kernel": kernel}, str(place)) as where:
        assert os.path.isdir(where)
        secret = place / "secret"
        assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == (content, 0o600)
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert "mon_host = 192.0.2.21,192.0.2.22" in (place / "ceph.conf").read_text()
    said = (tmp_path / "told").read_text()
    assert said.startswith(told.format(place=place))
    assert MOUNT["subpath"] in said
    assert MOUNT["secret"] not in said
    assert not place.exists()


def test_what_a_cut_run_left_is_in_nobodys_way(tmp_path, mount_program):
    place = tmp_path / "place"
    (place / "mount").mkdir(parents=True)
    (place / "secret").write_text("old")
    with scratch_mount.mounted(MOUNT, {**SETTINGS, "kernel": True}, str(place)):
        assert (place / "secret").read_text() == "c2VjcmV0\n"
    assert not place.exists()


def test_files_in_a_directory_that_is_still_there_are_never_removed(tmp_path, mount_program):
    kept = tmp_path / "place" / "mount" / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_text("data")
    with (
        pytest.raises(OSError, match="not empty"),
        scratch_mount.mounted(MOUNT, {**SETTINGS, "kernel": True}, str(tmp_path / "place")),
    ):
        pass
    assert kept.read_text() == "data"


def test_a_mount_that_is_refused_says_why_and_what_to_do(tmp_path, mount_program):
    mount_program("echo 'mount error 13 = Permission denied' >&2; exit 32")
    with (
        pytest.raises(Failed) as caught,
        scratch_mount.mounted(MOUNT, {**SETTINGS, "kernel": True}, str(tmp_path / "place")),
    ):
        pass
    for part in ("ended with 32", "Permission denied", "3300", "ceph health detail"):
        assert part in str(caught.value)
    assert not (tmp_path / "place").exists()


def test_a_mount_that_hangs_is_given_up(tmp_path, mount_program):
    mount_program("exec sleep 600")
    with (
        pytest.raises(Failed, match="takes longer than 1 s"),
        scratch_mount.mounted(MOUNT, {**SETTINGS, "kernel": True, "timeout": 1}, str(tmp_path / "place")),
    ):
        pass
    assert not (tmp_path / "place").exists()


def test_a_client_in_the_background_does_not_hold_up_the_check(tmp_path, mount_program):
    mount_program(f"sleep 600 & echo $! >{tmp_path}/pid")
    with scratch_mount.mounted(MOUNT, {**SETTINGS, "kernel": False}, str(tmp_path / "place")):
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 9)


def test_work_is_done_and_its_failure_told():
    assert scratch_mount.within(20, lambda: {"sha256": "ab", "pid": os.getpid()})["pid"] != os.getpid()

    def fails():
        raise Failed("a file cannot be written")

    with pytest.raises(Failed, match=r"^a file cannot be written$"):
        scratch_mount.within(20, fails)

    def ends():
        os._exit(1)

    with pytest.raises(Failed, match="without an answer"):
        scratch_mount.within(20, ends)


def test_work_that_hangs_is_given_up():
    reading, writing = os.pipe()

    def hangs():
        os.close(writing)
        return {"read": os.read(os.pipe()[0], 1)}

    with pytest.raises(Failed, match="take longer than 1 s"):
        scratch_mount.within(1, hangs)
    os.close(writing)
    # The end of the pipe is read once the process that hung is gone.
    assert os.read(reading, 1) == b""
    os.close(reading)
