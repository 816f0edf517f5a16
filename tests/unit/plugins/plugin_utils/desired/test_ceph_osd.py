# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The OSDs of a host, and lists of devices that make no sense."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import osd_rows
from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("ceph_osd"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("ceph_osd", case)


def plan(case: str, **params: object) -> dict[str, object]:
    document = ceph_roles.documents("ceph_osd")[case]
    return desired({**document["params"], **params}, "ceph_osd", document["facts"], document["peers"])


def test_without_osds_there_is_no_document_yet() -> None:
    assert plan("whole_devices", result="")["desired"] == {}


@pytest.mark.parametrize(("size", "is_refused"), [("", False), (3, False), ("4", True)])
def test_a_site_without_a_place_for_every_copy_is_refused(size: object, is_refused: bool) -> None:
    made = plan("whole_devices", pool_size=size)
    assert bool(made["site_problems"]) == is_refused
    assert made["problems"] == []


DEFAULTS = {"method": "raw", "device_class": "", "dmcrypt": False}
PATH = "/dev/disk/by-id/wwn-1"


def test_devices_are_named_or_described():
    rows, problems = osd_rows.rows([PATH, {"path": PATH + "2", "device_class": "nvme"}], DEFAULTS, [PATH])
    assert problems == []
    assert [(row["path"], row["wipe"], row["device_class"]) for row in rows] == [
        (PATH, True, ""),
        (PATH + "2", False, "nvme"),
    ]


def test_what_may_be_wiped_of_db_and_log_is_listed_by_their_names():
    device = {"path": PATH, "method": "lvm", "db": PATH + "2", "wal": "vg/log"}
    rows, problems = osd_rows.rows([device], DEFAULTS, [PATH + "2"])
    assert problems == []
    assert [(row["wipe"], row["also_wipe"]) for row in rows] == [(False, [PATH + "2"])]


WRONG_DEVICES = {
    "a name that does not last": (["/dev/sdb"], [], "ls -l /dev/disk/by-id/"),
    "twice": ([PATH, PATH], [], "twice"),
    "a typing error in what may be wiped": ([PATH], [PATH + "3"], PATH + "3"),
    "an unknown word": ([{"path": PATH, "clas": "ssd"}], [], "clas"),
    "a db that does not last": ([{"path": PATH, "method": "lvm", "db": "/dev/sdc"}], [], "its db /dev/sdc is neither"),
    "the same log twice": (
        [{"path": PATH + number, "method": "lvm", "wal": "vg/log"} for number in "12"],
        [],
        "vg/log is twice",
    ),
    "encryption without LVM": ([{"path": PATH, "dmcrypt": True}], [], "ceph_osd_method: lvm"),
}


@pytest.mark.parametrize("case", WRONG_DEVICES)
def test_devices_that_make_no_sense_are_refused_with_a_remedy(case):
    devices, wipe, word = WRONG_DEVICES[case]
    (problem,) = osd_rows.rows(devices, DEFAULTS, wipe)[1]
    assert word in str(problem)
    assert problem.remedy
