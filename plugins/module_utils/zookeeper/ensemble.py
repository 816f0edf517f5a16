# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers of an ensemble as the server of one host sees them, to restart it without losing the quorum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words as zookeeper

# Seconds in which a server that runs may be between two leaders. After that it counts as serving nobody.
ELECTION_S = 15.0

Seen = dict[str, Any]
Wait = Callable[[Callable[[Seen], bool], Sequence[Seen], float], Seen]


class Ensemble:
    """The members for host.member_service. A server that serves answers and is ready.

    :param servers: all servers, with ``id``, ``host`` and ``port``.
    :param own_id: the id of this host's server among them.
    :ivar seen: the ensemble as it was last seen, see four_letter_words.summary; None if nobody had to look.
    """

    mark = None
    noun = "server"
    when_incomplete = "the ensemble is not complete"
    when_missing = "it has not joined"

    def __init__(self, servers: Sequence[Seen], own_id: int, wait: Wait = zookeeper.wait_until) -> None:
        self.servers, self.own_id, self.wait = servers, own_id, wait
        self.alone = len(servers) == 1
        self.seen: Seen | None = None

    def wait_until(self, done: Callable[[Seen], bool], wait_s: float) -> Seen:
        self.seen = self.wait(done, self.servers, wait_s)
        return self.seen

    def look(self) -> Seen:
        """The ensemble, after an election that may be going on.

        :raises Refused: if the own server does not tell whether it serves.
        """
        seen = self.wait_until(
            lambda found: self.own(found)["ready"] or self._row(found)["mode"] == "standalone", ELECTION_S
        )
        if self._row(seen)["state"] == "not_allowed":
            raise Refused(
                "a restart is due and was not done: srvr is not in its 4lw.commands.whitelist, so it "
                "is unknown whether it serves",
                "restart it by hand, once, while the other servers serve; then run again",
            )
        return seen

    def _row(self, seen: Seen) -> Seen:
        return dict(next(row for row in seen["servers"] if row["id"] == self.own_id))

    def own(self, seen: Seen) -> Seen:
        row = self._row(seen)
        # One that is standalone where others are wanted is no member.
        serves = row["state"] == zookeeper.SERVING and (row["mode"] != "standalone" or self.alone)
        return {"up": serves, "leads": row["mode"] in ("leader", "standalone"), "ready": serves}
