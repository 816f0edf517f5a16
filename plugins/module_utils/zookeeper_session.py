# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A session with ZooKeeper that is kept: ephemeral nodes, their content, and watches.

It has no thread. Who uses it calls `ping` in time, and `hear` when `connection` can be read.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Iterable

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper_client import (
    CREATE,
    EXISTS,
    NO_NODE,
    Acl,
    Failure,
    Reader,
    Session,
    acls,
    text,
)

DELETE, GET_DATA, SET_DATA, PING = 2, 4, 5, 11
XID_NOTICE, XID_PING = -1, -2
EPHEMERAL = 1
ANY_VERSION = -1


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


class LiveSession(Session):
    """As Session; `changed` are the paths whose watches fired, until they are taken out of it."""

    def __init__(self, host: str, port: int, timeout: float, session_ms: int, resume: tuple[int, bytes]) -> None:
        self.changed: set[str] = set()
        super().__init__(host, port, timeout, session_ms, resume)

    def _notice(self, number: int, notice: Reader) -> None:
        if number == XID_NOTICE:
            # Kind of change, state of the session, path.
            notice.number()
            notice.number()
            self.changed.add(notice.text())

    def hear(self) -> None:
        """Read what the server has said by itself. Raises OSError or Failure where the connection is over."""
        while select.select([self.connection], [], [], 0)[0]:
            answer = Reader(self._receive())
            number, _zxid, _code = answer.number(), answer.number("q"), answer.number()
            self._notice(number, answer)

    def ping(self) -> None:
        """Keep the session. Raises OSError or Failure where the server does not answer."""
        self._call(PING, b"", "ping", XID_PING)

    def create_ephemeral(self, path: str, data: bytes, rows: Iterable[Acl]) -> None:
        """Make a node that goes with the session; its parent must be there."""
        body = text(path) + _bytes(data) + acls(rows) + struct.pack(">i", EPHEMERAL)
        self._call(CREATE, body, f"create {path}")

    def delete(self, path: str) -> None:
        self._call(DELETE, text(path) + struct.pack(">i", ANY_VERSION), f"delete {path}")

    def set_data(self, path: str, data: bytes) -> bool:
        """Replace the content of a node; False if there is no node."""
        try:
            self._call(SET_DATA, text(path) + _bytes(data) + struct.pack(">i", ANY_VERSION), f"write {path}")
        except Failure as wrong:
            if wrong.code == NO_NODE:
                return False
            raise
        return True

    def follow(self, path: str) -> bytes | None:
        """The content of a node, None if there is none; when it changes, `changed` has the path, once."""
        try:
            answer = self._call(GET_DATA, text(path) + b"\1", f"read {path}")
        except Failure as wrong:
            if wrong.code != NO_NODE:
                raise
        else:
            return answer.take(max(answer.number(), 0))
        try:
            self._call(EXISTS, text(path) + b"\1", f"look for {path}")
        except Failure as wrong:
            if wrong.code == NO_NODE:
                return None
            raise
        # It came into being between the two.
        return self.follow(path)
