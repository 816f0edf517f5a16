# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take everything of one cluster off this host, and nothing of another.

What tells the cluster of a thing goes last, so that a run that was cut finds its way again.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import daemon as ceph_daemon
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import processes as ceph_processes
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import activate as ceph_osd
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import devices as ceph_devices
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.leaving import Leaving
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

LIB = "/var/lib/ceph"
ETC = "/etc/ceph"
OURS = "/var/lib/baremetal-gpu"
# What the roles give systemd beside the packages' units. An operator's own file beside them stays.
UNITS = (
    "/etc/systemd/system/ceph-osd@.service.d/10-activate.conf",
    "/etc/systemd/system/ceph-osd-activate@.service",
    "/usr/libexec/baremetal-gpu/ceph-osd-activate",
    "/etc/systemd/system/ceph-mds@.service.d/10-restart.conf",
)


def strangers(fsid: str, cluster: str = "ceph") -> list[str]:
    """What this host has of other clusters, or of one that cannot be told."""
    return [
        f"{trace['where']} belongs to the cluster {trace['fsid'] or 'that nobody can tell'}"
        for trace in ceph_daemon.traces(cluster)
        if trace["fsid"] != fsid
    ]


class Purge:
    """Everything of one cluster on this host."""

    def __init__(self, fsid: str, devices: Sequence[str], run: Run, cluster: str = "ceph") -> None:
        self.fsid = fsid
        self.run = run
        self.cluster = cluster
        self.leaving = Leaving(fsid, None, {}, cluster, run)
        self.devices = devices

    def work(self, pretend: bool) -> list[str]:
        """What was done, or if only pretended would be.

        :raises Refused: before anything is changed, where the host has something of another cluster.
        """
        wrong = strangers(self.fsid, self.cluster)
        if wrong:
            raise Refused(
                f"{'; '.join(wrong)}, not to {self.fsid}. Nothing was changed",
                "type the UUID of the one that is to go",
            )
        records = self.leaving.found()
        steps = self._stop(pretend)
        # Devices first: where they are is known from the records.
        for path in self.labelled(records):
            steps += [f"wipe {path}"]
            if not pretend:
                self._release(records, path)
                self.leaving.osds.wipe(path)
        for row in records:
            steps += self.leaving.forget(row, pretend)
        leftovers = self.leftovers()
        steps += [f"remove {path}" for path in leftovers]
        if leftovers and not pretend:
            units = [path for path in leftovers if path in UNITS]
            for path in units:
                _remove_unit(path)
            # Also where a run was cut right before this.
            self._must(["systemctl", "daemon-reload"])
            for path in leftovers[len(units) :]:
                _remove(path)
        return steps

    def labelled(self, records: Sequence[dict[str, Any]]) -> list[str]:
        """The devices that say themselves that they are this cluster's; all others are passed over."""
        found = []
        for path in dict.fromkeys([*(row["device"] for row in records if row["method"] == "raw"), *self.devices]):
            label = ceph_devices.look(path, self.run)["label"]
            if label and label["meta"].get("ceph_fsid") == self.fsid:
                found.append(path)
        return found

    def leftovers(self) -> list[str]:
        """Files and directories that are this cluster's, in the order in which they go."""
        own = f"{self.cluster}-*"
        patterns = [*UNITS, *(f"{LIB}/{kind}/{own}" for kind in ("mgr", "mds", "mon"))]
        patterns += [
            f"{LIB}/bootstrap-*/{self.cluster}.keyring",
            f"{LIB}/crash/posted/*",
            f"{OURS}/ceph",
            ceph_processes.SETTINGS,
        ]
        patterns += [f"{ceph_osd.RECORDS}/begun-*.json", f"{ETC}/{self.cluster}.client.*.keyring"]
        if any(trace["fsid"] == self.fsid for trace in ceph_daemon.traces(self.cluster)):
            return [
                path for pattern in [*patterns, f"{ETC}/{self.cluster}.conf"] for path in sorted(glob.glob(pattern))
            ]
        return []

    def _stop(self, pretend: bool) -> list[str]:
        rows = self.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "ceph-*@*.service"], None, 60)[1]
        names = [line.split()[0] for line in rows.splitlines() if line.strip()]
        kinds = tuple(f"ceph-{kind}@" for kind in ("mds", "mgr", "osd", "mon"))
        links = glob.glob("/etc/systemd/system/*.wants/ceph-*@*.service")
        wanted = {*names, *map(os.path.basename, links)}
        running = [name for name in sorted(wanted) if name.startswith(kinds) and self._is_on(name)]
        if running and not pretend:
            self._must(["systemctl", "disable", "--now", *running])
        return [f"stop {name.removesuffix('.service')}" for name in running]

    def _is_on(self, unit: str) -> bool:
        said = [self.run(["systemctl", verb, unit], None, 60)[1].strip() for verb in ("is-active", "is-enabled")]
        return said[0] in ("active", "activating", "deactivating", "reloading") or said[1] == "enabled"

    def _release(self, records: Sequence[dict[str, Any]], path: str) -> None:
        """The directory of an OSD, which is in memory, refers to its device."""
        for row in records:
            directory = f"{LIB}/osd/{self.cluster}-{row['id']}"
            if row["device"] == path and os.path.ismount(directory):
                self._must(["umount", directory])

    def _must(self, argv: list[str]) -> None:
        rc, stdout, stderr = self.run(argv, None, 600)
        if rc != 0:
            raise Refused(f"'{' '.join(argv)}' ended with {rc}: {(stderr or stdout).strip()}", "run it again")


def _remove_unit(path: str) -> None:
    """A file of systemd, and its directory of drop-ins where nothing else is in it."""
    os.unlink(path)
    directory = os.path.dirname(path)
    if directory.endswith(".d") and not os.listdir(directory):
        os.rmdir(directory)


def _remove(path: str) -> None:
    try:
        host_files.remove(path)
    except host_files.Unsafe as wrong:
        raise Refused(str(wrong)) from None
