# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts of CephFS as units, and the program that mounts them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mounts as ceph_mounts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import mount_units
from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("cephfs_client"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("cephfs_client", case)


SETTINGS = {
    "kernel": False,
    "automount": True,
    "set": "homes",
    "filesystem": "cephfs",
    "monitors": ["10.0.0.11", "10.0.0.12"],
    "fsid": "",
    "ms_mode": "secure",
    "timeout": 60,
    "ready_timeout": 180,
}
MOUNT = {"path": "/srv/alice", "subpath": "/volumes/homes/alice/1", "client": "home.alice", "secret": "A" * 38 + "=="}


def files(document):
    return {item["path"]: item for item in document["files"]}


def plan(mounts, settings, written=(), scratch=False):
    """The plan for what a client is to mount, with the settings that follow from the variables and the host."""
    params = {
        **settings,
        "mounts": mounts,
        "method": "kernel" if settings["kernel"] else "fuse",
        "automount": "yes" if settings["automount"] else "no",
        "scratch": {"subpath": "/scratch", "client": "scratch", "secret": "x"} if scratch else {},
    }
    host = {"kernel": "6.12.48", "kernel_client": True, "automount": True, "written": list(written)}
    return desired(params, "cephfs_client", host)


def document(mounts, settings, written=(), scratch=False):
    made = plan(mounts, settings, written, scratch)
    assert made["problems"] == []
    return made["desired"]


def problems(mounts, settings, scratch=False):
    made = plan(mounts, settings, scratch=scratch)
    assert made["desired"] == {}
    return [str(Problem(**problem)) for problem in made["problems"]]


def test_what_earlier_runs_wrote_for_a_set_is_found_and_nothing_else(tmp_path):
    def write(path, content):
        there = tmp_path / path[1:]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(content)

    for mount_set, mount in (("homes", MOUNT), ("homes2", {**MOUNT, "path": "/srv/other", "client": "other"})):
        for item in files(document([mount], {**SETTINGS, "set": mount_set}, [])).values():
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
    assert mount_units.unit_name(path, kind) == done.stdout.strip()


def test_a_secret_is_in_a_file_of_its_own_and_nowhere_else():
    for kernel in (False, True):
        made = document([MOUNT], {**SETTINGS, "kernel": kernel}, [])
        holders = [item for item in made["files"] if MOUNT["secret"] in item.get("content", "")]
        assert [(item["mode"], item["sensitive"]) for item in holders] == [("0600", True)]
        assert holders[0]["path"] in files(made)["/etc/systemd/system/srv-alice.mount"]["content"]


def test_the_automount_is_started_and_the_mount_is_not_wanted_at_boot():
    made = document([MOUNT], SETTINGS, [])
    assert made["units"] == [{"name": "srv-alice.automount", "enabled": True, "state": "started"}]
    assert "WantedBy" not in files(made)["/etc/systemd/system/srv-alice.mount"]["content"]


def test_without_autofs_the_mount_itself_is_wanted_at_boot():
    made = document([MOUNT], {**SETTINGS, "automount": False}, [])
    assert made["units"] == [{"name": "srv-alice.mount", "enabled": True, "state": "started"}]
    text = files(made)["/etc/systemd/system/srv-alice.mount"]["content"]
    assert "WantedBy=remote-fs.target" in text
    assert "_netdev" in text


def test_whoever_looks_at_a_path_waits_for_a_cluster_that_is_starting():
    """And systemd neither ends the wait too early nor gives the path up after a few failures."""
    for kernel in (False, True):
        made = document([MOUNT], {**SETTINGS, "kernel": kernel}, [])
        lines = files(made)["/etc/systemd/system/srv-alice.mount"]["content"].splitlines()
        assert {"Type=baremetal-gpu-cephfs", "TimeoutSec=240", "StartLimitIntervalSec=0"} <= set(lines)
        assert lines.index("StartLimitIntervalSec=0") < lines.index("[Mount]")
        assert any(line.startswith("Options=baremetal_gpu_wait=180,") for line in lines)
        helper = files(made)["/usr/sbin/mount.baremetal-gpu-cephfs"]
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
    helper.write_text(mount_units.HELPER_TEXT)
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
    text = mount_units.mount_unit({**MOUNT, "read_only": True}, {**SETTINGS, "kernel": True})
    options = (
        next(line for line in text.splitlines() if line.startswith("Options=")).removeprefix("Options=").split(",")
    )
    assert {"ro", "nosuid", "nodev", "_netdev", "ms_mode=secure", "mds_namespace=cephfs"} <= set(options)
    assert "What=:/volumes/homes/alice/1" in text.splitlines()


def test_what_is_listed_no_longer_goes_and_the_automount_before_the_mount():
    unit, secret = "/etc/systemd/system/srv-bob", "/etc/ceph/cephfs/homes/client.home.bob.keyring"
    ours = [f"{unit}.mount", secret, f"{unit}.automount", "/etc/systemd/system/srv-alice.mount"]
    made = document([MOUNT], SETTINGS, ours)
    assert [item["name"] for item in made["units"] if not item["enabled"]] == ["srv-bob.automount", "srv-bob.mount"]
    gone = {path for path, item in files(made).items() if item.get("state") == "absent"}
    assert gone == {f"{unit}.mount", f"{unit}.automount", secret}


def test_everything_that_is_wrong_is_listed_at_once():
    mounts = [
        {**MOUNT, "path": "/usr"},
        {**MOUNT, "path": "relative"},
        {**MOUNT, "secret": ""},
        {**MOUNT, "path": "/srv/x", "subpath": "/a;rm"},
        {**MOUNT, "path": "/srv/x"},
    ]
    text = "; ".join(problems(mounts, {**SETTINGS, "monitors": []}))
    for part in (
        "'/usr'",
        "'relative'",
        "no secret for client.home.alice",
        "signs of the shell",
        "listed twice",
        "no monitors",
    ):
        assert part in text


def test_no_mounts_need_nothing():
    assert document([], {**SETTINGS, "monitors": []}, []) == {"packages": [], "files": [], "units": []}


def test_a_proof_without_mounts_needs_a_client_and_monitors():
    made = document([], SETTINGS, [], scratch=True)
    assert made == {"packages": [{"name": "ceph-fuse"}], "files": [], "units": []}
    (problem,) = problems([], {**SETTINGS, "monitors": []}, scratch=True)
    assert "no monitors are named" in problem
