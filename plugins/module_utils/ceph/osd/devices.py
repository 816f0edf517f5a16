# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a device holds, and what may be done with it: activated, prepared, or nothing at all.

Looking never writes. The judgement is pure, and the only place that lets a device be written to.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import label as ceph_label
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import volumes as ceph_volumes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# At the start and at the end, where file systems, partition tables, RAID and volume managers have their marks.
EDGE_BYTES = 64 * 1024
SMALLEST_BYTES = 1 << 30

# What an OSD in logical volumes may have apart from its data.
PARTS = ("db", "wal")

ACTIVATE, PREPARE, REFUSE = "activate", "prepare", "refuse"

SYS_BLOCK = "/sys/class/block"


def look(path: str, run: Run, sys_block: str = SYS_BLOCK, proc: str = "/proc") -> dict[str, Any]:
    """What is at a path, without writing to it.

    :return: path, real, size (bytes), error (why it cannot be judged), users (what has it or a partition of it in
        use), signatures (what it is marked as), partitions (name and signatures of each), label (a BlueStore label),
        lvm (ceph_volumes.on_device), blank.
    """
    found: dict[str, Any] = {
        "path": path,
        "real": os.path.realpath(path),
        "size": 0,
        "error": None,
        "users": [],
        "signatures": [],
        "partitions": [],
        "label": None,
        "lvm": [],
        "blank": False,
    }
    try:
        status = os.stat(path)
    except OSError as wrong:
        found["error"] = f"there is no such device ({wrong.strerror})"
        return found
    if not stat.S_ISBLK(status.st_mode):
        found["error"] = "it is not a block device"
        return found
    found["users"] = users_of(found["real"], status.st_rdev, sys_block, proc)
    try:
        _read(found)
    except OSError as wrong:
        found["error"] = f"it cannot be read ({wrong.strerror})"
        return found
    except ceph_label.LabelError as wrong:
        found["signatures"].append(str(wrong))
    found["signatures"] += signatures(path, run)
    look_into_partitions(found, run, sys_block)
    if any("LVM2" in mark for mark in found["signatures"]):
        found["lvm"] = ceph_volumes.on_device(found["real"], run)
    if not found["users"] and not found["label"] and is_held(path):
        found["users"].append("something that opened it for itself alone")
    return found


def look_into_partitions(found: dict[str, Any], run: Run, sys_block: str = SYS_BLOCK) -> None:
    """What the partitions of a device are marked as. A member of something is in use, be it stopped."""
    for name, _number in partitions_of(found["real"], sys_block):
        marks = signatures(os.path.join(os.path.dirname(found["real"]), name), run)
        found["partitions"].append({"name": name, "signatures": marks})
        found["users"] += [f"{name}, which is a member of something ({mark})" for mark in marks if is_member(mark)]


def _read(found: dict[str, Any]) -> None:
    with open(found["path"], "rb") as device:
        found["size"] = device.seek(0, os.SEEK_END)
        device.seek(0)
        first = device.read(EDGE_BYTES)
        device.seek(max(0, found["size"] - EDGE_BYTES))
        last = device.read(EDGE_BYTES)
    found["blank"] = not any(first) and not any(last)
    found["label"] = ceph_label.parse(first[: ceph_label.LABEL_BYTES])


# Programs that open every device for a moment whenever one is closed.
LOOKERS = ("(udev-worker)", "systemd-udevd", "udevd")
# What libblkid calls a part of something larger, beside the names that end in _member.
MEMBERS = ("bcache", "drbd", "ceph_bluestore", "stratis", "DM_snapshot_cow")


def is_member(mark: str) -> bool:
    """Whether a signature says that there is more of it elsewhere, though nothing has it in use at the moment."""
    kind = mark.partition(" at ")[0]
    return kind.endswith("_member") or kind in MEMBERS


def partitions_of(real: str, sys_block: str) -> list[tuple[str, str]]:
    """Name and device number of each partition that the kernel knows of a block device."""
    name = os.path.basename(real)
    found = []
    for path in sorted(glob.glob(f"{sys_block}/{glob.escape(name)}/{glob.escape(name)}*/partition")):
        directory = os.path.dirname(path)
        with open(f"{directory}/dev", encoding="ascii") as file:
            found.append((os.path.basename(directory), file.read().strip()))
    return found


def users_of(real: str, number: int, sys_block: str, proc: str) -> list[str]:
    """Mounts, swap, holders (device-mapper, md) and processes of a block device and of its partitions.

    A partition by itself is no use of the device.
    """
    name = os.path.basename(real)
    names = {f"{os.major(number)}:{os.minor(number)}": name}
    users = [f"the holder {os.path.basename(path)}" for path in sorted(glob.glob(f"{sys_block}/{name}/holders/*"))]
    for partition, its_number in partitions_of(real, sys_block):
        names[its_number] = partition
        holders = sorted(glob.glob(f"{sys_block}/{name}/{partition}/holders/*"))
        users += [f"the holder {os.path.basename(path)} of {partition}" for path in holders]
    with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split(" ")
            # Some file systems have numbers of their own, and name their device only.
            source = line.rpartition(" - ")[2].split(" ")[1:2]
            if fields[2] in names or (source and _named(source[0], names)):
                users.append(f"a mount at {fields[4]}")
    with open(f"{proc}/swaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            used = _named(line.split()[0], names) if line.split() else ""
            users += [] if not used else ["swap"] if used == name else [f"swap on {used}"]
    return users + openers(names, proc)


def _named(path: str, names: Mapping[str, str]) -> str:
    """Which of these devices a path names; empty if none."""
    base = os.path.basename(os.path.realpath(path)) if path.startswith("/") else ""
    return base if base in names.values() else ""


def openers(names: Mapping[str, str], proc: str) -> list[str]:
    """Processes that have one of these devices open, such as the machine of which it is a disk."""
    found = {}
    for descriptor in glob.iglob(f"{proc}/[0-9]*/fd/*"):
        process = descriptor[len(proc) + 1 :].partition("/")[0]
        try:
            target = os.readlink(descriptor)
            if process in found or process == str(os.getpid()) or not target.startswith("/"):
                continue
            used = _of_descriptor(descriptor, target, names)
            if not used:
                continue
            with open(f"{proc}/{process}/comm", encoding="utf-8", errors="replace") as file:
                command = one_line(file.read().strip(), 64)
        except OSError:
            # It has ended, or closed it.
            continue
        if command not in LOOKERS:
            found[process] = f"the process {command} ({process}), which has {used} open"
    return [found[process] for process in sorted(found, key=int)]


def _of_descriptor(descriptor: str, target: str, names: Mapping[str, str]) -> str:
    """The device that a descriptor is of, under whatever name it was opened; empty if it is another one."""
    if target.startswith("/dev/") and os.path.basename(target) in names.values():
        return os.path.basename(target)
    try:
        status = os.stat(descriptor)
    except OSError:
        return ""
    if not stat.S_ISBLK(status.st_mode):
        return ""
    return names.get(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}", "")


def is_held(path: str) -> bool:
    """Whether the kernel refuses it to a second owner: mounted anywhere, in md, in device-mapper."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL))
    except OSError:
        return True
    return False


def signatures(path: str, run: Run) -> list[str]:
    """What libblkid knows it as, each with the offset in bytes."""
    rc, stdout, stderr = run(["wipefs", "--no-act", "--json", path], None, 60)
    if rc != 0:
        return [f"what wipefs could not tell ({(stderr or stdout).strip()})"]
    rows = json.loads(stdout)["signatures"] if stdout.strip() else []
    return [f"{row['type']} at {row['offset']}" for row in rows]


def judge(
    found: Mapping[str, Any], fsid: str, wipe: bool = False, begun: str | None = None, method: str = "raw"
) -> dict[str, Any]:
    """What may be done with a device.

    :param fsid: this cluster.
    :param wipe: whether this very path is listed for wiping.
    :param begun: UUID of the OSD that an earlier run, which was cut, had begun to make on it.
    :return: action (activate, prepare or refuse), why, remedy, wipe (whether it must be wiped first), and of an OSD
        of this cluster osd_id and osd_uuid. For prepare also undo: whether what a cut ceph-volume left goes first.
    """
    if found["error"]:
        return _refused(found["error"], "correct ceph_osd_devices; 'ls -l /dev/disk/by-id' lists the names")
    if begun and method == "lvm" and ceph_volumes.is_left_on_device(found["lvm"], begun, "block"):
        # Its tags say that it is ours before it is an OSD.
        return _prepared("an earlier run was cut while it made an OSD on it", undo=True)
    ours = _ours(found, fsid, method)
    if ours:
        return {"action": ACTIVATE, "why": f"it is osd.{ours['osd_id']} of this cluster", "wipe": False, **ours}
    if found["users"]:
        return _refused(
            f"it is in use: {', '.join(found['users'])}",
            "end that first if the device may go (unmount it, stop the process, take a member out of its array, volume "
            "group or pool, then 'wipefs --all' the partition); what is in use is not wiped even where it is listed",
        )
    if found["size"] < SMALLEST_BYTES:
        return _refused(f"it has {found['size'] >> 20} MiB, an OSD needs 1024 and more", "take a larger device")
    if _is_begun(found, begun):
        return _prepared("an earlier run had begun with it", wipe=not found["blank"])
    holds = _holds(found, fsid)
    if holds and not wipe:
        return _refused(
            f"it holds {holds}",
            f"remove it from ceph_osd_devices, or, if its data is not needed, list {found['path']} in "
            "ceph_osd_wipe of this host",
        )
    return _prepared(f"it held {holds} and is listed for wiping" if holds else "it is empty", wipe=bool(holds))


def judge_part(found: Mapping[str, Any], wipe: bool = False, undo: bool = False) -> dict[str, Any]:
    """What may be done with the place that a new OSD is to have for RocksDB or its log: prepare or refuse.

    :param wipe: whether this very name is listed for wiping.
    :param undo: whether all that is on it was left by a run that was cut.
    :return: action, why, remedy, wipe and undo, as judge returns them.
    """
    if found["error"]:
        return _refused(found["error"], "correct its name in ceph_osd_devices")
    if undo:
        return _prepared("an earlier run was cut while it made an OSD", undo=True)
    if found["users"]:
        return _refused(f"it is in use: {', '.join(found['users'])}", "give another, or end that first")
    holds = f"a part of the OSD {found['label']['osd_uuid']}" if found["label"] else _holds(found, "")
    if holds and not wipe:
        return _refused(
            f"it holds {holds}", "give an empty one, or, if its data is not needed, list it in ceph_osd_wipe too"
        )
    return _prepared(holds or "it is empty", wipe=bool(holds))


def _prepared(why: str, wipe: bool = False, undo: bool = False) -> dict[str, Any]:
    return {"action": PREPARE, "why": why, "wipe": wipe, "undo": undo}


def _refused(why: str, remedy: str) -> dict[str, Any]:
    return {"action": REFUSE, "why": why, "remedy": remedy, "wipe": False}


def _ours(found: Mapping[str, Any], fsid: str, method: str) -> dict[str, Any] | None:
    if method == "lvm":
        for tags in _tags(found):
            if tags.get("cluster_fsid") == fsid and tags.get("type") == "block":
                return {"osd_id": int(tags["osd_id"]), "osd_uuid": tags["osd_fsid"]}
        return None
    label = found["label"]
    if not label:
        return None
    meta = label["meta"]
    if meta.get("ceph_fsid") != fsid or meta.get("mkfs_done") != "yes" or "whoami" not in meta:
        return None
    return {"osd_id": int(meta["whoami"]), "osd_uuid": label["osd_uuid"]}


def _tags(found: Mapping[str, Any]) -> list[dict[str, str]]:
    return [row["tags"] for row in found["lvm"] if row["tags"]]


def _is_begun(found: Mapping[str, Any], begun: str | None) -> bool:
    """Between the record of an earlier run and the end of mkfs there is either no mark yet, or ours."""
    if not begun:
        return False
    label = found["label"]
    if label:
        return bool(label["osd_uuid"] == begun) and label["meta"].get("mkfs_done") != "yes"
    return not found["signatures"]


def _holds(found: Mapping[str, Any], fsid: str) -> str:
    label = found["label"]
    if label:
        meta = label["meta"]
        cluster = meta.get("ceph_fsid")
        if cluster == fsid:
            return f"an OSD of this cluster that was not finished ({label['osd_uuid']})"
        return f"osd.{meta.get('whoami', '?')} of another cluster ({cluster or 'unnamed'})"
    tagged = _tags(found)
    if tagged:
        number, cluster = (tagged[0].get(key, "?") for key in ("osd_id", "cluster_fsid"))
        return f"osd.{number} of the cluster {cluster} in a logical volume"
    partitions = found.get("partitions", ())
    if found["signatures"] or partitions:
        parts = [f"{row['name']} ({', '.join(row['signatures']) or 'no mark'})" for row in partitions]
        marks = ", ".join(dict.fromkeys(found["signatures"]))
        return " with ".join(filter(None, [marks, f"the partitions {', '.join(parts)}" if parts else ""]))
    return "" if found["blank"] else "data of an unknown kind"
