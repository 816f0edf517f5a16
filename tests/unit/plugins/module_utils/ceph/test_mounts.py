# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts of CephFS as units, who gets a home, and the proof from a client's side."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mounts as ceph_mounts
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import probe as ceph_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import users as ceph_users

SETTINGS = {
    "kernel": False,
    "automount": True,
    "set": "homes",
    "filesystem": "cephfs",
    "monitors": ["10.0.0.11", "10.0.0.12"],
    "fsid": "",
    "ms_mode": "secure",
    "timeout": 60,
    "wait": 180,
    "package": "ceph-fuse",
}
MOUNT = {"path": "/srv/alice", "subpath": "/volumes/homes/alice/1", "client": "home.alice", "secret": "A" * 38 + "=="}


def files(document):
    return {item["path"]: item for item in document["files"]}


def test_what_earlier_runs_wrote_for_a_set_is_found_and_nothing_else(tmp_path):
    def write(path, content):
        there = tmp_path / path[1:]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(content)

    for mount_set, mount in (("homes", MOUNT), ("homes2", {**MOUNT, "path": "/srv/other", "client": "other"})):
        for item in files(ceph_mounts.document([mount], {**SETTINGS, "set": mount_set}, [])).values():
            if "content" in item:
                write(item["path"], item["content"])
    write("/etc/systemd/system/data.mount", "# Not Written by baremetal.gpu.cephfs_client for homes.\n[Mount]\n")
    (tmp_path / "etc/systemd/system/gone.mount").symlink_to("/dev/null")
    assert ceph_mounts.written("homes", root=str(tmp_path)) == [
        "/etc/ceph/cephfs/homes/client.home.alice.keyring",
        "/etc/systemd/system/srv-alice.automount",
        "/etc/systemd/system/srv-alice.mount",
    ]
    assert ceph_mounts.written("none", root=str(tmp_path)) == []


@pytest.mark.parametrize(
    "path", ["/srv/alice", "/srv/with-dash", "/srv/.hidden/x", "/srv/a b", "/srv/ü", "/.x", "/a:b_c.d"]
)
@pytest.mark.parametrize("kind", ["mount", "automount"])
def test_names_of_units_are_those_of_systemd(path, kind):
    program = shutil.which("systemd-escape")
    if not program:
        pytest.skip("there is no systemd-escape on this machine to compare with")
    done = subprocess.run([program, "--path", f"--suffix={kind}", path], capture_output=True, text=True, check=True)
    assert ceph_mounts.unit_name(path, kind) == done.stdout.strip()


def test_a_secret_is_in_a_file_of_its_own_and_nowhere_else():
    for kernel in (False, True):
        document = ceph_mounts.document([MOUNT], {**SETTINGS, "kernel": kernel}, [])
        holders = [item for item in document["files"] if MOUNT["secret"] in item.get("content", "")]
        assert [(item["mode"], item["sensitive"]) for item in holders] == [("0600", True)]
        assert holders[0]["path"] in files(document)["/etc/systemd/system/srv-alice.mount"]["content"]


def test_the_automount_is_started_and_the_mount_is_not_wanted_at_boot():
    document = ceph_mounts.document([MOUNT], SETTINGS, [])
    assert document["units"] == [{"name": "srv-alice.automount", "enabled": True, "state": "started"}]
    assert "WantedBy" not in files(document)["/etc/systemd/system/srv-alice.mount"]["content"]


def test_without_autofs_the_mount_itself_is_wanted_at_boot():
    document = ceph_mounts.document([MOUNT], {**SETTINGS, "automount": False}, [])
    assert document["units"] == [{"name": "srv-alice.mount", "enabled": True, "state": "started"}]
    text = files(document)["/etc/systemd/system/srv-alice.mount"]["content"]
    assert "WantedBy=remote-fs.target" in text
    assert "_netdev" in text


def test_whoever_looks_at_a_path_waits_for_a_cluster_that_is_starting():
    """And systemd neither ends the wait too early nor gives the path up after a few failures."""
    for kernel in (False, True):
        document = ceph_mounts.document([MOUNT], {**SETTINGS, "kernel": kernel}, [])
        lines = files(document)["/etc/systemd/system/srv-alice.mount"]["content"].splitlines()
        assert {"Type=baremetal-gpu-cephfs", "TimeoutSec=240", "StartLimitIntervalSec=0"} <= set(lines)
        assert lines.index("StartLimitIntervalSec=0") < lines.index("[Mount]")
        assert any(line.startswith("Options=baremetal_gpu_wait=180,") for line in lines)
        helper = files(document)["/usr/sbin/mount.baremetal-gpu-cephfs"]
        assert (helper["mode"], helper["owner"]) == ("0755", "root")


MOUNT_PROGRAM = """#!/bin/sh
echo "$*" >> {root}/asked
tries=$(wc -l < {root}/asked)
[ "$tries" -gt {refused} ] && {{ sleep 30 & exit 0; }}
echo "{said}" >&2
exit 32
"""
STARTING = "mount error 113 = No route to host"


@pytest.fixture
def mount(tmp_path):
    """Runs the helper as mount(8) does, with a mount that refuses it a few times."""
    helper = tmp_path / "mount.baremetal-gpu-cephfs"
    helper.write_text(ceph_mounts.HELPER_TEXT)
    helper.chmod(0o755)
    asked = tmp_path / "asked"

    def run(what, refused, said, wait):
        asked.write_text("")
        (tmp_path / "mount").write_text(MOUNT_PROGRAM.format(root=tmp_path, refused=refused, said=said))
        (tmp_path / "mount").chmod(0o755)
        options = f"rw,baremetal_gpu_wait={wait},name=home.alice,_netdev"
        command = [helper, what, "/srv/alice", "-n", "-o", options]
        environment = {"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=25, check=False)
        assert not list(tmp_path.glob("cephfs-mount.*"))
        return done.returncode, done.stderr, asked.read_text().splitlines()

    return run


@pytest.mark.parametrize(("what", "kind"), [(":/volumes/homes/alice/1", "ceph"), ("none", "fuse.ceph")])
def test_a_mount_is_tried_again_while_the_cluster_is_starting(mount, what, kind):
    code, said, asked = mount(what, refused=2, said=STARTING, wait=20)
    assert (code, said) == (0, "")
    assert asked == [f"-t {kind} -o rw,name=home.alice,_netdev {what} /srv/alice"] * 3


def test_the_wait_ends_and_the_last_reason_is_told(mount):
    # The helper counts whole seconds, and one of them is over before a busy machine has tried once.
    code, said, asked = mount("none", refused=99, said="ceph mount failed with (110) Connection timed out", wait=5)
    assert (code, said) == (32, "ceph mount failed with (110) Connection timed out\n")
    assert len(asked) >= 2


@pytest.mark.parametrize(
    "said",
    [
        "mount error 13 = Permission denied",
        "mount error 2 = No such file or directory",
        "mount error 1 = Operation not permitted",
        "ceph-fuse[812]: ceph mount failed with (13) Permission denied",
        "mount: /srv/alice: unknown filesystem type 'ceph'.",
    ],
)
def test_what_waiting_does_not_mend_is_told_at_once(mount, said):
    code, told, asked = mount("none", refused=99, said=said, wait=20)
    assert (code, told, len(asked)) == (32, f"{said}\n", 1)


def test_read_only_and_kernel_options():
    text = ceph_mounts.mount_unit({**MOUNT, "read_only": True}, {**SETTINGS, "kernel": True})
    options = (
        next(line for line in text.splitlines() if line.startswith("Options=")).removeprefix("Options=").split(",")
    )
    assert {"ro", "nosuid", "nodev", "_netdev", "ms_mode=secure", "mds_namespace=cephfs"} <= set(options)
    assert "What=:/volumes/homes/alice/1" in text.splitlines()


def test_what_is_listed_no_longer_goes_and_the_automount_before_the_mount():
    unit, secret = "/etc/systemd/system/srv-bob", "/etc/ceph/cephfs/homes/client.home.bob.keyring"
    ours = [f"{unit}.mount", secret, f"{unit}.automount", "/etc/systemd/system/srv-alice.mount"]
    document = ceph_mounts.document([MOUNT], SETTINGS, ours)
    assert [item["name"] for item in document["units"] if not item["enabled"]] == ["srv-bob.automount", "srv-bob.mount"]
    gone = {path for path, item in files(document).items() if item.get("state") == "absent"}
    assert gone == {f"{unit}.mount", f"{unit}.automount", secret}


def test_everything_that_is_wrong_is_told_at_once():
    mounts = [
        {**MOUNT, "path": "/usr"},
        {**MOUNT, "path": "relative"},
        {**MOUNT, "secret": ""},
        {**MOUNT, "path": "/srv/x", "subpath": "/a;rm"},
        {**MOUNT, "path": "/srv/x"},
    ]
    with pytest.raises(ValueError, match="'/usr'") as caught:
        ceph_mounts.document(mounts, {**SETTINGS, "monitors": []}, [])
    for part in (
        "'relative'",
        "no secret for client.home.alice",
        "signs of the shell",
        "asked for twice",
        "no monitors",
    ):
        assert part in str(caught.value)


def test_no_mounts_need_nothing():
    assert ceph_mounts.document([], {**SETTINGS, "monitors": []}, []) == {"packages": [], "files": [], "units": []}


def test_a_proof_without_mounts_needs_a_client_and_monitors():
    document = ceph_mounts.document([], SETTINGS, [], scratch=True)
    assert document == {"packages": [{"name": SETTINGS["package"]}], "files": [], "units": []}
    with pytest.raises(ValueError, match="no monitors are named"):
        ceph_mounts.document([], {**SETTINGS, "monitors": []}, [], scratch=True)


def test_a_directory_without_a_quota_can_still_prove_reading_and_writing(tmp_path):
    found = ceph_probe.prove(str(tmp_path), "host", 0, 1)
    assert list(found) == ["sha256"]
    assert list(tmp_path.iterdir()) == []


PASSWD = ["alice:x:2001:2100:Alice:/:/bin/sh", "bob:x:2002:2002::/:/bin/sh", "root:x:0:0::/root:/bin/sh"]


def test_users_are_listed_or_members_of_groups():
    found = ceph_users.homes([{"name": "alice", "size": "1T"}], PASSWD, ["staff:x:9:alice,bob", "empty:x:8:"], "50G")
    assert [(home["name"], home["uid"], home["gid"], home["size"]) for home in found] == [
        ("alice", 2001, 2100, "1T"),
        ("bob", 2002, 2002, "50G"),
    ]


def test_numbers_may_be_listed_for_who_is_unknown_and_must_agree_otherwise():
    assert ceph_users.homes([{"name": "new", "uid": 7, "gid": 8}], PASSWD, [], "1G")[0]["uid"] == 7
    with pytest.raises(ValueError, match="listed with uid 9, and the host knows it by 2001") as caught:
        ceph_users.homes([{"name": "alice", "uid": 9}, {"name": "ghost"}], PASSWD, [], "1G")
    assert "ghost is unknown" in str(caught.value)


def test_who_has_left_need_not_be_known():
    (home,) = ceph_users.homes([{"name": "gone", "state": "archived"}], PASSWD, [], "1G")
    assert (home["state"], "uid" in home) == ("archived", False)


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
