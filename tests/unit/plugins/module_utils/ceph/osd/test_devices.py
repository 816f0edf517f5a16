# SPDX-License-Identifier: GPL-3.0-or-later
"""A device that holds anything is refused; ours is activated; only what is empty or listed is written to."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import activate as ceph_osd
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import devices as ceph_devices
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import label as ceph_label
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from tests.unit.plugins.module_utils.ceph.ceph_captured import CAPTURED_LABEL, CLUSTER, META, OSD_UUID, found, label

OTHER = "11111111-2222-4333-8444-555555555555"
TAGS_OURS = {"cluster_fsid": CLUSTER, "type": "block", "osd_id": "7", "osd_fsid": OSD_UUID}
# As ceph-volume names them.
LVM_OURS = {"group": "ceph-0af8", "in_group": 1, "name": f"osd-block-{OSD_UUID}", "tags": TAGS_OURS}
# Right after it was made, a volume has this tag alone.
LVM_FRESH = {**LVM_OURS, "tags": {"type": "block"}}
LVM_REST = {"group": "ceph-0af8", "in_group": 1, "name": "", "tags": {}}
LVM_EMPTY = {**LVM_REST, "in_group": 0}
LVM_NO_GROUP = {**LVM_EMPTY, "group": ""}
DB_OURS = {"group": "ceph-1bf9", "in_group": 1, "name": "osd-db-77aa", "tags": {"type": "db", "osd_fsid": OSD_UUID}}
LVM_FOREIGN = {"group": "data", "in_group": 1, "name": "home", "tags": {}}


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
    "unused partitions": (
        found(
            signatures=["gpt at 0x200"],
            partitions=[{"name": "sdb1", "signatures": ["ext4 at 0x438"]}, {"name": "sdb2", "signatures": []}],
            blank=False,
        ),
        "gpt at 0x200 with the partitions sdb1 (ext4 at 0x438), sdb2 (no mark)",
    ),
    "an OSD of another cluster": (found(label=parsed(ceph_fsid=OTHER), blank=False), OTHER),
    "an OSD without a cluster": (found(label=without("ceph_fsid"), blank=False), "unnamed"),
    "an OSD of ours that was not finished": (found(label=without("mkfs_done"), blank=False), "not finished"),
    "an OSD of another cluster in LVM": (
        found(
            signatures=["LVM2_member at 0x218"],
            lvm=[{**LVM_OURS, "tags": {**TAGS_OURS, "cluster_fsid": OTHER}}],
            blank=False,
        ),
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
    "a partition": {"users": ["a mount at /srv"], "signatures": ["gpt at 0x200"], "blank": False},
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
    assert ceph_devices.look(str(file), never)["error"] == "it is not a block device"
    assert "no such device" in ceph_devices.look(str(tmp_path / "gone"), never)["error"]


class Disk:
    """What the kernel's files tell of a disk sdb with three partitions."""

    def __init__(self, root: Path) -> None:
        self.block, self.proc = root / "block", root / "proc"
        for number in (1, 2, 3):
            partition = self.block / "sdb" / f"sdb{number}"
            (partition / "holders").mkdir(parents=True)
            (partition / "partition").write_text(f"{number}\n")
            (partition / "dev").write_text(f"8:{16 + number}\n")
        (self.block / "sdb" / "holders").mkdir()
        (self.proc / "self").mkdir(parents=True)
        self.write("self/mountinfo", "31 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n")
        self.write("swaps", "Filename Type\n")

    def write(self, name: str, text: str) -> None:
        with (self.proc / name).open("a") as file:
            file.write(text)

    def opened(self, pid: int, command: str, target: str) -> None:
        (self.proc / str(pid) / "fd").mkdir(parents=True)
        self.write(f"{pid}/comm", f"{command}\n")
        (self.proc / str(pid) / "fd" / "7").symlink_to(target)

    def users(self) -> list[str]:
        return ceph_devices.users_of("/dev/sdb", os.makedev(8, 16), str(self.block), str(self.proc))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_partitions_that_nobody_uses_are_no_use(disk: Disk):
    assert disk.users() == []


def test_mounts_holders_swap_and_processes_of_a_disk_and_its_partitions_are_seen(disk: Disk):
    (disk.block / "sdb" / "holders" / "md0").mkdir()
    (disk.block / "sdb" / "sdb2" / "holders" / "dm-3").mkdir()
    # A file system with a number of its own names its device only.
    disk.write("self/mountinfo", "30 1 8:17 / /srv rw - ext4 /dev/sdb1 rw\n32 1 0:44 / /data rw - btrfs /dev/sdb2 rw\n")
    disk.write("swaps", "/dev/sdb partition 1 0 -2\n/dev/sdb3 partition 1 0 -2\n")
    disk.opened(812, "qemu-system\x1b[1m", "/dev/sdb1")
    disk.opened(813, "(udev-worker)", "/dev/sdb")
    disk.opened(814, "other", "/dev/sda")
    assert disk.users() == [
        "the holder md0",
        "the holder dm-3 of sdb2",
        "a mount at /srv",
        "a mount at /data",
        "swap",
        "swap on sdb3",
        "the process qemu-system\ufffd[1m (812), which has sdb1 open",
    ]


@pytest.mark.parametrize(
    ("mark", "member"),
    [
        ("LVM2_member at 0x218", True),
        ("linux_raid_member at 0x1000", True),
        ("zfs_member at 0x3f000", True),
        ("bcache at 0x1018", True),
        ("ceph_bluestore at 0x0", True),
        ("ext4 at 0x438", False),
        ("swap at 0xff6", False),
        ("gpt at 0x200", False),
    ],
)
def test_a_partition_that_is_a_member_of_something_is_in_use_though_nobody_has_it_open(
    monkeypatch: pytest.MonkeyPatch, disk: Disk, mark: str, member: bool
):
    monkeypatch.setattr(ceph_devices, "signatures", lambda path, run: [mark] if path == "/dev/sdb2" else [])
    seen = found(signatures=["gpt at 0x200"], partitions=[], blank=False)
    ceph_devices.look_into_partitions(seen, lambda *_: (0, "", ""), str(disk.block))
    verdict = ceph_devices.judge(seen, CLUSTER, wipe=True)
    assert verdict["action"] == ("refuse" if member else "prepare"), verdict
    if member:
        assert f"sdb2, which is a member of something ({mark})" in verdict["why"]
    else:
        assert verdict["wipe"] is True


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


@pytest.mark.skipif(os.geteuid() != 0, reason="a loop device needs root")
def test_a_real_disk_that_a_process_has_open_is_refused_and_wiped_when_it_is_closed(tmp_path: Path):
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(2 << 30)

    def run(argv, stdin, timeout):
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        return done.returncode, done.stdout, done.stderr

    made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device is to be had: {made.stderr.strip()}")
    path = made.stdout.strip()
    try:
        subprocess.run(["mkswap", "--quiet", path], check=True, capture_output=True)
        with open(path, "rb") as opened:
            child = subprocess.Popen(["sleep", "60"], stdin=opened)
        try:
            verdict = ceph_devices.judge(ceph_devices.look(path, run), CLUSTER, wipe=True)
        finally:
            child.kill()
            child.wait()
        assert verdict["action"] == "refuse"
        assert f"the process sleep ({child.pid}), which has {os.path.basename(path)} open" in verdict["why"]
        verdict = ceph_devices.judge(ceph_devices.look(path, run), CLUSTER, wipe=True)
        assert (verdict["action"], verdict["wipe"]) == ("prepare", True), verdict
        ceph_osd.Osds(CLUSTER, records=str(tmp_path), run=run).wipe(path)
        assert ceph_devices.judge(ceph_devices.look(path, run), CLUSTER)["why"] == "it is empty"
    finally:
        subprocess.run(["losetup", "--detach", path], check=True)


def test_what_cannot_be_told_counts_as_a_signature():
    assert ceph_devices.signatures("/dev/sdb", lambda *_: (1, "", "wipefs: permission denied")) == [
        "what wipefs could not tell (wipefs: permission denied)"
    ]


def in_lvm(*rows: dict) -> dict:
    """A physical volume with what is on it, in use as the kernel tells of one whose volumes are active."""
    return found(signatures=["LVM2_member at 0x218"], lvm=list(rows), users=["the holder dm-0"], blank=False)


@pytest.mark.parametrize("rows", [[LVM_FRESH], [LVM_OURS], [LVM_OURS, LVM_REST], [LVM_EMPTY], [LVM_NO_GROUP]])
def test_what_a_cut_ceph_volume_left_is_taken_away_first(rows):
    verdict = ceph_devices.judge(in_lvm(*rows), CLUSTER, begun=OSD_UUID, method="lvm")
    assert (verdict["action"], verdict["wipe"], verdict["undo"]) == ("prepare", False, True)


# A group without volumes looks the same whoever made it, so there the record of a cut run alone tells.
NOT_BEGUN = [(LVM_FRESH, None), (LVM_FRESH, OTHER), (LVM_EMPTY, None), (LVM_NO_GROUP, None)]


@pytest.mark.parametrize(("row", "begun"), NOT_BEGUN)
def test_the_same_is_refused_where_no_run_of_ours_had_begun_it(row, begun):
    assert ceph_devices.judge(in_lvm(row), CLUSTER, begun=begun, method="lvm")["action"] == "refuse"


FOREIGN = {
    "another group": [LVM_FOREIGN],
    "another group beside it": [LVM_FRESH, LVM_FOREIGN],
    "another volume in the same group": [{**LVM_FRESH, "in_group": 2}],
    "an empty group that somebody named": [{**LVM_EMPTY, "group": "data"}],
    "a group with volumes on other devices": [LVM_REST],
    "nothing that could be read": [],
}


@pytest.mark.parametrize("rows", FOREIGN.values(), ids=FOREIGN)
def test_volumes_of_others_on_the_device_are_never_taken_away(rows):
    verdict = ceph_devices.judge(in_lvm(*rows), CLUSTER, wipe=True, begun=OSD_UUID, method="lvm")
    assert verdict["action"] == "refuse"


@pytest.mark.parametrize(
    ("rows", "is_left"),
    [
        ([DB_OURS], True),
        ([LVM_EMPTY], True),
        ([{**DB_OURS, "tags": {"osd_fsid": OTHER}}], False),
        ([{**DB_OURS, "tags": {}}], True),
        ([{**DB_OURS, "tags": {}, "name": "osd-wal-77aa"}], False),
        ([{**DB_OURS, "tags": {}, "name": "scratch"}], False),
        ([DB_OURS, LVM_FOREIGN], False),
        ([], False),
    ],
)
def test_a_db_is_taken_away_only_where_all_of_it_is_of_the_cut_osd(monkeypatch, tmp_path, rows, is_left):
    osds = ceph_osd.Osds(CLUSTER, records=str(tmp_path), run=volumes_are({"/dev/disk/by-id/fast": rows}))
    (tmp_path / "begun-dev-disk-by-id-data.json").write_text(json.dumps({"fsid": CLUSTER, "osd_uuid": OSD_UUID}))
    places = {"/dev/disk/by-id/fast": in_lvm(*rows), "/dev/disk/by-id/data": in_lvm(LVM_OURS)}
    monkeypatch.setattr(ceph_devices, "look", lambda path, run: places[path])
    device = {**DATA, "db": "/dev/disk/by-id/fast", "wal": "", "also_wipe": ["/dev/disk/by-id/fast"]}
    (verdict,) = osds.judge([device])
    assert verdict["action"] == ("prepare" if is_left else "refuse")


def volumes_are(rows: dict[str, list[dict]], started: bool = False, said: list | None = None):
    """pvs and lvs with these rows by device or volume, and a cluster in which the OSD that was cut is osd.7."""

    def run(argv, stdin, timeout):
        if argv[0] in ("pvs", "lvs"):
            kind = argv[0][:-1]
            listed = [
                {
                    "vg_name": row["group"],
                    "lv_count": str(row["in_group"]),
                    "lv_name": row["name"],
                    "lv_tags": ",".join(f"ceph.{key}={value}" for key, value in row["tags"].items()),
                }
                for row in rows.get(argv[-1], [])
            ]
            return 0, json.dumps({"report": [{kind: listed}]}), ""
        if said is not None:
            said.append(argv)
        if "dump" in argv:
            return 0, json.dumps({"osds": [{"osd": 7, "uuid": OSD_UUID}, {"osd": 8, "uuid": OTHER}]}), ""
        if "purge-new" in argv and started:
            return 1, "", "Error EPERM: osd.7 is not new"
        return 0, "", ""

    return run


UNDONE = {**DATA, "db": "/dev/disk/by-id/fast", "wal": "vg/log", "also_wipe": [], "replaces": None}
ON_THEM = {"/dev/disk/by-id/data": [LVM_OURS], "/dev/disk/by-id/fast": [DB_OURS], "vg/log": [LVM_FOREIGN]}
LOG_OURS = {**LVM_FOREIGN, "tags": {"type": "wal", "osd_fsid": OSD_UUID}}


@pytest.mark.parametrize(("log", "zapped_too"), [(LVM_FOREIGN, []), (LOG_OURS, ["vg/log"])])
def test_an_osd_that_was_cut_is_forgotten_by_the_cluster_before_its_volumes_go(tmp_path, log, zapped_too):
    said: list[list[str]] = []
    osds = ceph_osd.Osds(CLUSTER, records=str(tmp_path), run=volumes_are({**ON_THEM, "vg/log": [log]}, said=said))
    (tmp_path / "begun-dev-disk-by-id-data.json").write_text(json.dumps({"fsid": CLUSTER, "osd_uuid": OSD_UUID}))
    # The devices are made up, so there is nothing where it then looks for the OSD that was made.
    with pytest.raises(Refused, match="left no OSD"):
        osds.prepare(UNDONE, wipe=False)
    words = [" ".join(argv) for argv in said]
    places = [next(place for place, text in enumerate(words) if part in text) for part in ("purge-new 7", "zap")]
    assert places == sorted(places)
    zapped = [text for text in words if " zap " in text]
    assert zapped == [
        "ceph-volume --cluster ceph lvm zap --destroy /dev/disk/by-id/data",
        "ceph-volume --cluster ceph lvm zap --destroy /dev/disk/by-id/fast",
        # The operator's own volume stays.
        *(f"ceph-volume --cluster ceph lvm zap {name}" for name in zapped_too),
    ]
    (made,) = [argv for argv in said if "prepare" in argv]
    assert OSD_UUID not in made


def test_an_osd_that_was_started_by_hand_meanwhile_is_left_alone(tmp_path):
    said: list[list[str]] = []
    osds = ceph_osd.Osds(CLUSTER, records=str(tmp_path), run=volumes_are(ON_THEM, started=True, said=said))
    (tmp_path / "begun-dev-disk-by-id-data.json").write_text(json.dumps({"fsid": CLUSTER, "osd_uuid": OSD_UUID}))
    with pytest.raises(CephError, match=r"osd\.7 is not new"):
        osds.prepare(UNDONE, wipe=False)
    assert not [argv for argv in said if argv[0] == "ceph-volume"]


def test_who_makes_osds_waits_for_whoever_does_already(tmp_path):
    lock = str(tmp_path / "lock")
    with (
        ceph_osd.alone(lock),
        pytest.raises(Refused, match="another run has been at work"),
        ceph_osd.alone(lock, patience_s=0),
    ):
        pass
    order = []
    entered = threading.Event()

    def first():
        with ceph_osd.alone(lock):
            entered.set()
            time.sleep(0.2)
            order.append("first")

    other = threading.Thread(target=first)
    other.start()
    entered.wait()
    with ceph_osd.alone(lock):
        order.append("second")
    other.join()
    assert order == ["first", "second"]


def test_an_osd_whose_key_cannot_be_had_is_started_again_soon_and_not_for_ever(monkeypatch, tmp_path):
    monkeypatch.setattr(ceph_osd, "RUN", str(tmp_path))
    said: list[list[str]] = []

    def run(argv, stdin, timeout):
        said.append(argv)
        return 0, "", ""

    ceph_osd.try_later(7, run)
    ceph_osd.try_later(7, run)
    assert [argv[-3:] for argv in said] == [["systemctl", "start", "ceph-osd@7"]] * 2
    monkeypatch.setattr(ceph_osd, "PATIENCE_S", 0)
    ceph_osd.try_later(7, run)
    assert len(said) == 2
