# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ZooKeeper's protocol that makes a node and its ACL: a client of one session, without watches.

The messages are those of ZooKeeper's zookeeper.jute, in the binary form of jute: big-endian numbers, and texts, bytes
and lists with their length in front. https://github.com/apache/zookeeper/tree/master/zookeeper-jute
"""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

CREATE, EXISTS, GET_ACL, SET_ACL, AUTH, CLOSE = 1, 3, 6, 7, 100, -11
XID_AUTH = -4
PERMISSIONS = {"read": 1, "write": 2, "create": 4, "delete": 8, "admin": 16}
ALL = sum(PERMISSIONS.values())
SESSION_MS = 10_000
LARGEST_REPLY = 1 << 20

# https://github.com/apache/zookeeper/blob/master/zookeeper-server/src/main/java/org/apache/zookeeper/KeeperException.java
NO_NODE, NO_AUTH, NODE_EXISTS, EXPIRED = -101, -102, -110, -112
ERRORS = {
    -4: "the connection was lost",
    -101: "there is no such node",
    -102: "not permitted: none of the given passwords allows it",
    -112: "the session has expired",
    -114: "the ACL is not valid",
    -115: "authentication failed",
}


class Failure(Exception):
    """The server answered with an error, or with something else than ZooKeeper's protocol.

    :ivar code: the number of ZooKeeper's error; 0 for another.
    """

    def __init__(self, what: str, code: int = 0) -> None:
        super().__init__(f"{what}: {ERRORS.get(code, f'error {code}')}" if code else what)
        self.code = code


class Acl(NamedTuple):
    """Who (scheme and id) may do what (sum of `PERMISSIONS`)."""

    permissions: int
    scheme: str
    id: str


def digest_id(user: str, password: str) -> str:
    """A user of the scheme `digest` as ACLs name it: with the SHA-1 of user and password."""
    # With it comes OpenSSL, which a process that always runs need not hold.
    import hashlib

    checksum = hashlib.sha1(f"{user}:{password}".encode()).digest()
    return f"{user}:{base64.b64encode(checksum).decode()}"


def text(value: str) -> bytes:
    data = value.encode("utf-8")
    return struct.pack(">i", len(data)) + data


def acls(rows: Iterable[Acl]) -> bytes:
    rows = list(rows)
    return struct.pack(">i", len(rows)) + b"".join(
        struct.pack(">i", row.permissions) + text(row.scheme) + text(row.id) for row in rows
    )


class Reader:
    """Takes an answer apart.

    :raises Failure: where it is shorter than it says.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, length: int) -> bytes:
        if length < 0 or self.position + length > len(self.data):
            raise Failure("the answer is not one of ZooKeeper")
        self.position += length
        return self.data[self.position - length : self.position]

    def number(self, kind: str = "i") -> int:
        return int(struct.unpack(f">{kind}", self.take(struct.calcsize(f">{kind}")))[0])

    def text(self) -> str:
        return self.take(max(self.number(), 0)).decode("utf-8", "replace")

    def acls(self) -> list[Acl]:
        return [Acl(self.number(), self.text(), self.text()) for _one in range(self.number())]


class Session:
    """A session with one server, for use in a `with` statement.

    :param timeout: seconds for the connection and for each answer.
    :param session_ms: how long the session is to outlive its connection; the server says what it grants.
    :param resume: `id` of a session to take up again.
    :raises OSError: if the server cannot be reached.
    :raises Failure: if it is not a server of ZooKeeper, or serves nobody.
    """

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float = 10.0,
        session_ms: int = SESSION_MS,
        resume: tuple[int, bytes] = (0, bytes(16)),
    ) -> None:
        self.xid = 0
        self.connection = socket.create_connection((host, port), timeout)
        try:
            number, password = resume
            self._send(struct.pack(">iqiqi", 0, 0, session_ms, number, len(password)) + password + b"\0")
            answer = Reader(self._receive())
            answer.number()
            # What the server grants; nothing for a session that is over.
            self.session_ms = answer.number()
            if self.session_ms <= 0:
                raise Failure("the server gave no session", EXPIRED if number else 0)
            self.id = answer.number("q"), answer.take(answer.number())
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._call(CLOSE, b"", "end the session")
        except (OSError, Failure):
            # What was asked for is done; the session ends by itself.
            pass
        finally:
            self.connection.close()

    def _send(self, data: bytes) -> None:
        self.connection.sendall(struct.pack(">i", len(data)) + data)

    def _receive(self) -> bytes:
        def exactly(length: int) -> bytes:
            data = b""
            while len(data) < length:
                part = self.connection.recv(length - len(data))
                if not part:
                    raise Failure("the server closed the connection; it may not be in a quorum")
                data += part
            return data

        (length,) = struct.unpack(">i", exactly(4))
        if not 0 <= length <= LARGEST_REPLY:
            raise Failure("the answer is not one of ZooKeeper")
        return exactly(length)

    def _call(self, kind: int, data: bytes, what: str, xid: int | None = None) -> Reader:
        if xid is None:
            self.xid += 1
            xid = self.xid
        self._send(struct.pack(">ii", xid, kind) + data)
        while True:
            answer = Reader(self._receive())
            number, _zxid, code = answer.number(), answer.number("q"), answer.number()
            if number == xid:
                if code:
                    raise Failure(what, code)
                return answer
            self._notice(number, answer)

    def _notice(self, number: int, notice: Reader) -> None:
        """What the server says by itself; here nobody waits for it."""

    def authenticate(self, user: str, password: str) -> None:
        """Act as this user too, by the scheme `digest`."""
        secret = f"{user}:{password}".encode()
        data = struct.pack(">i", 0) + text("digest") + struct.pack(">i", len(secret)) + secret
        self._call(AUTH, data, f"authenticate {user}", XID_AUTH)

    def get_acl(self, path: str) -> list[Acl] | None:
        """The ACL of a node; None if there is no node."""
        try:
            return self._call(GET_ACL, text(path), f"read the ACL of {path}").acls()
        except Failure as wrong:
            if wrong.code == NO_NODE:
                return None
            raise

    def set_acl(self, path: str, rows: Iterable[Acl]) -> None:
        self._call(SET_ACL, text(path) + acls(rows) + struct.pack(">i", -1), f"set the ACL of {path}")

    def create(self, path: str, rows: Iterable[Acl]) -> None:
        """Make a lasting node without content; its parent must be there."""
        data = text(path) + struct.pack(">i", 0) + acls(rows) + struct.pack(">i", 0)
        self._call(CREATE, data, f"create {path}")


def connect(servers: Iterable[dict[str, Any]], timeout: float = 10.0) -> Session:
    """A session with the first server that gives one.

    :raises Failure: if none does, with what each said.
    """
    said = []
    for server in servers:
        answer = _try(server, timeout)
        if isinstance(answer, Session):
            return answer
        said.append(f"{server['host']}:{server['port']}: {answer}")
    raise Failure(f"no server of ZooKeeper gave a session: {'; '.join(said)}")


def _try(server: dict[str, Any], timeout: float) -> Session | str:
    """A session, or why there is none."""
    try:
        return Session(server["host"], server["port"], timeout)
    except (OSError, Failure) as wrong:
        return str(wrong)


def in_words(rows: Iterable[Acl]) -> list[str]:
    """An ACL for people, without the checksums of passwords."""
    told = []
    for row in rows:
        names = [name for name, bit in PERMISSIONS.items() if row.permissions & bit]
        who = f"{row.scheme}:{row.id.split(':')[0]}" if row.scheme == "digest" else f"{row.scheme}:{row.id}"
        told.append(f"{who} {'all' if row.permissions == ALL else ','.join(names)}")
    return sorted(told)
