# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's findings in ZooKeeper, as an ephemeral node, and what the reconciler has to say to this host.

A child process talks to ZooKeeper, so that no server that hangs can keep the agent from its work. It has the session,
and gives it up when the agent is silent for long: a verdict that nobody keeps true must not stay.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper_client import (
    ALL,
    EXPIRED,
    NODE_EXISTS,
    PERMISSIONS,
    Acl,
    Failure,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper_session import LiveSession

RETRY_S, RETRY_AT_MOST_S = 1.0, 15.0
# A child that ended is started again no sooner than this.
RESTART_S = 5.0
MESSAGE_AT_MOST = 1 << 20
NEW_SESSION = (0, bytes(16))


@dataclass
class Settings:
    """`servers` are host:port; `path` as the reconciler has it; `host` the name that Mesos' agent has here.

    `credentials` names a JSON file of mode 0600, {user, password}. Times are in seconds; after `silent_s` without a
    word of the agent the session is given up.
    """

    servers: list[str]
    host: str
    path: str = "/baremetal-gpu"
    credentials: str | None = None
    session_s: float = 10.0
    timeout_s: float = 5.0
    silent_s: float = 90.0


def secret(path: str) -> tuple[str, str]:
    """User and password. Raises Failure where the file cannot be used."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Failure(f"{path} has mode {stat.S_IMODE(mode):04o} and holds a password. To do: chmod 0600")
            told = json.load(file)
        return str(told["user"]), str(told["password"])
    except OSError as why:
        raise Failure(f"{path} cannot be read: {why.strerror}") from why
    except (ValueError, KeyError, TypeError) as why:
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
        self.put: bytes | None = None
        self.buffer = b""
        self.said: dict[str, Any] = {}
        self.heard_at = time.monotonic()
        self.retry_s, self.retry_at = RETRY_S, 0.0
        self.ping_at = 0.0
        self.node = f"{settings.path}/verdicts/{settings.host}"
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
        if self.wanted is not None and self.wanted != self.put:
            self._put(session, self.wanted)
        if self.orders in session.changed:
            session.changed.discard(self.orders)
            self._hand_over(session.follow(self.orders))

    def _connect(self) -> None:
        login = secret(self.settings.credentials) if self.settings.credentials else None
        session = self.session = self._session()
        if session.id != self.resume:
            self.put = None
        self.resume = session.id
        if login:
            session.authenticate(*login)
        self.retry_s, self.ping_at = RETRY_S, time.monotonic() + session.session_ms / 3000
        self._hand_over(session.follow(self.orders))
        self._say(problem=None)

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
        if self.put is None or not session.set_data(self.node, data):
            rows = [Acl(PERMISSIONS["read"], "world", "anyone")]
            rows.insert(0, Acl(ALL, "auth", "") if self.settings.credentials else Acl(ALL, "world", "anyone"))
            try:
                session.create_ephemeral(self.node, data, rows)
            except Failure as wrong:
                if wrong.code != NODE_EXISTS:
                    raise
                # Of the agent before this one, whose session is not over yet.
                session.delete(self.node)
                session.create_ephemeral(self.node, data, rows)
        self.put = data

    def _hand_over(self, data: bytes | None) -> None:
        try:
            told = json.loads(data) if data else {}
        except ValueError:
            told = {}
        if isinstance(told, dict) and (told.get("order") or told.get("clear")):
            self._say(orders=told)

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
            self.resume, self.put = None, None
        self.retry_at = time.monotonic() + self.retry_s * random.uniform(0.5, 1.0)
        self.retry_s = min(2 * self.retry_s, RETRY_AT_MOST_S)
        self._say(problem=f"ZooKeeper does not have the verdict: {why}")

    def _end(self) -> None:
        if self.session is not None:
            # The node goes with the session, at once.
            self.session.__exit__()
        self.session = self.resume = self.put = None


class ZooKeeper:
    """A publisher of agent.py. `describe` makes what is published of the agent's result; see reconcile_cards.py.

    What it hears from the reconciler comes out of `hear`, to be called when `pipe` can be read.
    """

    def __init__(self, settings: Settings, describe: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self.settings, self.describe = settings, describe
        self.pipe: socket.socket | None = None
        self.process: int | None = None
        self.problem: str | None = None
        self._buffer = b""
        self._start_at = 0.0

    def publish(self, result: dict[str, Any]) -> None:
        """Raises OSError with the reason while ZooKeeper does not have the verdicts."""
        if self.pipe is None and time.monotonic() >= self._start_at:
            self._start()
        if self.pipe is not None:
            line = json.dumps(self.describe(result), separators=(",", ":")).encode() + b"\n"
            try:
                self.pipe.setblocking(True)
                self.pipe.settimeout(1.0)
                self.pipe.sendall(line)
                self.pipe.setblocking(False)
            except OSError:
                # Stuck or gone; a half message would spoil what follows.
                self.close()
                self.problem = "the process that talks to ZooKeeper has ended"
        if self.problem:
            raise OSError(self.problem)

    def _start(self) -> None:
        self._start_at = time.monotonic() + RESTART_S
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            status = 1
            try:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    # systemd tells all of the unit at once; this one ends after the agent, with its session.
                    signal.signal(number, signal.SIG_IGN)
                signal.set_wakeup_fd(-1)
                _close_all_but(theirs.fileno())
                status = Child(self.settings, theirs).serve()
            finally:
                os._exit(status)
        theirs.close()
        ours.setblocking(False)
        self.pipe, self.process, self._buffer, self.problem = ours, process, b"", None

    def hear(self) -> list[dict[str, Any]]:
        """What the reconciler says to this host: {order, clear}."""
        found: list[dict[str, Any]] = []
        while self.pipe is not None:
            try:
                chunk = self.pipe.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
                self.problem = "the process that talks to ZooKeeper has ended"
                break
            *lines, self._buffer = (self._buffer + chunk)[-MESSAGE_AT_MOST:].split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "problem" in told:
                    self.problem = told["problem"]
                elif "orders" in told:
                    found.append(told["orders"])
        return found

    def close(self) -> None:
        """The child ends the session, and with it the verdict."""
        if self.pipe is not None:
            self.pipe.close()
        if self.process is not None:
            end = time.monotonic() + 2.0
            while os.waitpid(self.process, os.WNOHANG)[0] == 0:
                if time.monotonic() >= end:
                    os.kill(self.process, signal.SIGKILL)
                    os.waitpid(self.process, 0)
                    break
                time.sleep(0.01)
        self.pipe = self.process = None


def _close_all_but(*kept: int) -> None:
    """The agent's descriptors are not the child's: one that it held open would not end with the agent."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in kept:
            try:
                os.close(number)
            except OSError:
                continue
