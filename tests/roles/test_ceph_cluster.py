# SPDX-License-Identifier: GPL-3.0-or-later
"""A Ceph cluster of three machines with loop devices for disks, and a fourth that only mounts it.

From nothing to the clients' gate, what users can do and cannot, and what the cluster stands up to.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import Play, lab, run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MACHINES = ("st1", "st2", "st3")
CLIENT = "cl1"
EVERYBODY = (*MACHINES, CLIENT)
# Numbers are listed, so the machines need not know the names.
USERS = {"alice": 2001, "bob": 2002}
HOMES: dict[str, Any] = {
    "cephfs_homes_users": [
        {"name": "alice", "uid": 2001, "gid": 2001, "size": "100M"},
        {"name": "bob", "uid": 2002, "gid": 2002, "size": "40M"},
    ],
    "cephfs_homes_shares": [{"name": "datasets", "path": "/datasets", "size": "20M"}],
}
HOME = "/home"
BY_ID = "/dev/disk/by-id/lab-"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets") / "ceph.json"


@pytest.fixture(scope="module")
def machines() -> Iterator[None]:
    """Bare machines of Debian 13, three of them with a disk each."""
    lab("up", *(word for name in EVERYBODY for word in ("--machine", f"{name}:trixie:no-gpu")))
    for name in MACHINES:
        lab("disk", name, f"{name}a")
    yield
    lab("down", *(word for name in EVERYBODY for word in ("--machine", name)))


def storage(secrets: Path, options: str = "", **variables: Any) -> Play:
    wanted = {"ceph_common_secrets_path": str(secrets), **HOMES, **variables}
    return run_playbook("storage.yml", limit=",".join(EVERYBODY), extra_vars=wanted, options=options)


@pytest.fixture(scope="module")
def cluster(machines: None, secrets: Path) -> Path:
    """The cluster; its secrets' file."""
    play = storage(secrets)
    assert play.rc == 0, play.tail()
    return secrets


def processes() -> dict[str, str]:
    return {name: ssh(name, "pgrep -a ceph- | sort") for name in EVERYBODY}


def as_user(machine: str, user: str, command: str) -> str:
    """What a command of a user says, and its exit status behind it."""
    who = f"--reuid {USERS[user]} --regid {USERS[user]} --clear-groups"
    return ssh(machine, f"sudo timeout -s KILL 120 setpriv {who} sh -c {shlex.quote(command)} 2>&1; echo rc=$?")


def ceph(words: str) -> Any:
    return json.loads(ssh("st1", f"sudo ceph {words} --format json 2>/dev/null"))


def test_check_mode_on_bare_machines_changes_nothing(machines: None, secrets: Path) -> None:
    play = storage(secrets, options="--check")
    assert play.rc == 0, play.tail()
    assert not secrets.exists()
    for name in EVERYBODY:
        assert ssh(name, "ls /etc/ceph /var/lib/ceph 2>/dev/null || true") == ""


def test_from_nothing_to_a_file_system_that_is_served(cluster: Path) -> None:
    assert cluster.stat().st_mode & 0o777 == 0o600
    status = ceph("status")
    assert status["quorum_names"] == list(MACHINES)
    assert set(status["health"]["checks"]) <= {"MON_DISK_LOW"}
    (filesystem,) = ceph("fs dump")["filesystems"]
    assert {row["state"] for row in filesystem["mdsmap"]["info"].values()} == {"up:active"}


def test_a_second_run_changes_nothing_and_restarts_nothing(cluster: Path) -> None:
    before = processes()
    play = storage(cluster)
    assert play.rc == 0, play.tail()
    assert {name: play.changed_tasks.get(name, []) for name in EVERYBODY} == {name: [] for name in EVERYBODY}
    assert processes() == before


def test_no_secret_is_readable_for_others(cluster: Path) -> None:
    keys = [*json.loads(cluster.read_text())["keys"].values(), *(row["key"] for row in ceph("auth ls")["auth_dump"])]
    for name in EVERYBODY:
        found = ssh(name, f"grep -rlF {' '.join(f'-e {key}' for key in keys)} /etc /var /tmp /home 2>/dev/null || true")
        assert found == ""


def test_a_home_is_the_same_on_every_host_and_keeps_what_was_written(cluster: Path) -> None:
    path = f"{HOME}/alice/data"
    written = as_user(CLIENT, "alice", f"dd if=/dev/urandom of={path} bs=1M count=8 conv=fsync && sha256sum {path}")
    assert written.endswith("rc=0\n")
    digest = written.splitlines()[-2]
    for name in MACHINES:
        assert as_user(name, "alice", f"sha256sum {path}") == f"{digest}\nrc=0\n"
    assert "Read-only file system" in ssh(CLIENT, "sudo touch /datasets/x 2>&1", check=False)


def test_a_quota_refuses_its_user_and_nobody_else(cluster: Path) -> None:
    assert "quota exceeded" in as_user(CLIENT, "bob", f"dd if=/dev/zero of={HOME}/bob/fill bs=1M count=80 oflag=sync")
    assert as_user(CLIENT, "alice", f"dd if=/dev/zero of={HOME}/alice/y bs=1M count=5 conv=fsync").endswith("rc=0\n")
    assert as_user(CLIENT, "bob", f"rm {HOME}/bob/fill") == "rc=0\n"


def test_another_users_home_is_out_of_reach(cluster: Path) -> None:
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


def test_clients_get_no_key_of_the_cluster_and_keep_nothing_of_the_proof(cluster: Path) -> None:
    assert ssh(CLIENT, "sudo find / -xdev -name '*admin*keyring*'") == ""
    assert "baremetal-gpu-scratch" not in json.dumps([ceph("fs subvolume ls cephfs"), ceph("auth ls")])
    for name in EVERYBODY:
        left = "/run/baremetal-gpu-cephfs-scratch /var/lib/baremetal-gpu/ceph/scratch"
        assert ssh(name, f"sudo ls {left} 2>/dev/null || true") == ""


def test_a_cluster_that_is_not_well_is_named_and_its_clients_left_alone(cluster: Path) -> None:
    more = [{**user, "size": "120M"} for user in HOMES["cephfs_homes_users"]]
    ssh("st1", "sudo ceph osd set noscrub 2>/dev/null")
    try:
        play = storage(cluster, ceph_mds_wait=10, cephfs_homes_users=more)
    finally:
        ssh("st1", "sudo ceph osd unset noscrub 2>/dev/null")
    assert "noscrub" in " ".join(play.failures["st1"])
    assert not play.changed_tasks.get(CLIENT)
    assert ceph("fs subvolume info cephfs bob --group_name homes")["bytes_quota"] == 40 << 20


def test_a_user_nobody_knows_is_named_before_anything_is_changed(cluster: Path) -> None:
    play = storage(cluster, cephfs_homes_users=[*HOMES["cephfs_homes_users"], {"name": "ghost"}])
    for name in EVERYBODY:
        assert "ghost is unknown to the host" in " ".join(play.failures[name])
        assert not play.changed_tasks.get(name)


def test_disks_that_hold_something_are_refused_with_every_byte_as_before(cluster: Path) -> None:
    lab("disk", "st1", "held", "blank", "--size", "2")
    ssh("st1", f"sudo mkfs.ext4 -q {BY_ID}held")
    before = ssh("st1", f"sudo sha256sum {BY_ID}held {BY_ID}blank")
    play = storage(cluster)
    assert "ext4" in " ".join(play.failures["st1"])
    assert "ceph_osd_wipe" in " ".join(play.failures["st1"])
    assert ssh("st1", f"sudo sha256sum {BY_ID}held {BY_ID}blank") == before


def test_clients_are_left_alone_too_where_a_monitors_host_was_refused_before(cluster: Path) -> None:
    """The disk of the test before is still on offer, so the run goes on without st1."""
    sizes = [f["bytes_quota"] for f in (ceph(f"fs subvolume info cephfs {name} --group_name homes") for name in USERS)]
    more = [{**user, "size": "150M"} for user in HOMES["cephfs_homes_users"]]
    ssh("st1", "sudo ceph osd set noscrub 2>/dev/null")
    try:
        play = storage(cluster, ceph_mds_wait=10, cephfs_homes_users=more)
    finally:
        ssh("st1", "sudo ceph osd unset noscrub 2>/dev/null")
    (said,) = play.failures[CLIENT]
    assert "nothing was mounted or changed here" in said
    assert "st1, st2, st3" in said
    for name, size in zip(USERS, sizes, strict=True):
        assert ceph(f"fs subvolume info cephfs {name} --group_name homes")["bytes_quota"] == size


def test_a_machine_whose_power_was_cut_comes_back_by_itself(cluster: Path) -> None:
    lab("power-cut", "st2")
    lab("up", "--machine", "st2")
    deadline = time.monotonic() + 180
    while not (ceph("osd stat")["num_up_osds"] == 3 and len(ceph("status")["quorum_names"]) == 3):
        assert time.monotonic() < deadline, ssh("st1", "sudo ceph -s")
        time.sleep(2)


def test_another_identity_is_refused_before_anything_is_changed(cluster: Path, tmp_path: Path) -> None:
    before = processes()
    lost = storage(tmp_path / "lost.json")
    assert "bring the file back" in " ".join(lost.failures["st1"])
    content = json.loads(cluster.read_text())
    content["fsid"] = "11111111-2222-4333-8444-555555555555"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content))
    other.chmod(0o600)
    refused = storage(other)
    for name in MACHINES:
        assert "/etc/ceph/ceph.conf belongs to the cluster" in " ".join(refused.failures[name])
    assert processes() == before
