# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a mount from a client's side, and files with secrets."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import probe as ceph_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file


def test_a_directory_without_a_quota_can_still_prove_reading_and_writing(tmp_path):
    found = ceph_probe.prove(str(tmp_path), "host", 0, 1)
    assert list(found) == ["sha256"]
    assert list(tmp_path.iterdir()) == []


def test_mounts_are_read_and_a_mount_on_top_counts(tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text(
        "36 35 0:1 / /srv/alice rw - fuse.ceph-fuse ceph-fuse rw\n"
        "37 35 0:2 / /srv/with\\040blank rw shared:1 - ceph :/ rw\n"
        "38 35 0:3 / /srv/bob rw - ceph :/ rw\n"
        "39 35 0:4 / /srv/bob rw - tmpfs tmpfs rw\n"
    )
    assert ceph_probe.mounted(str(table)) == {"/srv/alice": "fuse.ceph-fuse", "/srv/with blank": "ceph"}


def test_what_does_not_answer_is_named(tmp_path):
    assert ceph_probe.unanswered([str(tmp_path)], 20) == []
    (problem,) = ceph_probe.unanswered([str(tmp_path), str(tmp_path / "missing")], 20)
    assert problem.startswith(f"{tmp_path / 'missing'} does not answer: ")
    assert "No such file" in problem


def test_a_directory_without_a_quota_is_found_out_and_left_clean(tmp_path):
    with pytest.raises(ceph_probe.Failed, match="no quota refused any"):
        ceph_probe.prove(str(tmp_path), "host", 3 << 20, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_quota_that_refuses_is_the_proof(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        synced.append(descriptor)
        # The first is of what is kept; the quota refuses the third block behind it.
        if len(synced) == 4:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "urandom", lambda size: b"x" * size)
    found = ceph_probe.prove(str(tmp_path), "host", 1 << 30, 1)
    assert found == {
        "sha256": hashlib.sha256(b"x" * ceph_probe.WRITTEN).hexdigest(),
        "refused_after": 3 * ceph_probe.BLOCK,
    }
    assert list(tmp_path.iterdir()) == []


def test_another_error_than_the_quotas_is_no_proof(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        synced.append(descriptor)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ceph_probe.Failed, match="No space left"):
        ceph_probe.prove(str(tmp_path), "host", 1 << 30, 1)


def test_a_file_with_a_secret(tmp_path):
    path = str(tmp_path / "deep" / "key")
    owner = (os.geteuid(), os.getegid(), 0o600)
    assert secret_file.differences(path, "secret\n", *owner) == [f"write {path}"]
    secret_file.write(path, "secret\n", *owner)
    assert secret_file.differences(path, "secret\n", *owner) == []
    assert secret_file.differences(path, "other\n", *owner) == [f"write {path} anew"]
    os.chmod(path, 0o644)
    assert secret_file.differences(path, "secret\n", *owner) == [f"set the mode of {path} from 0644 to 0600"]
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["key"]


def test_a_link_in_the_place_of_a_secret_is_replaced_and_not_followed(tmp_path):
    target, path = tmp_path / "target", tmp_path / "key"
    target.write_text("theirs")
    path.symlink_to(target)
    owner = (os.geteuid(), os.getegid(), 0o600)
    assert secret_file.differences(str(path), "secret\n", *owner) == [f"put a file in the place of {path}"]
    secret_file.write(str(path), "secret\n", *owner)
    assert (target.read_text(), path.is_symlink(), path.read_text()) == ("theirs", False, "secret\n")
