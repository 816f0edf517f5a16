# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's nodes in ZooKeeper.

    PATH/verdicts/HOST   ephemeral, by the GPU agent of the host: what it publishes
    PATH/orders/HOST     for that agent: {order, clear}
    PATH/journal/HOST    {memory, last}: what is known of the node, and its last entries
    PATH/fleet           the breaker's memory
    PATH/requests/r-N    what operators ask of the reconciler
    PATH/election        who leads

What is written is written only if it is still what was read: a reconciler that lost its lead without noticing stops at
its next record, before it acts.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler_settings import Settings, Wrong

try:
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import (
        BadVersionError,
        CancelledError,
        KazooException,
        LockTimeout,
        NodeExistsError,
        NoNodeError,
    )
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.recipe.watchers import ChildrenWatch, DataWatch
    from kazoo.retry import KazooRetry
    from kazoo.security import make_digest_acl

    # What the client raises when it cannot tell whether something was done.
    UNREACHABLE: tuple[type[Exception], ...] = (KazooException, KazooTimeoutError)
    WHY_NOT = ""
except ImportError as missing:
    UNREACHABLE = ()
    WHY_NOT = f"the Python library kazoo is not here ({missing}). To do: install the package python3-kazoo"


# Its complaints about a lost connection come as states too.
logging.getLogger("kazoo").addHandler(logging.NullHandler())


class NotLeading(Exception):
    """Somebody else has written what only the leader writes."""


class Store:
    """`secrets` are those of reconciler_settings.py."""

    def __init__(self, settings: Settings, secrets: dict[str, str]) -> None:
        if WHY_NOT:
            raise Wrong(WHY_NOT)
        self.path = settings.path
        user, password = secrets.get("zookeeper_user"), secrets.get("zookeeper_password")
        self.acl: list[Any] | None = None
        self.agents = (secrets.get("zookeeper_agents_user"), secrets.get("zookeeper_agents_password"))
        if user and password:
            self.acl = [make_digest_acl(user, password, all=True)]
        self.client = KazooClient(
            settings.zookeeper,
            timeout=settings.session_s,
            auth_data=[("digest", f"{user}:{password}")] if user and password else None,
            default_acl=self.acl,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0),
            command_retry=KazooRetry(max_tries=3, delay=0.1, max_delay=1.0),
            randomize_hosts=True,
        )
        self._versions: dict[str, int] = {}

    def listen(self, changed: Callable[[bool, bool], None]) -> None:
        """Call it with whether there is a connection, and whether the session is over."""

        def listener(state: str) -> None:
            changed(state == KazooState.CONNECTED, state == KazooState.LOST)

        self.client.add_listener(listener)

    def place(self, name: str) -> Any:
        """A place in the queue of those who want to lead; see `take`."""
        return self.client.Lock(f"{self.path}/election", name)

    @staticmethod
    def take(place: Any, timeout_s: float | None = None) -> bool:
        """Whether the lead is ours within this time; not if the place is given up with `cancel` meanwhile."""
        try:
            return bool(place.acquire(timeout=timeout_s))
        except (LockTimeout, CancelledError):
            return False

    def open(self, timeout_s: float = 15.0) -> None:
        """Raises Wrong where no server gives a session."""
        try:
            self.client.start(timeout_s)
        except KazooTimeoutError as why:
            servers = ",".join(f"{host}:{port}" for host, port in self.client.hosts)
            raise Wrong(
                f"no ZooKeeper server of {servers} gives a session. To do: check them with the word srvr"
            ) from why

    def renew(self) -> None:
        """End the session and everything that hangs on it, and begin another one if a server gives it."""
        self.client.stop()
        with contextlib.suppress(KazooTimeoutError):
            self.client.start(2.0)

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def prepare(self) -> None:
        """The nodes that others need: the nodes' agents may write verdicts and read orders, and nothing else."""
        self.client.ensure_path(self.path, acl=self._for_agents(read=True))
        for name, acl in (
            ("verdicts", self._for_agents(read=True, create=True, delete=True)),
            ("orders", self._for_agents(read=True)),
            ("journal", self.acl),
            ("requests", self.acl),
        ):
            self._ensure(f"{self.path}/{name}", acl)

    def _for_agents(self, **what: bool) -> list[Any] | None:
        """All for us, and this for the agents. Without a user of their own they log in as we do."""
        if self.acl is None or None in self.agents:
            return self.acl
        return [*self.acl, make_digest_acl(*self.agents, **what)]

    def _ensure(self, path: str, acl: list[Any] | None) -> None:
        try:
            self.client.create(path, acl=acl)
        except NodeExistsError:
            return

    # What only the leader reads and writes.

    def load(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """(the fleet's memory or {}, host -> {memory, last})."""
        self._versions = {}
        fleet = self._read(f"{self.path}/fleet") or {}
        rows = {}
        for host in self._children("journal"):
            row = self._read(f"{self.path}/journal/{host}")
            if row:
                rows[host] = row
        return fleet, rows

    def save_node(self, host: str, row: dict[str, Any]) -> None:
        self._write(f"{self.path}/journal/{host}", row)

    def save_fleet(self, row: dict[str, Any]) -> None:
        self._write(f"{self.path}/fleet", row)

    def send(self, host: str, document: dict[str, Any]) -> None:
        """Put an order to a node, readable for its agent."""
        path, data = f"{self.path}/orders/{host}", _data(document)
        try:
            self.client.set(path, data)
        except NoNodeError:
            self.client.create(path, data, acl=self._for_agents(read=True))

    def sent(self, host: str) -> dict[str, Any]:
        try:
            data, _stat = self.client.get(f"{self.path}/orders/{host}")
        except NoNodeError:
            return {}
        return _told(data) or {}

    def _children(self, name: str) -> list[str]:
        try:
            return list(self.client.get_children(f"{self.path}/{name}"))
        except NoNodeError:
            return []

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            data, stat = self.client.get(path)
        except NoNodeError:
            return None
        self._versions[path] = stat.version
        return _told(data)

    def _write(self, path: str, row: dict[str, Any]) -> None:
        try:
            if path in self._versions:
                self._versions[path] = self.client.set(path, _data(row), version=self._versions[path]).version
            else:
                self.client.create(path, _data(row))
                self._versions[path] = 0
        except (BadVersionError, NodeExistsError, NoNodeError) as why:
            raise NotLeading(f"{path} was written by another reconciler") from why

    # What nodes publish and operators ask.

    def verdicts(self) -> dict[str, dict[str, Any]]:
        """Host -> what it publishes now."""
        found = {}
        for host in self._children("verdicts"):
            try:
                data, _stat = self.client.get(f"{self.path}/verdicts/{host}")
            except NoNodeError:
                continue
            told = _told(data)
            if told:
                found[host] = told
        return found

    def watch(
        self, verdict: Callable[[str, dict[str, Any] | None], None], request: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `verdict` with host and what it publishes, None when its session is over, and `request` when something
        is asked. Gives what ends it. The calls come from a thread of the client's."""
        live = [True]
        watched: set[str] = set()

        def follow(host: str) -> None:
            def changed(data: bytes | None, _stat: Any) -> bool:
                if live[0]:
                    verdict(host, None if data is None else _told(data))
                # A node that is gone is waited for.
                return live[0]

            watched.add(host)
            DataWatch(self.client, f"{self.path}/verdicts/{host}", changed)

        def children(hosts: list[str]) -> bool:
            for host in sorted(set(hosts) - watched) if live[0] else ():
                follow(host)
            return live[0]

        def asked(_names: list[str]) -> bool:
            if live[0]:
                request()
            return live[0]

        def end() -> None:
            live[0] = False

        ChildrenWatch(self.client, f"{self.path}/verdicts", children)
        ChildrenWatch(self.client, f"{self.path}/requests", asked)
        return end

    def hosts(self) -> set[str]:
        """The nodes that publish, or that something is known of."""
        return {*self._children("verdicts"), *self._children("journal")}

    def ask(self, request: dict[str, Any]) -> str:
        """Ask something of whoever leads; gives the name of the request, which is gone once it is done."""
        path = self.client.create(f"{self.path}/requests/r-", _data(request), sequence=True)
        return str(path).rpartition("/")[2]

    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for name in sorted(self._children("requests")):
            data, _stat = self.client.get(f"{self.path}/requests/{name}")
            found.append((name, _told(data) or {}))
        return found

    def done(self, name: str) -> None:
        self.client.delete(f"{self.path}/requests/{name}")

    def leader(self) -> str | None:
        """Who leads; None for nobody."""
        try:
            contenders = self.client.Lock(f"{self.path}/election").contenders()
        except NoNodeError:
            return None
        return str(contenders[0]) if contenders else None


def _data(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _told(data: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else, which is then as if it were not there."""
    try:
        row = json.loads(data)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
