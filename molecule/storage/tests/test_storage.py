# SPDX-License-Identifier: GPL-3.0-or-later
"""What users of the homes notice, on the machines of the cluster and on one that only mounts it."""

from __future__ import annotations

import pytest

from tests.roles.ceph_site import CLIENT, EVERYBODY, HOME, SHOWN_IN_THE_LAB, STORAGE, as_user, ceph
from tests.site.plays import ssh


def test_the_cluster_is_well() -> None:
    status = ceph("status")
    assert status["quorum_names"] == list(STORAGE)
    assert set(status["health"]["checks"]) <= SHOWN_IN_THE_LAB
    assert [row["up"] for row in ceph("osd dump")["osds"]] == [1, 1, 1]


def test_a_file_written_into_a_home_is_on_every_node() -> None:
    path = f"{HOME}/alice/data"
    written = as_user(CLIENT, "alice", f"dd if=/dev/urandom of={path} bs=1M count=8 conv=fsync && sha256sum {path}")
    assert written.endswith("rc=0\n")
    digest = written.splitlines()[-2]
    for name in EVERYBODY:
        assert as_user(name, "alice", f"sha256sum {path}") == f"{digest}\nrc=0\n"


def test_another_users_home_is_out_of_reach() -> None:
    for name in EVERYBODY:
        assert "Permission denied" in as_user(name, "bob", f"ls {HOME}/alice")


def test_a_quota_refuses_more_to_its_user_and_to_nobody_else() -> None:
    assert "quota exceeded" in as_user(CLIENT, "bob", f"dd if=/dev/zero of={HOME}/bob/fill bs=1M count=80 oflag=sync")
    assert as_user(CLIENT, "alice", f"dd if=/dev/zero of={HOME}/alice/more bs=1M count=60 conv=fsync").endswith(
        "rc=0\n"
    )
    assert as_user(CLIENT, "bob", f"rm {HOME}/bob/fill") == "rc=0\n"


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_share_is_for_reading(name: str) -> None:
    assert as_user(name, "alice", "ls /datasets") == "rc=0\n"
    assert "Read-only file system" in ssh(name, "sudo touch /datasets/x 2>&1", check=False)
