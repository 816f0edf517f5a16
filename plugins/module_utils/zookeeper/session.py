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
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import (
    CREATE,
    EXISTS,
    NO_AUTH,
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


class Found(NamedTuple):
    """What a node holds; `owner` is the number of the session that it goes with, 0 for a lasting one."""

    data: bytes
    owner: int


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

    def follow(self, path: str) -> Found | None:
        """What a node holds, None if there is none; when it changes, `changed` has the path, once.

        Raises Failure with NO_AUTH for one that may not be read, which is followed all the same.
        """
        while True:
            refused = None
            try:
                answer = self._call(GET_DATA, text(path) + b"\1", f"read {path}")
            except Failure as wrong:
                if wrong.code not in (NO_NODE, NO_AUTH):
                    raise
                refused = wrong if wrong.code == NO_AUTH else None
            else:
                data = answer.take(max(answer.number(), 0))
                # Two transactions, two times, three versions.
                answer.take(4 * 8 + 3 * 4)
                return Found(data, answer.number("q"))
            try:
                self._call(EXISTS, text(path) + b"\1", f"look for {path}")
            except Failure as wrong:
                if wrong.code == NO_NODE:
                    return None
                raise
            if refused:
                raise refused
            # It came into being between the two.
