# SPDX-License-Identifier: GPL-3.0-or-later
"""A Ceph cluster of three machines with loop devices for disks, and a fourth that only mounts it.

From nothing to the clients' gate, what users can do and cannot, and what the cluster stands up to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.roles.ceph_cluster import QUESTIONS, both_ways
from tests.roles.ceph_site import (
    BY_ID,
    CLIENT,
    EVERYBODY,
    HOME,
    HOMES,
    STORAGE,
    USERS,
    Site,
    as_user,
    boot,
    ceph,
    changed,
    of_host,
    processes,
    said,
    within,
)
from tests.site.plays import lab, ssh

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def bare() -> Site:
    site = Site()
    site.bare()
    return site


def test_check_mode_on_bare_machines_changes_nothing(bare: Site) -> None:
    play = bare.run(options="--check")
    assert play.rc == 0, play.tail()
    assert not bare.secrets.exists()
    for name in EVERYBODY:
        assert ssh(name, "ls /etc/ceph /var/lib/ceph 2>/dev/null || true") == ""


def test_from_nothing_to_a_file_system_that_is_served(site: Site) -> None:
    assert site.secrets.stat().st_mode & 0o777 == 0o600
    assert ceph("status")["quorum_names"] == list(STORAGE)
    # The cluster divides and moves placement groups by itself, and each is unavailable for a moment.
    site.heals(120)
    (filesystem,) = ceph("fs dump")["filesystems"]
    assert {row["state"] for row in filesystem["mdsmap"]["info"].values()} == {"up:active"}


def test_a_second_run_changes_nothing_and_restarts_nothing(site: Site) -> None:
    before = processes()
    play = site.run()
    assert play.rc == 0, play.tail()
    assert changed(play) == {}
    assert processes() == before


def test_the_library_answers_what_the_program_answers(site: Site) -> None:
    questions = (*QUESTIONS, "fs subvolume info cephfs alice --group_name homes", "fs subvolume ls cephfs")
    answers = both_ways(STORAGE[0], [({}, words) for words in questions])
    for question, (library, program) in zip(questions, answers, strict=True):
        assert library == program, question
    assert answers[questions.index("auth ls")][0][0] == 0
    assert answers[questions.index("auth get client.nobody")][0][:2] == [
        2,
        "Error ENOENT: failed to find client.nobody in keyring",
    ]


@pytest.mark.slow
def test_who_cannot_connect_is_told_why_whichever_way_it_goes(site: Site) -> None:
    ssh(STORAGE[0], "printf '[global]\nmon_host = 127.0.0.9\n' > /tmp/unreachable.conf")
    ssh(STORAGE[0], "sudo ceph-authtool --create-keyring /tmp/other.keyring --gen-key --name client.admin")
    admin = "/etc/ceph/ceph.client.admin.keyring"
    remedies = (
        ({"conf": "/tmp/none.conf"}, "see that /tmp/none.conf is there"),
        ({"keyring": "/tmp/none.keyring"}, "see that the keyring is this cluster's"),
        ({"keyring": "/tmp/other.keyring"}, "see that the keyring is this cluster's"),
        ({"conf": "/tmp/unreachable.conf", "keyring": admin}, "this host reaches their ports 3300 and 6789"),
    )
    answers = both_ways(STORAGE[0], [({**options, "timeout": 5}, "osd dump") for options, _remedy in remedies])
    for (_options, remedy), (library, program) in zip(remedies, answers, strict=True):
        assert library[0] in (1, 13, 110), library
        assert remedy in library[2]
        assert library[2] == program[2]
    ssh(STORAGE[0], "sudo rm /tmp/unreachable.conf /tmp/other.keyring")


def test_no_secret_is_readable_for_others(site: Site) -> None:
    own = json.loads(site.secrets.read_text())["keys"].values()
    keys = [*own, *(row["key"] for row in ceph("auth ls")["auth_dump"])]
    for name in EVERYBODY:
        found = ssh(name, f"grep -rlF {' '.join(f'-e {key}' for key in keys)} /etc /var /tmp /home 2>/dev/null || true")
        assert found == ""


def test_a_home_is_the_same_on_every_host_and_keeps_what_was_written(site: Site) -> None:
    path = f"{HOME}/alice/data"
    written = as_user(CLIENT, "alice", f"dd if=/dev/urandom of={path} bs=1M count=8 conv=fsync && sha256sum {path}")
    assert written.endswith("rc=0\n")
    digest = written.splitlines()[-2]
    for name in STORAGE:
        assert as_user(name, "alice", f"sha256sum {path}") == f"{digest}\nrc=0\n"
    assert "Read-only file system" in ssh(CLIENT, "sudo touch /datasets/x 2>&1", check=False)


def test_a_quota_refuses_its_user_and_nobody_else(site: Site) -> None:
    assert "quota exceeded" in as_user(CLIENT, "bob", f"dd if=/dev/zero of={HOME}/bob/fill bs=1M count=80 oflag=sync")
    assert as_user(CLIENT, "alice", f"dd if=/dev/zero of={HOME}/alice/y bs=1M count=5 conv=fsync").endswith("rc=0\n")
    assert as_user(CLIENT, "bob", f"rm {HOME}/bob/fill") == "rc=0\n"


def test_another_users_home_is_out_of_reach(site: Site) -> None:
    assert "Permission denied" in as_user(CLIENT, "bob", f"ls {HOME}/alice")
    path = ceph("fs subvolume info cephfs alice --group_name homes")["path"]
    conf = "--conf /etc/ceph/cephfs/ceph.conf"
    key = f"{conf} --id home.bob --keyring /etc/ceph/cephfs/homes/client.home.bob.keyring"
    for foreign in (path, "/"):
        said = ssh(
            CLIENT, f"sudo timeout -s KILL 60 ceph-fuse {key} --client_mountpoint={foreign} /mnt 2>&1; echo rc=$?"
        )
        assert "Operation not permitted" in said
        assert "rc=0" not in said
    for space, refused in (("fsvolumens_alice", True), ("fsvolumens_bob", False)):
        said = ssh("st1", f"sudo timeout -s KILL 60 rados {key} -p cephfs_data --namespace {space} ls 2>&1; echo rc=$?")
        assert ("Operation not permitted" in said) is refused
        assert ("rc=0" in said) is not refused


def test_clients_get_no_key_of_the_cluster_and_keep_nothing_of_the_proof(site: Site) -> None:
    assert ssh(CLIENT, "sudo find / -xdev -name '*admin*keyring*'") == ""
    assert "baremetal-gpu-scratch" not in json.dumps([ceph("fs subvolume ls cephfs"), ceph("auth ls")])
    for name in EVERYBODY:
        left = "/run/baremetal-gpu-cephfs-scratch /var/lib/baremetal-gpu/ceph/scratch"
        assert ssh(name, f"sudo ls {left} 2>/dev/null || true") == ""


@pytest.mark.slow
def test_a_cluster_that_is_not_well_is_named_and_its_clients_left_alone(site: Site) -> None:
    more = [{**user, "size": "120M"} for user in HOMES["cephfs_homes_users"]]
    ssh("st1", "sudo ceph osd set noscrub 2>/dev/null")
    try:
        play = site.run(ceph_mds_ready_timeout=10, cephfs_homes_users=more)
    finally:
        ssh("st1", "sudo ceph osd unset noscrub 2>/dev/null")
    assert "noscrub" in " ".join(play.failures["st1"])
    assert not play.changed_tasks.get(CLIENT)
    assert ceph("fs subvolume info cephfs bob --group_name homes")["bytes_quota"] == 40 << 20


@pytest.mark.slow
def test_a_user_nobody_knows_is_named_before_anything_is_changed(site: Site) -> None:
    play = site.run(cephfs_homes_users=[*HOMES["cephfs_homes_users"], {"name": "ghost"}])
    for name in EVERYBODY:
        assert "ghost is unknown to the host" in " ".join(play.failures[name])
        assert not play.changed_tasks.get(name)


@pytest.mark.slow
def test_copies_that_have_no_place_are_named_before_anything_is_changed(site: Site) -> None:
    play = site.run(ceph_osd_devices=of_host({name: site.devices[name] for name in STORAGE[:2]}))
    # It is one host that says so, for all.
    assert "everything is to have 3 copies" in said(play)
    assert "hosts with devices in ceph_osd_devices of the group ceph_osds are 2 in number" in said(play)
    assert changed(play) == {}


FOREIGN = "11111111-2222-4333-8444-555555555555"
# What a disk is marked with, and by which words it is refused.
HELD = {
    "ext4": ("mkfs.ext4 -q {disk}", "ext4 at"),
    "xfs": ("mkfs.xfs -q {disk}", "xfs at"),
    "lvm": ("pvcreate -qq {disk}", "LVM2_member at"),
    "foreign": (
        "sh -c 'mkdir -p /tmp/osd && rm -rf /tmp/osd/* && ln -s {disk} /tmp/osd/block && "
        "ceph-osd --mkfs --id 7 --osd-objectstore bluestore --osd-data /tmp/osd --osd-uuid $(uuidgen) "
        f"--no-mon-config --fsid {FOREIGN} >/dev/null 2>&1'",
        f"osd.7 of another cluster ({FOREIGN})",
    ),
}


def with_held_disks(site: Site) -> str:
    """The disks of every machine as a run is given them, on the first one those that hold something too."""
    held = [f"{BY_ID}{kind}" for kind in (*HELD, "blank")]
    return of_host({**site.devices, "st1": [*site.devices["st1"], *held]})


def test_disks_that_hold_something_are_refused_with_every_byte_as_before(site: Site) -> None:
    lab("disk", "st1", *HELD, "blank", "--size", "1")
    ssh("st1", "sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install xfsprogs lvm2 >/dev/null 2>&1")
    for kind, (mark, _said) in HELD.items():
        ssh("st1", f"sudo {mark.format(disk=BY_ID + kind)}")
    every_byte = f"sudo sha256sum {' '.join(BY_ID + kind for kind in (*HELD, 'blank'))}"
    before = ssh("st1", every_byte)
    play = site.run(limit="st1", ceph_osd_devices=with_held_disks(site))
    refused = " ".join(play.failures["st1"])
    for kind, (_mark, words) in HELD.items():
        assert f"{BY_ID}{kind}: it holds {words}" in refused
    assert f"{BY_ID}blank:" not in refused
    assert "ceph_osd_wipe" in refused
    assert ssh("st1", every_byte) == before


@pytest.mark.slow
def test_clients_are_left_alone_too_where_a_monitors_host_was_refused_before(site: Site) -> None:
    sizes = [f["bytes_quota"] for f in (ceph(f"fs subvolume info cephfs {name} --group_name homes") for name in USERS)]
    more = [{**user, "size": "150M"} for user in HOMES["cephfs_homes_users"]]
    ssh("st1", "sudo ceph osd set noscrub 2>/dev/null")
    try:
        # Its disks are refused, so the run goes on without st1.
        play = site.run(ceph_mds_ready_timeout=10, cephfs_homes_users=more, ceph_osd_devices=with_held_disks(site))
    finally:
        ssh("st1", "sudo ceph osd unset noscrub 2>/dev/null")
    (said,) = play.failures[CLIENT]
    assert "nothing was mounted or changed here" in said
    assert "st1, st2, st3" in said
    for name, size in zip(USERS, sizes, strict=True):
        assert ceph(f"fs subvolume info cephfs {name} --group_name homes")["bytes_quota"] == size


@pytest.mark.slow
def test_a_daemon_that_dies_is_told_of_and_a_mgr_that_starts_is_not(site: Site) -> None:
    ssh("st2", "sudo systemctl kill --signal=SEGV ceph-mds@st2")
    # What a daemon leaves is whole when the file done is there. The service looks every ten minutes; here it is asked.
    within(300, "the MDS left nothing", lambda: ssh("st2", "sudo find /var/lib/ceph/crash -name done") != "")
    said = ssh("st2", "sudo timeout -s KILL 300 ceph-crash -d 0 2>&1", check=False)
    told = [row["entity_name"] for row in ceph("crash ls")]
    ssh("st1", "sudo ceph crash archive-all")
    assert told == ["mds.st2"], said
    for name in STORAGE:
        assert ssh(name, "sudo ls /var/lib/ceph/crash") == "posted\n"
    site.heals()


@pytest.mark.slow
def test_a_machine_whose_power_was_cut_comes_back_by_itself(site: Site) -> None:
    lab("power-cut", "st2")
    boot("st2")
    site.heals()


@pytest.mark.slow
def test_another_identity_is_refused_before_anything_is_changed(site: Site, tmp_path: Path) -> None:
    before = processes()
    lost = site.run(ceph_common_secrets_path=str(tmp_path / "lost.json"))
    assert "bring the file back" in " ".join(lost.failures["st1"])
    content = json.loads(site.secrets.read_text())
    content["fsid"] = FOREIGN
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content))
    other.chmod(0o600)
    refused = site.run(ceph_common_secrets_path=str(other))
    for name in STORAGE:
        assert "/etc/ceph/ceph.conf belongs to the cluster" in " ".join(refused.failures[name])
    assert processes() == before
