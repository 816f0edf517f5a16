# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of each role of the storage, read by Ansible, give its plan."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.unit.plugins.plugin_utils.desired import ceph_roles
from tests.unit.plugins.plugin_utils.desired.ceph_roles import DEBIAN_12, DEBIAN_13, ROCKY_9, UBUNTU, Case

STOR1, STOR2, _STOR3, NODE1 = ceph_roles.HOSTS


def read_by_slurp(text: str) -> dict[str, str]:
    return {"content": base64.b64encode(text.encode()).decode()}


HOMES = {
    name: {"path": f"/volumes/homes/{name}/{number}", "client": f"home.{name}"}
    for number, name in enumerate(("alice", "bob", "carol"), 1)
}
# By role: the name of what is recorded, and the variables that it was recorded with.
CASES: dict[str, tuple[str, Case]] = {
    "ceph_common": (
        "options_and_place_and_fewer_copies",
        (
            STOR1,
            UBUNTU,
            {
                "ceph_common_options": {
                    "global": {"osd_pool_default_size": 3, "x": 1},
                    "osd": {"osd_memory_target": 4294967296},
                },
                "ceph_common_crush_location": "root=default rack=r1 host=stor1",
                "ceph_mds_pool_size": 2,
                "ceph_mds_pool_min_size": 1,
                "ceph_mds_failure_domain": "osd",
            },
        ),
    ),
    "ceph_mon": ("by_default", (STOR1, DEBIAN_12, {})),
    "ceph_mgr": ("defect_of_debian_13", (STOR1, DEBIAN_13, {"ceph_mgr_modules": {"prometheus": True}})),
    "ceph_osd": ("more_copies_than_hosts", (STOR1, UBUNTU, {"ceph_mds_pool_size": 4})),
    "ceph_mds": (
        "named_with_device_classes",
        (
            STOR2,
            ROCKY_9,
            {
                "ceph_mds_filesystem": "homes",
                "ceph_mds_metadata_device_class": "nvme",
                "ceph_mds_data_device_class": "hdd",
            },
        ),
    ),
    "cephfs_client": (
        "nothing_and_what_earlier_runs_left",
        (
            NODE1,
            DEBIAN_13,
            {
                "__cephfs_client_host": {
                    "kernel": "6.12.48+deb13-amd64",
                    "kernel_client": True,
                    "automount": True,
                    "written": [
                        "/etc/ceph/cephfs/mounts/client.home.bob.secret",
                        "/etc/systemd/system/home-bob.automount",
                        "/etc/systemd/system/home-bob.mount",
                    ],
                }
            },
        ),
    ),
    "cephfs_homes": (
        "users_with_shares",
        (
            NODE1,
            UBUNTU,
            {
                "cephfs_homes_users": [{"name": "alice", "size": "1T"}, {"name": "gone", "state": "archived"}],
                "cephfs_homes_shares": [
                    {"name": "data", "path": "/srv/data"},
                    {"name": "models", "path": "/srv/models", "size": "1T"},
                ],
                "__cephfs_homes_passwd": {
                    "stdout_lines": [
                        "alice:x:2001:2001::/home/alice:/bin/sh",
                        "bob:x:2002:2100::/home/bob:/bin/sh",
                        "carol:x:2003:2003::/home/carol:/bin/sh",
                    ]
                },
                "__cephfs_homes_result": {"homes": HOMES},
                "__cephfs_homes_secrets": read_by_slurp(
                    json.dumps({name: {"key": f"key-of-{name}"} for name in HOMES})
                ),
                "__cephfs_homes_share": {
                    "results": [
                        {"subvolume": {"path": "/volumes/_nogroup/data/1"}},
                        {"subvolume": {"path": "/volumes/_nogroup/models/2"}},
                    ]
                },
                "__cephfs_homes_share_secrets": {
                    "results": [read_by_slurp("key-of-data\n"), read_by_slurp("key-of-models\n")]
                },
                "__cephfs_homes_scratch_place": {"subvolume": {"path": "/volumes/_nogroup/scratch/1"}},
                "__cephfs_homes_scratch_secret": read_by_slurp("key-of-scratch\n"),
            },
        ),
    ),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The plans by role, all from one run."""
    cases = {role: case for role, (_name, case) in CASES.items()}
    return ceph_roles.through_ansible(tmp_path_factory.mktemp("ceph"), cases)


@pytest.mark.parametrize("role", CASES)
def test_the_variables_of_the_role_give_the_recorded_plan(role: str, plans: dict[str, dict[str, Any]]) -> None:
    name, _case = CASES[role]
    ceph_roles.assert_as_recorded(role, name, plans[role])
