# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host already has of ZooKeeper, and how its server is started and restarted without losing the quorum."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_foreign_text, read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.units import Unit, is_due
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import conf as zookeeper_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words as zookeeper

# Seconds in which a server that runs may be between two leaders. After that it counts as serving nobody.
ELECTION = 15.0

Seen = dict[str, Any]
Wait = Callable[[Callable[[Seen], bool], list[Seen], float], Seen]


# --- what a host has -------------------------------------------------------------------------------------------------


def kept_id(data_dir: str) -> int | None:
    """The id in a data directory; None where there is none, or the text of a package's example."""
    text = read_foreign_text(os.path.join(data_dir, "myid")).strip()
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def has_data(*directories: str) -> bool:
    """Whether a server has ever run in these directories, ``dataDir`` and ``dataLogDir``."""
    return any(
        glob.glob(os.path.join(glob.escape(one), "version-2", pattern))
        for one in directories
        if one
        for pattern in ("snapshot.*", "log.*", "currentEpoch")
    )


def current(paths: Iterable[str]) -> dict[str, Any]:
    """The configuration that the server has now, from the first file that is there; empty without one."""
    for path in paths:
        text = read_text(path)
        if text:
            return {**zookeeper_conf.parse(text), "path": path}
    return {}


# --- starting and restarting -----------------------------------------------------------------------------------------


def _told(seen: Mapping[str, Any]) -> str:
    return "; ".join(seen["problems"])


class Server(Unit):
    """The server of this host, in its ensemble.

    :param unit: its unit of systemd.
    :param servers: all servers, with ``id``, ``host`` and ``port``.
    :param own_id: its own id among them.
    :param wait: seconds in which a server has to come back.
    """

    def __init__(
        self,
        unit: str,
        servers: list[Seen],
        own_id: int,
        wait: float,
        run: Run,
        wait_until: Wait = zookeeper.wait_until,
    ) -> None:
        super().__init__(unit, run)
        self.servers, self.own_id, self.wait, self.wait_until = servers, own_id, wait, wait_until

    def own(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        return dict(next(row for row in seen["servers"] if row["id"] == self.own_id))

    def serves(self, seen: Mapping[str, Any]) -> bool:
        """Whether it serves as a member; one that is standalone where others are wanted is none."""
        row = self.own(seen)
        return bool(row["state"] == zookeeper.SERVING and (row["mode"] != "standalone" or len(self.servers) == 1))

    def look(self) -> dict[str, Any]:
        """The ensemble, after an election that may be going on."""
        return self.wait_until(
            lambda seen: self.serves(seen) or self.own(seen)["mode"] == "standalone", self.servers, ELECTION
        )

    def stand_by(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until the ensemble is complete, so that it stands the loss of this server.

        :raises Refused: if it does not get there.
        """
        if len(self.servers) == 1:
            return dict(seen)
        seen = self.wait_until(lambda found: bool(found["complete"]), self.servers, self.wait)
        if not seen["complete"]:
            raise Refused(
                f"a restart is due and was not done, since the ensemble is not complete: {_told(seen)}. Bring that "
                "server back, then run again"
            )
        return dict(seen)

    def come_back(self, whole: bool) -> dict[str, Any]:
        """Wait until this server serves, and with `whole` until the ensemble is complete.

        :raises Refused: if that takes too long.
        """
        done = (lambda seen: bool(seen["complete"])) if whole else self.serves
        seen = self.wait_until(done, self.servers, self.wait)
        if not done(seen):
            raise Refused(
                f"after {self.wait:.0f} s it has not joined: {_told(seen)}. No other server was touched after it. Its "
                f"log ends with: {self.journal()}"
            )
        return dict(seen)


def step(
    server: Server, only: str, join: bool, files: Sequence[str], stamp: str, check: bool
) -> tuple[str, bool, dict[str, Any] | None]:
    """Start or restart the server if that is to be done, and may be done now.

    :param only: ``idle`` for a server that serves nobody, ``follower`` for one that does not lead, ``any``.
    :param join: whether it is empty and joins an ensemble that has data, and so must have joined before the next one.
    :returns: what was done (``start``, ``restart`` or nothing), whether a restart is still due, and the ensemble as it
        was last seen, None if nobody had to look.
    :raises Refused: see there.
    """
    if not server.is_running():
        if not check:
            server.systemctl("start")
        return "start", False, server.come_back(whole=False) if join and not check else None
    if join and not check:
        # An earlier run was cut before it had.
        server.come_back(whole=False)
    if not is_due(files, stamp):
        return "", False, None
    seen = server.look()
    if server.own(seen)["state"] == "not_allowed":
        raise Refused(
            "a restart is due and was not done, since srvr is not in its 4lw.commands.whitelist and nobody can tell "
            "whether it serves. Restart it by hand, once, while the other servers serve; then run again"
        )
    idle = not server.serves(seen)
    leads = server.own(seen)["mode"] in ("leader", "standalone")
    if not idle and (only == "idle" or (only == "follower" and leads)):
        return "", True, seen
    if check:
        return "restart", False, seen
    if not idle:
        server.stand_by(seen)
    server.systemctl("restart")
    return "restart", False, server.come_back(whole=True) if not idle else None
