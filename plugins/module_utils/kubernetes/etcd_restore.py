# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restores etcd from a snapshot, on all control planes at once.

The static pods stop while their manifests are in another directory. The data of before stay beside the new ones, and
nothing is deleted. What is under way can be seen from the files, so that a run that was cut goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import etcd, shelf
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.etcd import MANIFESTS, STOPPED, Member
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.containers import PROGRAMS, containers

ENDING = ".db"
# Who watches the cluster must not see a revision for a second time (etcd.io/docs, "Disaster recovery").
BUMP = 1_000_000_000
STOP_S, POLL_S = 180.0, 2.0
SHOWN = 3


@dataclass(frozen=True)
class Restore:
    """:ivar root: the directory that is the host's."""

    run: Run
    root: str = ""
    wait: Callable[[float], None] = time.sleep

    @property
    def _done(self) -> str:
        """Has the checksum of the snapshot that was put back already."""
        return f"{self.root}{STOPPED}/restored"

    def look(self, replace: bool) -> Member:
        """The member of etcd on this host. Raises Refused where it has data that may not go."""
        member = etcd.member(self.root)
        if member is None:
            raise Refused(
                f"the host has no member of etcd: {MANIFESTS}/etcd.yaml is not there",
                "run `gpuops restore-head` for a bare machine, or `gpuops up --tags kubernetes`",
                code="no_etcd",
                subject="etcd",
            )
        is_under_way = os.path.exists(f"{self.root}{STOPPED}/etcd.yaml")
        if not replace and not is_under_way and os.path.exists(f"{self.root}{member.data}/member"):
            raise Refused(
                f"{member.data} has the data of a cluster: what was changed in it since the snapshot would be lost",
                "give -e kubernetes_control_plane_replace=true; the data of today stay in that directory",
                code="occupied",
                subject="etcd",
            )
        return member

    def named(self, snapshot: str, directory: str, host: str) -> None:
        """Raises Refused where no whole snapshot is named."""
        member = self.look(replace=True)
        if not snapshot:
            newest = shelf.kept(directory, host, ENDING)[-SHOWN:]
            raise Refused(
                f"no snapshot is named; the newest in {directory}: {', '.join(newest) or 'none'}",
                f"give -e kubernetes_control_plane_snapshot={newest[-1] if newest else 'PATH'}",
                code="no_snapshot",
                subject="etcd",
            )
        etcd.verify(snapshot, member.image, self.run)

    def stop(self) -> None:
        """Stop the static pods of the control plane. Raises Refused where they go on."""
        host_files.make_directories(f"{self.root}{STOPPED}", 0o700)
        for name in PROGRAMS:
            with suppress(FileNotFoundError):
                os.rename(f"{self.root}{MANIFESTS}/{name}.yaml", f"{self.root}{STOPPED}/{name}.yaml")
        for _time in range(int(STOP_S / POLL_S)):
            left = [name for name in PROGRAMS if containers(self.run, name)]
            if not left:
                return
            self.wait(POLL_S)
        raise Refused(
            f"{', '.join(left)} did not stop within {STOP_S:.0f} s",
            f"see `sudo journalctl -u kubelet`, and run this again; the manifests are in {STOPPED}",
            code="not_stopped",
            subject="kubelet",
        )

    def restore(self, snapshot: str, cluster: Sequence[str]) -> None:
        """Put the snapshot in the place of the data. Raises Refused and OSError.

        :param cluster: NAME=URL of each member.
        """
        member = self.look(replace=True)
        with open(snapshot, "rb") as file:
            file.seek(-32, os.SEEK_END)
            checksum = file.read().hex()
        if host_files.read_text(self._done) != checksum:
            etcd.verify(snapshot, member.image, self.run)
            unpack(self.run, member, snapshot, cluster, checksum, self.root)
            host_files.write(self._done, checksum, 0o600)

    def start(self) -> None:
        """Let kubelet start the static pods again."""
        for name in PROGRAMS[1:] + PROGRAMS[:1]:
            # That of etcd tells that this is under way, so it is the last one.
            with suppress(FileNotFoundError):
                os.rename(f"{self.root}{STOPPED}/{name}.yaml", f"{self.root}{MANIFESTS}/{name}.yaml")
        with suppress(FileNotFoundError):
            os.unlink(self._done)
        with suppress(OSError):
            os.rmdir(f"{self.root}{STOPPED}")


def unpack(
    run: Run,
    member: Member,
    snapshot: str,
    cluster: Sequence[str],
    token: str,
    root: str = "",
    now: float | None = None,
) -> None:
    """Make the data of a member from a snapshot. What is there gets another name. Raises Refused and OSError.

    :param token: the same for all members, and for no other cluster.
    """
    data = f"{root}{member.data}"
    host_files.make_directories(data, 0o700)
    part, there = f"{data}/restored.part", f"{data}/member"
    if os.path.lexists(part):
        host_files.remove(part)
    etcd.make_room(data, snapshot)
    words: list[Any] = ["etcdutl", "snapshot", "restore", snapshot, f"--data-dir={part}", f"--name={member.name}"]
    words += [f"--initial-cluster={','.join(cluster)}", f"--initial-advertise-peer-urls={member.url}"]
    words += [f"--initial-cluster-token={token}", f"--bump-revision={BUMP}", "--mark-compacted"]
    status, _said, error = etcd.call(member.image, words, run, [os.path.dirname(snapshot)], [data])
    if status:
        raise Refused(
            f"{snapshot} was not restored: {one_line(error, 300)}",
            "correct what it names and run this again; the data of before are untouched",
            code="not_restored",
            subject="etcd",
        )
    if os.path.lexists(there):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        os.rename(there, f"{there}.before-{stamp}")
    os.rename(f"{part}/member", there)
    host_files.remove(part)
    with host_files.place(there) as place:
        place.sync()
