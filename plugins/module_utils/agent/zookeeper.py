# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's findings in ZooKeeper, as an ephemeral node, and what the reconciler has to say to this host.

    PATH/hosts/HOST/verdict   with the host's own login, below a node that the reconciler has made for it alone
    PATH/verdicts/HOST        without one, or with one that hosts share, for a reconciler that knows no other place
    PATH/orders/HOST          what the reconciler says. Without a login nothing of it is heard

What it has put there is followed, and put there again when somebody else takes it away or changes it.

A child process (courier.py) has the session, and gives it up when the agent is silent for long: a verdict that nobody
keeps true must not stay.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.courier import Courier
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import orders
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import (
    ALL,
    EXPIRED,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    PERMISSIONS,
    Acl,
    Failure,
    digest_id,
    in_words,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.session import Found, LiveSession

RETRY_S, RETRY_AT_MOST_S = 1.0, 15.0
# How often a node is looked at that is other than it should be, before that is given up for now.
TURNS = 5
NEW_SESSION = (0, bytes(16))


@dataclass
class Settings:
    """`servers` are host:port; `path` as the reconciler has it; `host` the name that Mesos' agent has here.

    `credentials` names a JSON file of mode 0600, {user, password}: the host's own login. With it may be {former_user,
    former_password}, which hosts have shared, until no reconciler asks for it any more. Times are in seconds; after
    `silent_s` without a word of the agent the session is given up.
    """

    servers: list[str]
    host: str
    path: str = "/baremetal-gpu"
    credentials: str | None = None
    session_s: float = 10.0
    timeout_s: float = 5.0
    silent_s: float = 90.0


def secret(path: str) -> list[tuple[str, str]]:
    """User and password, and the former ones where there are any. Raises Failure where the file cannot be used."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Failure(f"{path} has mode {stat.S_IMODE(mode):04o} and holds a password. To do: chmod 0600")
            told = json.load(file)
        logins = [(str(told["user"]), str(told["password"]))]
        if told.get("former_user"):
            logins.append((str(told["former_user"]), str(told["former_password"])))
        return logins
    except OSError as why:
        raise Failure(f"{path} cannot be read: {why.strerror}") from why
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        raise Failure(f"{path} is not a JSON object with user and password") from why


class Child:
    """The process with the session: `serve` until the agent is gone."""

    def __init__(self, settings: Settings, pipe: socket.socket) -> None:
        self.settings, self.pipe = settings, pipe
        self.parent = os.getppid()
        self.session: LiveSession | None = None
        # To take the session up again with another server: our node then never went.
        self.resume: tuple[int, bytes] | None = None
        self.wanted: bytes | None = None
        # Path -> what we have put there in this session.
        self.kept: dict[str, bytes] = {}
        self.logins: list[tuple[str, str]] = []
        # Whom the reconciler logs in as, as our node says; None where there is no such node.
        self.reader: str | None = None
        self.own_at, self.shared_at, self.orders_at = 0.0, 0.0, 0.0
        self.buffer = b""
        self.said: dict[str, Any] = {}
        self.heard_at = time.monotonic()
        self.retry_s, self.retry_at = RETRY_S, 0.0
        self.ping_at = 0.0
        self.own = f"{settings.path}/hosts/{settings.host}"
        self.node = f"{self.own}/verdict"
        self.shared = f"{settings.path}/verdicts/{settings.host}"
        self.orders = f"{settings.path}/orders/{settings.host}"

    def serve(self) -> int:
        while True:
            self._wait()
            if not self._listen() or os.getppid() != self.parent:
                self._end()
                return 0
            if time.monotonic() - self.heard_at > self.settings.silent_s:
                self.wanted = None
                self._end()
            try:
                self._go_on()
            except (OSError, Failure) as why:
                self._lost(why)

    def _wait(self) -> None:
        due = [self.heard_at + self.settings.silent_s + 0.1]
        if self.session is not None:
            due.append(self.ping_at)
            # What may not be there yet, and nobody tells of when it comes.
            due += [at for at in (self.own_at, self.shared_at, self.orders_at) if at]
        elif self.wanted is not None:
            due.append(self.retry_at)
        # The parent may be gone while another child of its holds the pipe open.
        patience = min(max(0.0, min(due) - time.monotonic()), self.settings.session_s / 3)
        select.select([self.pipe, *([self.session.connection] if self.session else [])], [], [], patience)

    def _listen(self) -> bool:
        """Take in what the agent says, the last of it; False when it is gone."""
        while select.select([self.pipe], [], [], 0)[0]:
            chunk = self.pipe.recv(1 << 16)
            if not chunk:
                return False
            *lines, self.buffer = (self.buffer + chunk).split(b"\n")
            if lines:
                self.wanted, self.heard_at = lines[-1], time.monotonic()
        return True

    def _go_on(self) -> None:
        now = time.monotonic()
        if self.session is None:
            if self.wanted is None or now < self.retry_at:
                return
            self._connect()
        session = self.session
        if session is None:
            return
        session.hear()
        if now >= self.ping_at:
            session.ping()
            self.ping_at = now + session.session_ms / 3000
        if self.wanted is not None:
            self._put(session, self.wanted)
        if self.logins and (self.orders in session.changed or 0 < self.orders_at <= now):
            self._hear_orders(session)

    def _connect(self) -> None:
        self.logins = secret(self.settings.credentials) if self.settings.credentials else []
        session = self.session = self._session()
        # Also where it is the same session: nobody has told what became of our nodes meanwhile.
        self.kept, self.reader = {}, None
        self.own_at = self.shared_at = 0.0
        self.resume = session.id
        for login in self.logins:
            session.authenticate(*login)
        self.retry_s, self.ping_at = RETRY_S, time.monotonic() + session.session_ms / 3000
        if self.wanted is not None:
            self._put(session, self.wanted)
        self._say(problem=None)
        if self.logins:
            self._hear_orders(session)

    def _session(self) -> LiveSession:
        """With any of the servers. Raises Failure."""
        said = []
        for server in random.sample(self.settings.servers, len(self.settings.servers)):
            host, _colon, port = server.rpartition(":")
            session_ms = int(self.settings.session_s * 1000)
            try:
                return LiveSession(host, int(port), self.settings.timeout_s, session_ms, self.resume or NEW_SESSION)
            except (OSError, Failure) as why:
                if isinstance(why, Failure) and why.code == EXPIRED:
                    raise
                said.append(f"{server}: {why}")
        raise Failure(f"no server of ZooKeeper gave a session: {'; '.join(said)}")

    def _put(self, session: LiveSession, data: bytes) -> None:
        own = bool(self.logins) and self._put_own(session, data)
        if own and len(self.logins) == 1 and self.shared not in self.kept:
            self.shared_at = 0.0
            return
        if own and time.monotonic() < self.shared_at:
            return
        user = digest_id(*self.logins[-1]) if self.logins else ""
        rows = [Acl(PERMISSIONS["read"], "world", "anyone")]
        rows = [Acl(ALL, "digest", user), *rows] if user else [Acl(ALL, "world", "anyone")]
        try:
            self._keep(session, self.shared, data, rows)
            self.shared_at = 0.0
        except Failure as why:
            if not own or why.code not in (NO_NODE, NO_AUTH):
                raise
            # The reconciler has no need of it any more.
            self.kept.pop(self.shared, None)
            self.shared_at = time.monotonic() + RETRY_AT_MOST_S

    def _put_own(self, session: LiveSession, data: bytes) -> bool:
        """Below our own node; False where there is none for this login yet."""
        now = time.monotonic()
        if now < self.own_at:
            return False
        try:
            if self.reader is None or self.own in session.changed:
                self._read_reader(session)
            if self.reader is not None:
                self._keep(session, self.node, data, self._rows())
                self.own_at = 0.0
                return True
        except Failure as why:
            if why.code not in (NO_NODE, NO_AUTH):
                raise
        self.reader, self.own_at = None, now + RETRY_AT_MOST_S
        self.kept.pop(self.node, None)
        return False

    def _rows(self) -> list[Acl]:
        """All for us, and reading for the reconciler."""
        return [
            Acl(ALL, "digest", digest_id(*self.logins[0])),
            Acl(PERMISSIONS["read"], "digest", self.reader or ""),
        ]

    def _read_reader(self, session: LiveSession) -> None:
        """Whom our node is for. The reconciler changes it when it gets another login."""
        session.changed.discard(self.own)
        found, before = session.follow(self.own), self.reader
        try:
            told = json_object(found.data).get("reader") if found is not None else None
        except Malformed:
            told = None
        self.reader = told if isinstance(told, str) and told else None
        if self.reader and before not in (None, self.reader) and self.node in self.kept:
            session.set_acl(self.node, self._rows())

    def _keep(self, session: LiveSession, path: str, data: bytes, rows: list[Acl]) -> None:
        """See that it is there, of this session and with this content, and follow it."""
        if self.kept.get(path) == data and path not in session.changed:
            return
        for _turn in range(TURNS):
            session.changed.discard(path)
            if self._is_kept(session, path, data, rows):
                self.kept[path] = data
                return
        raise Failure(f"{path} is removed or changed by another client each time that it is written")

    def _is_kept(self, session: LiveSession, path: str, data: bytes, rows: list[Acl]) -> bool:
        """Whether it is as it should be; if not, it has been done what makes it so."""
        try:
            found = session.follow(path)
        except Failure as why:
            if why.code != NO_AUTH:
                raise
            found = Found(b"", 0)
        try:
            if found is None:
                session.create_ephemeral(path, data, rows)
            elif found.owner != session.id[0]:
                # Of the agent before this one, whose session is not over yet, or somebody else's.
                session.delete(path)
            elif found.data != data:
                session.set_data(path, data)
            else:
                return True
        except Failure as why:
            gone = why.code == NO_NODE and found is not None
            if not gone and why.code != NODE_EXISTS:
                raise
        return False

    def _hear_orders(self, session: LiveSession) -> None:
        session.changed.discard(self.orders)
        self.orders_at = 0.0
        try:
            found = session.follow(self.orders)
            why = self._not_ours(session.get_acl(self.orders) or []) if found is not None else ""
            told = orders(found.data) if found is not None and not why else {}
        except Malformed as wrong:
            why, told = str(wrong), {}
        except Failure as wrong:
            if wrong.code not in (NO_NODE, NO_AUTH):
                raise
            # The reconciler has not given it to this login yet, and nobody tells of that.
            self.orders_at = time.monotonic() + RETRY_AT_MOST_S
            return
        if why:
            self.orders_at = time.monotonic() + RETRY_AT_MOST_S
        self._say(problem=f"orders at {self.orders} are not obeyed: {why}" if why else None)
        if told.get("order") or told.get("clear"):
            self._say(orders=told)

    def _not_ours(self, rows: list[Acl]) -> str:
        """Why these orders may be of somebody else than the reconciler; empty if they are not."""
        users = {user for user, _password in self.logins}
        may = [row for row in rows if row.permissions & ~PERMISSIONS["read"]]
        if len(may) == 1 and may[0].scheme == "digest" and may[0].id.partition(":")[0] not in users:
            reader = (self.reader or "").partition(":")[0]
            if not reader or may[0].id.partition(":")[0] == reader:
                return ""
        return f"clients other than the reconciler can write there ({', '.join(in_words(rows)) or 'unknown clients'})"

    def _say(self, **what: Any) -> None:
        """Once; the agent needs no word of it twice."""
        if all(self.said.get(key) == value for key, value in what.items()):
            return
        self.said.update(what)
        try:
            self.pipe.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            # It is gone, which the next turn finds.
            return

    def _lost(self, why: Exception) -> None:
        if self.session is not None:
            self.session.connection.close()
        self.session = None
        if isinstance(why, Failure) and why.code == EXPIRED:
            self.resume = None
        self.retry_at = time.monotonic() + self.retry_s * random.uniform(0.5, 1.0)
        self.retry_s = min(2 * self.retry_s, RETRY_AT_MOST_S)
        self._say(problem=f"ZooKeeper does not have the verdict: {why}")

    def _end(self) -> None:
        if self.session is not None:
            # The node goes with the session, at once.
            self.session.__exit__()
        self.session = self.resume = None


class ZooKeeper(Courier):
    """A publisher of agent.py. `describe` makes what is published of a result; see reconciler/core/gpus.py."""

    def __init__(self, settings: Settings, describe: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        super().__init__(describe, lambda pipe: Child(settings, pipe).serve(), "ZooKeeper")
        self.settings = settings
