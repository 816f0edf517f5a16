# SPDX-License-Identifier: GPL-3.0-or-later
"""A device that holds anything is refused; ours is activated; only what is empty or listed is written to."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils import ceph_devices, ceph_label, ceph_osd
from tests.unit.plugins.module_utils.ceph_captured import CAPTURED_LABEL, CLUSTER, META, OSD_UUID, found, label

OTHER = "11111111-2222-4333-8444-555555555555"
LVM_OURS = {"cluster_fsid": CLUSTER, "type": "block", "osd_id": "7", "osd_fsid": OSD_UUID}


def parsed(**more: str) -> dict:
    return ceph_label.parse(label({**META, **more}))


def without(*names: str) -> dict:
    return ceph_label.parse(label({key: value for key, value in META.items() if key not in names}))


def test_the_label_of_a_real_osd_is_read():
    read = ceph_label.parse(CAPTURED_LABEL)
    assert read["osd_uuid"] == OSD_UUID
    assert read["size"] == 8 << 30
    assert META.items() <= read["meta"].items()


def test_what_is_no_label_is_none():
    assert ceph_label.parse(bytes(4096)) is None


@pytest.mark.parametrize("length", [30, 61, 70, 100, 200])
def test_a_label_that_is_cut_short_is_an_error_and_not_an_empty_device(length):
    with pytest.raises(ceph_label.LabelError, match="cannot be read"):
        ceph_label.parse(CAPTURED_LABEL[:length])


REFUSED = {
    "a file system": (found(signatures=["ext4 at 0x438"], blank=False), "ext4 at 0x438"),
    "a partition table": (found(signatures=["gpt at 0x200", "PMBR at 0x1fe"], blank=False), "gpt at 0x200"),
    "a RAID member": (found(signatures=["linux_raid_member at 0x1000"], blank=False), "linux_raid_member"),
    "a physical volume": (found(signatures=["LVM2_member at 0x218"], blank=False), "LVM2_member"),
    "a signature that blank edges do not show": (found(signatures=["zfs_member at 0x23000"]), "zfs_member"),
    "data of an unknown kind": (found(blank=False), "unknown kind"),
    "an OSD of another cluster": (found(label=parsed(ceph_fsid=OTHER), blank=False), OTHER),
    "an OSD without a cluster": (found(label=without("ceph_fsid"), blank=False), "unnamed"),
    "an OSD of ours that was not finished": (found(label=without("mkfs_done"), blank=False), "not finished"),
    "an OSD of another cluster in LVM": (
        found(signatures=["LVM2_member at 0x218"], lvm=[{**LVM_OURS, "cluster_fsid": OTHER}], blank=False),
        OTHER,
    ),
}


@pytest.mark.parametrize("method", ["raw", "lvm"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_holds_anything_is_refused_with_the_reason_and_the_way_out(case, method):
    device, reason = REFUSED[case]
    verdict = ceph_devices.judge(device, CLUSTER, method=method)
    assert verdict["action"] == "refuse"
    assert verdict["wipe"] is False
    assert reason in verdict["why"]
    assert "ceph_osd_wipe" in verdict["remedy"]
    assert device["path"] in verdict["remedy"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_holds_anything_and_is_listed_is_wiped(case):
    verdict = ceph_devices.judge(REFUSED[case][0], CLUSTER, wipe=True)
    assert (verdict["action"], verdict["wipe"]) == ("prepare", True)


IN_USE = {
    "a mount": {"users": ["a mount at /srv"]},
    "a partition": {"users": ["the partition sdb1"]},
    "a holder": {"users": ["the holder dm-0"]},
    "no device": {"error": "there is no such device"},
    "a small device": {"size": 512 << 20},
}


@pytest.mark.parametrize("case", IN_USE)
def test_what_is_in_use_is_refused_even_where_it_is_listed(case):
    verdict = ceph_devices.judge(found(**IN_USE[case]), CLUSTER, wipe=True, begun=OSD_UUID)
    assert verdict["action"] == "refuse"


DATA = {"path": "/dev/disk/by-id/data", "wipe": False, "method": "lvm", "device_class": "", "dmcrypt": False}
PLACES = {"db": "/dev/disk/by-id/fast", "wal": "vg/log"}


def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, also_wipe: list[str], **held: dict) -> dict:
    """The verdict on an OSD whose data is to go to an empty device; ``held`` is what is at its db or wal."""
    places = {"/dev/disk/by-id/fast": held.get("db", found()), "/dev/vg/log": held.get("wal", found())}
    monkeypatch.setattr(ceph_devices, "look", lambda path, run: places.get(path, found()))
    device = {**DATA, **PLACES, "also_wipe": also_wipe}
    osds = ceph_osd.Osds(CLUSTER, records=str(tmp_path))
    (verdict,) = osds.judge([device])
    return verdict


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_db_or_log_of_a_new_osd_would_overwrite_is_refused_too(monkeypatch, tmp_path, case, place):
    held = {place: REFUSED[case][0]}
    verdict = judged(monkeypatch, tmp_path, [], **held)
    assert verdict["action"] == "refuse"
    assert f"its {place} is {PLACES[place]}: it holds" in verdict["why"]
    assert "ceph_osd_wipe" in verdict["remedy"]
    named = judged(monkeypatch, tmp_path, [PLACES[place]], **held)
    assert (named["action"], named["also_wipe"]) == ("prepare", [PLACES[place]])


@pytest.mark.parametrize("case", ["a mount", "a partition", "a holder", "no device"])
def test_a_db_that_is_in_use_is_refused_even_where_it_is_listed(monkeypatch, tmp_path, case):
    verdict = judged(monkeypatch, tmp_path, [PLACES["db"]], db=found(**IN_USE[case]))
    assert verdict["action"] == "refuse"


def test_an_empty_db_and_log_are_taken_without_wiping(monkeypatch, tmp_path):
    verdict = judged(monkeypatch, tmp_path, [])
    assert (verdict["action"], verdict["also_wipe"]) == ("prepare", [])


@pytest.mark.parametrize("wipe", [False, True])
def test_our_own_osd_is_activated_and_never_wiped(wipe):
    device = found(label=parsed(), blank=False, signatures=["ceph_bluestore at 0x0"], users=["something"])
    verdict = ceph_devices.judge(device, CLUSTER, wipe=wipe)
    assert (verdict["action"], verdict["wipe"]) == ("activate", False)
    assert (verdict["osd_id"], verdict["osd_uuid"]) == (1, OSD_UUID)


def test_our_own_osd_in_lvm_is_activated_where_lvm_is_asked_for():
    device = found(signatures=["LVM2_member at 0x218"], lvm=[LVM_OURS], users=["the holder dm-0"], blank=False)
    assert ceph_devices.judge(device, CLUSTER, wipe=True, method="lvm")["osd_id"] == 7
    assert ceph_devices.judge(device, CLUSTER, wipe=True, method="raw")["action"] == "refuse"


def test_an_empty_device_becomes_an_osd_without_wiping():
    verdict = ceph_devices.judge(found(), CLUSTER)
    assert (verdict["action"], verdict["wipe"]) == ("prepare", False)


def test_what_a_run_that_was_cut_had_begun_is_gone_on_with():
    cut_in_mkfs = found(label=without("mkfs_done", "ceph_fsid"), blank=False, signatures=["ceph_bluestore at 0x0"])
    verdict = ceph_devices.judge(cut_in_mkfs, CLUSTER, begun=OSD_UUID)
    assert (verdict["action"], verdict["wipe"]) == ("prepare", True)
    assert ceph_devices.judge(cut_in_mkfs, CLUSTER, begun=OTHER)["action"] == "refuse"
    formatted_since = found(signatures=["xfs at 0x0"], blank=False)
    assert ceph_devices.judge(formatted_since, CLUSTER, begun=OSD_UUID)["action"] == "refuse"


def test_a_regular_file_and_a_missing_name_are_errors(tmp_path: Path):
    def never(*_args):
        raise AssertionError("nothing needs to be run")

    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    assert ceph_devices.look(str(file), never)["error"] == "it is no block device"
    assert "no such device" in ceph_devices.look(str(tmp_path / "gone"), never)["error"]


def test_partitions_holders_mounts_and_swap_are_seen(tmp_path: Path):
    block = tmp_path / "block"
    (block / "sdb" / "sdb1").mkdir(parents=True)
    (block / "sdb" / "holders" / "md0").mkdir(parents=True)
    (block / "sdb" / "sdb1" / "partition").write_text("1\n")
    (block / "sdb" / "sdb1" / "dev").write_text("8:17\n")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text("30 1 8:17 / /srv rw - ext4 /dev/sdb1 rw\n31 1 8:1 / / rw - ext4 x rw\n")
    (proc / "swaps").write_text("Filename Type\n/dev/sdb partition 1 0 -2\n")
    users = ceph_devices.users_of("/dev/sdb", os.makedev(8, 16), str(block), str(proc))
    assert users == ["the partition sdb1", "the holder md0", "a mount at /srv", "swap"]


def test_real_signatures_are_told_by_the_real_wipefs(tmp_path: Path):
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    subprocess.run(
        ["mkswap", "--quiet", image], check=True, capture_output=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin"}
    )

    def run(argv, stdin, timeout):
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        return done.returncode, done.stdout, done.stderr

    assert ceph_devices.signatures(str(image), run) == ["swap at 0xff6"]


def test_what_cannot_be_told_counts_as_a_signature():
    assert ceph_devices.signatures("/dev/sdb", lambda *_: (1, "", "wipefs: permission denied")) == [
        "what wipefs could not tell (wipefs: permission denied)"
    ]


def test_tags_of_volumes_on_other_devices_do_not_count(tmp_path: Path):
    report = {
        "report": [
            {
                "lv": [
                    {"lv_tags": "ceph.osd_id=7,ceph.type=block,other=1", "devices": "/dev/sdb(0)"},
                    {"lv_tags": "ceph.osd_id=8", "devices": "/dev/sdc(0)"},
                    {"lv_tags": "", "devices": "/dev/sdb(100)"},
                ]
            }
        ]
    }
    tags = ceph_devices.lvm_tags("/dev/sdb", lambda *_: (0, json.dumps(report), ""))
    assert tags == [{"osd_id": "7", "type": "block"}]
