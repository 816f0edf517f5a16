# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logical volumes of OSDs: how ceph-volume names and tags them, and what is left where it was cut.

ceph-volume makes a group ceph-UUID on each device that it is given. The volume for the data is called osd-block-
with the UUID of the OSD, those for db and wal are tagged with it as soon as they are made; all the other tags come
last, before anything is written. https://docs.ceph.com/en/latest/ceph-volume/lvm/prepare/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

COLUMNS = "vg_name,lv_count,lv_name,lv_tags"


def on_device(real: str, run: Run) -> list[dict[str, Any]]:
    """The volumes on a physical volume: group, how many the group has, name, tags of Ceph. Free space has no name."""
    return _listed(["pvs", "--reportformat", "json", "--options", COLUMNS, real], "pv", run)


def named(name: str, run: Run) -> list[dict[str, Any]]:
    """The same of one volume, called GROUP/VOLUME; empty if it is not there."""
    return _listed(["lvs", "--reportformat", "json", "--options", COLUMNS, name], "lv", run)


def _listed(argv: list[str], kind: str, run: Run) -> list[dict[str, Any]]:
    rc, stdout = run(argv, None, 60)[:2]
    if rc != 0:
        return []
    return [
        {
            "group": row["vg_name"],
            "in_group": int(row["lv_count"] or 0),
            "name": row["lv_name"],
            "tags": _tags(row["lv_tags"]),
        }
        for report in json.loads(stdout)["report"]
        for row in report[kind]
    ]


def _tags(text: str) -> dict[str, str]:
    pairs = (tag[len("ceph.") :].split("=", 1) for tag in text.split(",") if tag.startswith("ceph."))
    return {pair[0]: pair[-1] for pair in pairs}


def is_left_on_device(rows: Sequence[Mapping[str, Any]], osd_uuid: str, kind: str) -> bool:
    """Whether a device has nothing but what a cut ceph-volume left of one OSD.

    :param rows: as on_device returns them.
    :param kind: block, db or wal.
    """
    volumes = {row["name"]: row["tags"] for row in rows if row["name"]}
    if kind == "block":
        are_its = all(name == f"osd-block-{osd_uuid}" for name in volumes)
    else:
        # Nothing is written to a volume before it has its tags.
        are_its = all(
            tags.get("osd_fsid") == osd_uuid or (not tags and name.startswith(f"osd-{kind}-"))
            for name, tags in volumes.items()
        )
    # A group that somebody enlarged has volumes on other devices, too.
    alone = all(row["in_group"] == len(volumes) for row in rows)
    named_by_it = all(not row["group"] or row["group"].startswith("ceph-") for row in rows)
    return bool(rows) and are_its and alone and named_by_it


def is_left_in_volume(rows: Sequence[Mapping[str, Any]], osd_uuid: str) -> bool:
    """The same of a volume that the operator made: ceph-volume tags it before it writes to it.

    :param rows: as named returns them.
    """
    return bool(rows) and all(row["tags"].get("osd_fsid") == osd_uuid for row in rows)


def prepare(cluster: str, device: Mapping[str, Any], osd_uuid: str) -> list[str]:
    """The command that makes an OSD.

    :param device: path, device_class, db, wal, dmcrypt, replaces (number of a destroyed OSD, or None).
    """
    argv = ["ceph-volume", "--cluster", cluster, "lvm", "prepare", "--bluestore", "--data", device["path"]]
    argv += ["--osd-fsid", osd_uuid]
    argv += ["--block.db", device["db"]] if device["db"] else []
    argv += ["--block.wal", device["wal"]] if device["wal"] else []
    argv += ["--dmcrypt"] if device["dmcrypt"] else []
    argv += ["--crush-device-class", device["device_class"]] if device["device_class"] else []
    argv += [] if device["replaces"] is None else ["--osd-id", str(device["replaces"])]
    return argv


def activate(cluster: str, number: int, osd_uuid: str) -> list[str]:
    """The command that fills the directory of an OSD."""
    argv = ["ceph-volume", "--cluster", cluster, "lvm", "activate", "--bluestore", "--no-systemd"]
    return [*argv, str(number), osd_uuid]


def zap(cluster: str, name: str) -> list[str]:
    """The command that takes an unfinished OSD off a device, volumes and all, or off a volume, which stays."""
    whole = ["--destroy"] if name.startswith("/") else []
    return ["ceph-volume", "--cluster", cluster, "lvm", "zap", *whole, name]
