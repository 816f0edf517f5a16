# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for Marathon in ZooKeeper: who leads, and what the next leader must know."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import ensemble

# How Marathon says why it ends (core/base/CrashStrategy.scala).
NO_ZOOKEEPER, ZOOKEEPER_LOST, LEADERSHIP_LOST, MESOS_ERROR = 100, 101, 103, 106


def crash(code: int, text: str) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    os._exit(code)


class Store:
    """`elected` is called once, when this one leads. One that led never goes back to follow: it ends."""

    def __init__(self, flags: dict[str, str], address: str, elected: Callable[[], None]) -> None:
        self.where = ensemble.url(flags["zk"], "Bad arguments for option 'zk'", public=False)
        self.address, self.elected = address, elected
        # Who leads, as host:port.
        self.leader = ""
        self.leads = self.met = False
        self.written: dict[str, str] = {}
        self.group = ensemble.Group(
            self.where._replace(path=f"{self.where.path}/leader-curator"),
            "-latch-",
            int(flags["zk_session_timeout"]) / 1000,
            self._changed,
            lambda why: crash(NO_ZOOKEEPER, f"Failed to connect to ZooKeeper: {why}"),
            address.encode(),
            f"_c_{uuid.uuid4()}",
        )

    def start(self, wait_s: float) -> None:
        """Joins the election. Ends the program where ZooKeeper does not answer in time."""
        self.group.start()
        end = time.monotonic() + wait_s
        while not self.met:
            if time.monotonic() > end:
                crash(NO_ZOOKEEPER, f"Failed to connect to ZooKeeper {self.where.servers} within {wait_s:g} s")
            time.sleep(0.05)

    def _changed(self, members: ensemble.Members | None, own: str | None) -> None:
        if members is None:
            if self.leads:
                crash(LEADERSHIP_LOST, "Lost leadership; the session with ZooKeeper is over")
            if self.met:
                crash(ZOOKEEPER_LOST, "The session with ZooKeeper is over")
            return
        self.met = True
        first = next(iter(members), None)
        self.leader = members[first].decode() if first else ""
        if first == own and not self.leads:
            self.leads = True
            self.elected()
        elif first != own and self.leads:
            crash(LEADERSHIP_LOST, "Lost leadership")

    # Documents: kind and name -> JSON.

    def _client(self) -> Any:
        assert self.group.session
        return self.group.session.client

    def load(self) -> dict[tuple[str, str], Any]:
        from kazoo.exceptions import NoNodeError

        client, found = self._client(), {}
        client.ensure_path(f"{self.where.path}/state")
        for kind in client.get_children(f"{self.where.path}/state"):
            for name in client.get_children(f"{self.where.path}/state/{kind}"):
                path = f"{self.where.path}/state/{kind}/{name}"
                try:
                    text = client.get(path)[0].decode()
                except NoNodeError:
                    continue
                self.written[path] = text
                found[kind, urllib.parse.unquote(name)] = json.loads(text)
        return found

    def save(self, documents: dict[tuple[str, str], Any]) -> None:
        """Makes ZooKeeper hold exactly these. Ends the program where that fails: the next leader must not know less."""
        from kazoo.exceptions import KazooException
        from kazoo.retry import KazooRetry, RetryFailedError

        root = f"{self.where.path}/state"
        texts = {
            f"{root}/{kind}/{urllib.parse.quote(name, safe='')}": json.dumps(value, sort_keys=True)
            for (kind, name), value in documents.items()
        }
        retry = KazooRetry(max_tries=5, delay=0.2)
        try:
            for path, text in texts.items():
                if self.written.get(path) != text:
                    retry(self._put, path, text.encode())
                    self.written[path] = text
            for path in set(self.written) - set(texts):
                retry(self._client().delete, path)
                del self.written[path]
        except (KazooException, RetryFailedError) as why:
            crash(ZOOKEEPER_LOST, f"Failed to store: {type(why).__name__}")

    def _put(self, path: str, data: bytes) -> None:
        from kazoo.exceptions import NoNodeError

        try:
            self._client().set(path, data)
        except NoNodeError:
            self._client().create(path, data, makepath=True)
