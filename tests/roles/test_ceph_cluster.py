# SPDX-License-Identifier: GPL-3.0-or-later
"""A Ceph cluster of three machines with loop devices for disks: from nothing to the gate, and what it stands up to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import Play, lab, run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MACHINES = ("st1", "st2", "st3")
BY_ID = "/dev/disk/by-id/lab-"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets") / "ceph.json"


@pytest.fixture(scope="module")
def machines() -> Iterator[None]:
    """Three bare machines of Debian 13 with a disk each."""
    lab("up", *(word for name in MACHINES for word in ("--machine", f"{name}:trixie:no-gpu")))
    for name in MACHINES:
        lab("disk", name, f"{name}a")
    yield
    lab("down", *(word for name in MACHINES for word in ("--machine", name)))


def storage(secrets: Path, options: str = "", **variables: Any) -> Play:
    wanted = {"ceph_common_secrets_path": str(secrets), **variables}
    return run_playbook("storage.yml", limit=",".join(MACHINES), extra_vars=wanted, options=options)


@pytest.fixture(scope="module")
def cluster(machines: None, secrets: Path) -> Path:
    """The cluster; its secrets' file."""
    play = storage(secrets)
    assert play.rc == 0, play.tail()
    return secrets


def processes() -> dict[str, str]:
    return {name: ssh(name, "pgrep -a ceph- | sort") for name in MACHINES}


def ceph(words: str) -> Any:
    return json.loads(ssh("st1", f"sudo ceph {words} --format json 2>/dev/null"))


def test_check_mode_on_bare_machines_changes_nothing(machines: None, secrets: Path) -> None:
    play = storage(secrets, options="--check")
    assert play.rc == 0, play.tail()
    assert not secrets.exists()
    for name in MACHINES:
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
    assert {name: play.changed_tasks.get(name, []) for name in MACHINES} == {name: [] for name in MACHINES}
    assert processes() == before


def test_no_secret_is_readable_for_others(cluster: Path) -> None:
    keys = json.loads(cluster.read_text())["keys"].values()
    for name in MACHINES:
        found = ssh(name, f"grep -rlF {' '.join(f'-e {key}' for key in keys)} /etc /var /tmp /home 2>/dev/null || true")
        assert found == ""


def test_disks_that_hold_something_are_refused_with_every_byte_as_before(cluster: Path) -> None:
    lab("disk", "st1", "held", "blank", "--size", "2")
    ssh("st1", f"sudo mkfs.ext4 -q {BY_ID}held")
    before = ssh("st1", f"sudo sha256sum {BY_ID}held {BY_ID}blank")
    play = storage(cluster)
    assert "ext4" in " ".join(play.failures["st1"])
    assert "ceph_osd_wipe" in " ".join(play.failures["st1"])
    assert ssh("st1", f"sudo sha256sum {BY_ID}held {BY_ID}blank") == before


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
