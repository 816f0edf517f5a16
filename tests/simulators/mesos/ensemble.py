# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-ins in a real ZooKeeper: URLs, sessions, and groups of ephemeral nodes of which the lowest leads.

kazoo is imported only where there is a ZooKeeper to talk to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grammar

Members = dict[str, bytes]


class Url(NamedTuple):
    servers: str
    path: str
    # user:password for ZooKeeper's digest, or nothing.
    login: str | None
    # Whether others than the owner may read: Mesos lets them, Marathon does not.
    public: bool


def url(text: str, failed: str, public: bool = True) -> Url:
    """Takes zk://[user:password@]host:port,…/path apart. Exits with `failed` if it cannot."""
    text = text.strip()
    if not text.startswith("zk://"):
        grammar.die(f"{failed}: Expecting 'zk://' at the beginning of the URL")
    rest, slash, path = text[len("zk://") :].partition("/")
    login, at, servers = rest.rpartition("@")
    if not path.strip("/"):
        grammar.die(f"{failed}: Expecting a (chroot) path for ZooKeeper ('/' is not supported)")
    if at and not all(login.partition(":")[::2]):
        grammar.die(f"{failed}: Expecting credentials of the form user:password")
    return Url(servers, slash + path.rstrip("/"), login if at else None, public)


def names_zookeeper(text: str) -> bool:
    return text.strip().startswith("zk://")


class Session:
    """One session with ZooKeeper. `gone` is set once it is over, or no server answered for as long as it lasts."""

    def __init__(self, where: Url, timeout_s: float, wake: threading.Event) -> None:
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry
        from kazoo.security import make_acl, make_digest_acl

        logging.getLogger("kazoo").addHandler(logging.NullHandler())
        logging.getLogger("kazoo").propagate = False
        login = where.login
        acl = None
        if login:
            user, _, password = login.partition(":")
            acl = [make_digest_acl(user, password, all=True)]
            acl += [make_acl("world", "anyone", read=True)] if where.public else []
        self.wake, self.gone = wake, threading.Event()
        self.timer: threading.Timer | None = None
        self.timeout_s = timeout_s
        retry = KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0)
        self.client = KazooClient(
            where.servers,
            timeout=timeout_s,
            default_acl=acl,
            auth_data=[("digest", login)] if login else None,
            connection_retry=retry,
            randomize_hosts=True,
        )
        self.client.add_listener(self._changed)
        self.client.start_async()

    def _changed(self, state: str) -> None:
        # Called by kazoo's own threads, which must not be kept.
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if state == "SUSPENDED":
            self.timer = threading.Timer(self.timeout_s, self._over)
            self.timer.daemon = True
            self.timer.start()
        elif state == "LOST":
            self._over()
        self.wake.set()

    def _over(self) -> None:
        self.gone.set()
        self.wake.set()

    def close(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as why:
            print(f"ZooKeeper: {type(why).__name__}", flush=True)


class Group:
    """The nodes PATH/…PREFIX + sequence number, and one of our own among them if `data` is given.

    `changed` is called in a thread of the group with name -> data of all members, the first that came first (None while
    there is no session), and the name of our own. `failed` is called with the reason if ZooKeeper refuses us. What
    stands before `prefix` in our own name is `unique`.
    """

    def __init__(
        self,
        where: Url,
        prefix: str,
        timeout_s: float,
        changed: Callable[[Members | None, str | None], None],
        failed: Callable[[str], None],
        data: bytes | None = None,
        unique: str = "",
    ) -> None:
        self.where, self.prefix, self.unique, self.timeout_s = where, prefix, unique, timeout_s
        self.changed, self.failed, self.data = changed, failed, data
        self.wake = threading.Event()
        self.session: Session | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
        from kazoo.handlers.threading import KazooTimeoutError

        while True:
            session = self.session = Session(self.where, self.timeout_s, self.wake)
            own = None
            while not session.gone.is_set():
                try:
                    if not session.client.connected:
                        self._rest()
                        continue
                    if own is None:
                        own = self._join(session.client)
                    members = self._members(session.client)
                    if self.data is not None and own not in members:
                        # Somebody took it away; a session that is as good as over.
                        break
                    self.changed(members, own)
                except (NoAuthError, AuthFailedError) as why:
                    self.failed(f"not authenticated ({type(why).__name__})")
                    time.sleep(1)
                except (KazooException, KazooTimeoutError):
                    time.sleep(0.1)
                    continue
                self._rest()
            self.changed(None, None)
            session.close()

    def _woken(self, _: Any) -> None:
        self.wake.set()

    def _rest(self) -> None:
        self.wake.wait(2)
        self.wake.clear()

    def _join(self, client: Any) -> str | None:
        """Makes the path, and our node. What a create without an answer left of ours in this session is taken over."""
        client.ensure_path(self.where.path)
        if self.data is None:
            return None
        mine = client.client_id[0]
        for name in client.get_children(self.where.path):
            if self._number(name):
                found = client.exists(f"{self.where.path}/{name}")
                if found and found.ephemeralOwner == mine:
                    return str(name)
        made = client.create(f"{self.where.path}/{self.unique}{self.prefix}", self.data, ephemeral=True, sequence=True)
        return str(made).rpartition("/")[2]

    def _members(self, client: Any) -> Members:
        from kazoo.exceptions import NoNodeError

        found: Members = {}
        names = client.get_children(self.where.path, watch=self._woken)
        for name in names:
            if self._number(name):
                try:
                    found[name] = client.get(f"{self.where.path}/{name}")[0]
                except NoNodeError:
                    continue
        return {name: found[name] for name in sorted(found, key=self._number)}

    def _number(self, name: str) -> str:
        """The sequence number of a member, and nothing of any other node."""
        head, found, number = name.rpartition(self.prefix) if self.prefix else ("", "", name)
        ours = found == self.prefix and bool(head) == bool(self.unique)
        return number if ours and number.isdigit() else ""
