# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What OSDs that leave a cluster have left on their host: units, directories, records, and labels of devices.

A device is wiped only where it is named, and only if its label says that it is one of these OSDs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import devices as ceph_devices
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.activate import RECORDS, Osds
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.removal import all_of
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run, run


class Leaving:
    """OSDs of one cluster that are to go from this host.

    :param numbers: the OSDs; None for all of the cluster.
    :param known: UUIDs by number of the OSDs that the cluster has; what is among them stays.
    """

    def __init__(
        self,
        fsid: str,
        numbers: Sequence[int] | None,
        known: Mapping[int, str],
        cluster: str = "ceph",
        run: Run = run,
        records: str = RECORDS,
    ) -> None:
        self.osds = Osds(fsid, cluster, run, records)
        self.fsid = fsid
        self.numbers = numbers
        self.known = known
        self.cluster = cluster
        self.run = run
        self.records = records

    def is_leaving(self, number: int, osd_uuid: str) -> bool:
        """Whether an OSD is one of those that go, and not one that has got its number since."""
        return (self.numbers is None or number in self.numbers) and self.known.get(number) != osd_uuid

    def found(self) -> list[dict[str, Any]]:
        """Records on this host of OSDs that are to go, whether the cluster still has them or not."""
        rows = []
        for name in sorted(os.listdir(self.records)) if os.path.isdir(self.records) else []:
            if not name.startswith(f"{self.cluster}-"):
                continue
            try:
                with open(f"{self.records}/{name}", encoding="utf-8") as file:
                    row = json.load(file)
            except (ValueError, RecursionError, FileNotFoundError):
                # Another run may be taking it away.
                continue
            if row.get("fsid") == self.fsid and (self.numbers is None or row["id"] in self.numbers):
                rows.append(row)
        return rows

    def judge(self, paths: Sequence[str]) -> tuple[list[str], list[Problem]]:
        """Which of the devices of this host are to be wiped, and what speaks against others. Writes nothing."""
        wiped, wrong = [], []
        for path in paths:
            # The same list is given to all hosts.
            if not os.path.lexists(path):
                continue
            seen = ceph_devices.look(path, self.run)
            label = seen["label"]
            number = str(label["meta"].get("whoami", "")) if label else ""
            if seen["error"]:
                wrong.append(_problem(path, f"{path}: {seen['error']}", "correct the name"))
            elif seen["blank"]:
                continue
            elif not label or label["meta"].get("ceph_fsid") != self.fsid or not number.isdigit():
                holds = ", ".join(seen["signatures"]) or "data of an unknown kind"
                cause = f"{path}: it holds {holds}, and no OSD of this cluster"
                wrong.append(_problem(path, cause, "take it out of the list"))
            elif not self.is_leaving(int(number), label["osd_uuid"]):
                cause = f"{path}: osd.{number} is on it, which stays"
                wrong.append(_problem(path, cause, "take it out of the list"))
            else:
                wiped.append(path)
        return wiped, wrong

    def stop(self, row: Mapping[str, Any], pretend: bool) -> list[str]:
        """Stop the unit of an OSD, and have it not started again."""
        unit = f"ceph-osd@{row['id']}.service"
        wanted = {"is-active": ("active", "activating", "reloading", "deactivating"), "is-enabled": ("enabled",)}
        if not any(self.run(["systemctl", verb, unit], None, 60)[1].strip() in good for verb, good in wanted.items()):
            return []
        if not pretend:
            self._must(["systemctl", "disable", "--now", unit], "read what it said")
        return [f"stop osd.{row['id']}"]

    def forget(self, row: Mapping[str, Any], pretend: bool) -> list[str]:
        """Take away the directory and the record of an OSD. The record goes last, so that a run can be cut."""
        directory = f"/var/lib/ceph/osd/{self.cluster}-{row['id']}"
        if not pretend:
            if os.path.ismount(directory):
                self._must(["umount", directory], "see what uses it ('fuser -vm')")
            if os.path.isdir(directory):
                os.rmdir(directory)
            for unit in ("ceph-osd", "ceph-osd-activate"):
                self.run(["systemctl", "reset-failed", f"{unit}@{row['id']}.service"], None, 60)
            os.unlink(self.osds.record_path(row["id"]))
        return [f"forget osd.{row['id']}, which was on {row['device']}"]

    def wipe(self, path: str, pretend: bool) -> list[str]:
        """Take the marks off a device that was judged."""
        if not pretend:
            self.osds.wipe(path)
        return [f"wipe {path}"]

    def _must(self, argv: list[str], remedy: str) -> None:
        rc, stdout, stderr = self.run(argv, None, 600)
        if rc != 0:
            raise Refused(f"'{' '.join(argv)}' ended with {rc}: {(stderr or stdout).strip()}", remedy)


def _problem(device: str, cause: str, remedy: str) -> Problem:
    return Problem("osd_device", device, cause, remedy=remedy)


def work(leaving: Leaving, state: str, wanted: Sequence[str], wipe: Sequence[str], pretend: bool) -> list[str]:
    """What was done, or if only pretended would be; all is judged before anything is done.

    :param state: stopped, or absent.
    :param wanted: devices that the inventory has OSDs on.
    :raises Refused: with everything that speaks against it.
    """
    rows = [row for row in leaving.found() if leaving.is_leaving(row["id"], row["osd_uuid"])]
    wiped, wrong = leaving.judge(wipe)
    wrong += [
        _problem(
            row["device"],
            f"osd.{row['id']} is on {row['device']}, which ceph_osd_devices of the host lists, so that the next run "
            "would bring it back",
            "take it out of the list first",
        )
        for row in rows
        if row["device"] in wanted
    ]
    wrong += [
        _problem(
            row["device"],
            f"osd.{row['id']} is in logical volumes",
            f"name {row['device']} for no wiping, and wipe it with 'ceph-volume lvm zap --destroy' once the OSD is "
            "gone",
        )
        for row in rows
        if row["device"] in wipe and row["method"] == "lvm"
    ]
    if wrong:
        raise all_of(wrong)
    steps = []
    for row in rows:
        steps += leaving.stop(row, pretend)
        if state == "absent":
            steps += leaving.forget(row, pretend)
    if state == "absent":
        for path in wiped:
            steps += leaving.wipe(path, pretend)
    return steps
