# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler of Slurm keeps: files in the cluster's state directory, which two controllers share.

    DIRECTORY/verdicts/HOST.json    what the agent of the host has said last
    DIRECTORY/journal/HOST.json     {memory, last, clear}: what is known of the node, and its last entries
    DIRECTORY/orders/HOST.json      for that agent: {order, clear}
    DIRECTORY/fleet.json            the breaker's memory
    DIRECTORY/requests/NAME.json    what operators ask of the reconciler
    DIRECTORY/leader.json           {by, time}: who leads
    ….json.unreadable               what could not be used, as it was

Root alone can read and write them. The directory above is slurmctld's, so nothing is written through a link in it. The
agents tell their verdicts (receiver.py) to the reconcilers on all hosts of slurmctld; the one that leads writes them.
Every reconciler hears again from every agent within a heartbeat, and what was done is seen in Slurm. So a disk that is
full, or a file system that is away, keeps the reconciler from remembering, which it tells, and not from fencing.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import published as published_verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Published, Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import BYTES_AT_MOST, json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows as stored_rows
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import NotLeading
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.receiver import Addresses, Receiver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

PARENTS = ("journal", "orders", "requests", "verdicts")
# A node whose agent has said nothing for so long is silent: three heartbeats.
SILENT_S = 90.0
# How often it is looked for silent agents and for requests, and by those who wait for who is in charge.
TICK_S, WAIT_S = 0.5, 2.0
# A controller that does not answer may only be restarting. The others wait so long before one of them leads.
AWAY_S = 15.0
# How often the leader says that it still leads, and how long that counts.
LEADS_S, LED_S = 5.0, 60.0
READ_AT_MOST = 4 * BYTES_AT_MOST
# Of one that does not lead, nobody takes them.
REPAIRED_AT_MOST = 100


class InCharge:
    """Whether the slurmctld of this host is in charge: the first of the cluster's that answers, or did a moment ago."""

    def __init__(self, slurm: Slurm, name: str = "") -> None:
        self._slurm, self._name = slurm, _short(name or socket.gethostname())
        self._seen: dict[str, float] = {}
        self._is = False

    def __call__(self) -> bool:
        found = {_short(name): answers for name, answers in self._slurm.controllers().items()}
        if len(found) <= 1:
            # There is no other one. Where slurmctld is away, its commands tell so.
            return True
        now = time.monotonic()
        is_first = not self._seen
        for name, answers in found.items():
            # Another one may only be restarting.
            if answers or (is_first and name != self._name):
                self._seen[name] = now
        alive = [name for name in found if name in self._seen and now - self._seen[name] < AWAY_S]
        # Where none answers, whoever has led still does.
        self._is = alive[0] == self._name if alive else self._is
        return self._is


class Place:
    """Ours among those who want to lead. On one host only one leads, whoever is in charge."""

    def __init__(self, store: FileStore, name: str) -> None:
        self.store, self.name = store, name
        self._cancelled = threading.Event()
        self._lock: int | None = None

    def acquire(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not self._cancelled.is_set():
            if self._take_lock() and self.store.is_in_charge():
                self.store.lead(self.name)
                return True
            if end is not None and time.monotonic() >= end:
                return False
            self._cancelled.wait(WAIT_S if end is None else TICK_S)
        return False

    def _take_lock(self) -> bool:
        if self._lock is None:
            os.makedirs(os.path.dirname(self.store.lock), exist_ok=True)
            descriptor = os.open(self.store.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def cancel(self) -> None:
        self._cancelled.set()

    def release(self) -> None:
        self.store.end_lead()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class FileStore:
    """See `Store`."""

    UNREACHABLE: tuple[type[Exception], ...] = (OSError,)
    NAME = "the state directory"

    def __init__(self, settings: Settings, in_charge: Callable[[], bool] | None = None) -> None:
        self.directory = Path(str(settings.state_directory))
        self.lock = os.path.join(os.path.dirname(settings.journal), "lock")
        self.settings = settings
        self._in_charge = in_charge or InCharge(Slurm(timeout_s=settings.request_timeout_s))
        self.refused: dict[str, str] = {}
        self.repaired: list[str] = []
        # Why nothing can be kept; empty if it can.
        self.problem = ""
        # Host -> what its agent says, and when it was heard last.
        self._verdicts: dict[str, tuple[Published, float]] = {}
        self._orders: dict[str, dict[str, Any]] = {}
        self._mutex = threading.RLock()
        self._changed: Callable[[bool, bool], None] = lambda _connected, _lost: None
        self._news: Callable[[str | None], None] | None = None
        self._asked: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._receiver: Receiver | None = None
        self._leader: str | None = None

    def listen(self, changed: Callable[[bool, bool], None]) -> None:
        self._changed = changed

    def place(self, name: str) -> Place:
        return Place(self, name)

    @staticmethod
    def take(place: Place, timeout_s: float | None = None) -> bool:
        return place.acquire(timeout_s)

    def open(self) -> None:
        """Take in what the agents have said before."""
        now = time.monotonic()
        for host in self._names("verdicts"):
            with contextlib.suppress(OSError):
                self._verdicts[host] = published_verdict.read(host, self._read("verdicts", host)), now
        self._changed(True, False)

    def serve(self) -> None:
        """Hear the agents from now on. Raises Wrong where the port is another program's."""
        try:
            self._receiver = Receiver(
                self.settings.port,
                Addresses(self.settings.slurm_conf),
                self.receive,
                lambda peer, why: self._repair(f"what {peer} says is refused: {why}"),
                self.settings.munge,
            )
        except OSError as why:
            raise Wrong(
                f"port {self.settings.port} cannot be listened on: {why.strerror}",
                f"see `ss -ltnp 'sport = :{self.settings.port}'`, or set gpu_reconciler_port for the whole site",
            ) from why
        threading.Thread(target=self._watch, daemon=True).start()

    def renew(self) -> None:
        """There is no session."""

    def close(self) -> None:
        self._ended.set()
        if self._receiver is not None:
            self._receiver.close()

    def prepare(self) -> None:
        """Make the directories. The one above has to be there: it is slurmctld's, and may not be mounted."""
        with self._keeping():
            os.stat(self.directory.parent)
            for name in ("", *PARENTS):
                files.make_directories(os.path.join(self.directory, name), 0o700)

    def prepare_hosts(self) -> None:
        """Hosts have no places of their own."""

    def refresh(self) -> bool:
        """Hosts have no logins of their own."""
        return False

    # Leading.

    def is_in_charge(self) -> bool:
        try:
            return self._in_charge()
        except CallFailed:
            return False

    def lead(self, name: str) -> None:
        self._leader = name
        self._say_leading()
        with self._mutex:
            for host, (told, _at) in self._verdicts.items():
                self._keep_verdict(host, told)

    def end_lead(self) -> None:
        if self._leader is not None and self._is_ours():
            with contextlib.suppress(OSError):
                files.remove(self._path("", "leader"))
        self._leader = None

    def leader(self) -> str | None:
        """Who leads; None for nobody."""
        with contextlib.suppress(OSError, Malformed):
            told = json_object(self._read("", "leader"))
            at = told.get("time")
            if isinstance(at, (int, float)) and abs(time.time() - at) < LED_S:
                return one_line(told.get("by"))
        return None

    def _say_leading(self) -> None:
        self._write("", "leader", {"by": self._leader, "time": time.time()})

    def _is_ours(self) -> bool:
        """Whether nobody else has come to lead. Where that cannot be read, nobody else can either."""
        try:
            return json_object(self._read("", "leader")).get("by") == self._leader
        except (OSError, Malformed):
            return True

    def _watch(self) -> None:
        """Until the end: silent agents, requests, and whether slurmctld is still in charge here."""
        silent: set[str] = set()
        said_at = 0.0
        while not self._ended.wait(TICK_S):
            now = time.monotonic()
            with self._mutex:
                found = {host for host, (_told, at) in self._verdicts.items() if now - at > SILENT_S}
            for host in found ^ silent:
                self._tell_news(host)
            silent = found
            if self._asked is not None and self._names("requests"):
                self._asked()
            if self._leader is None:
                continue
            if now - said_at >= LEADS_S:
                said_at = now
                # That takes a while where a controller does not answer, so it comes first.
                if not self.is_in_charge() or not self._is_ours():
                    self._changed(True, True)
                else:
                    self._say_leading()

    # What only the leader reads and writes.

    def load(self, keep: bool = False) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]], dict[str, str]]:
        """See `Store.load`. What cannot be used is begun anew: the steps of Slurm need nothing that was remembered."""
        self._orders = {}
        rows: dict[str, dict[str, Any]] = {}
        for host in self._names("journal"):
            row = self._usable("journal", host, functools.partial(stored_rows.node, plan, host), keep)
            if row and "apart" not in row:
                rows[host] = row
        return self._usable("", "fleet", stored_rows.fleet, keep), rows, {}

    def _usable(
        self, parent: str, name: str, check: Callable[[bytes], dict[str, Any]], keep: bool
    ) -> dict[str, Any] | None:
        """What a file has; None where it cannot be used. With `keep` it is put aside then."""
        try:
            return check(self._read(parent, name))
        except FileNotFoundError:
            return {}
        except OSError as why:
            self._repair(f"{self._path(parent, name)} cannot be read: {why.strerror}")
        except Malformed as why:
            if keep:
                self._put_aside(parent, name, f"{self._path(parent, name)} cannot be used: {why}")
        return None

    def save_node(self, host: str, row: dict[str, Any]) -> None:
        self._save("journal", host, row)

    def save_fleet(self, row: dict[str, Any]) -> None:
        self._save("", "fleet", row)

    def _save(self, parent: str, name: str, row: dict[str, Any]) -> None:
        if self._leader is None or not self._is_ours():
            raise NotLeading(f"{self.directory} was taken over by another reconciler")
        self._write(parent, name, row, durable=True)

    def send(self, host: str, document: dict[str, Any]) -> None:
        """The agent gets it with its next answer."""
        self._orders[host] = document
        self._write("orders", host, document)

    def sent(self, host: str) -> dict[str, Any]:
        if host not in self._orders:
            try:
                self._orders[host] = json_object(self._read("orders", host))
            except (OSError, Malformed):
                self._orders[host] = {}
        return self._orders[host]

    # What agents and operators say.

    def receive(self, host: str, told: Mapping[str, Any] | None) -> dict[str, Any]:
        """From the receiver, which has seen that it is of that host; gives what the agent is answered."""
        found: Published | None
        try:
            found = None if told is None else published_verdict.checked(host, told)
        except Malformed as why:
            found = Unusable(str(why))
        with self._mutex:
            before = self._verdicts.get(host)
            is_new = found != (before[0] if before else None)
            if found is None:
                self._verdicts.pop(host, None)
            else:
                self._verdicts[host] = found if is_new or before is None else before[0], time.monotonic()
            if is_new and self._leader is not None:
                self._keep_verdict(host, found)
        was_silent = before is not None and time.monotonic() - before[1] > SILENT_S
        if is_new or was_silent:
            self._tell_news(host)
        return {"leads": self._leader is not None, "orders": self.sent(host) if self._leader is not None else {}}

    def _keep_verdict(self, host: str, told: Published | None) -> None:
        if isinstance(told, Mapping):
            self._write("verdicts", host, told)
        elif told is None:
            with self._keeping(), contextlib.suppress(FileNotFoundError):
                files.remove(self._path("verdicts", host))

    def _tell_news(self, host: str) -> None:
        if self._news is not None:
            self._news(host)

    def verdicts(self) -> dict[str, Published]:
        with self._mutex:
            names = sorted(self._verdicts)
        found = {host: self.verdict(host) for host in names}
        return {host: told for host, told in found.items() if told is not None}

    def verdict(self, host: str) -> Published | None:
        with self._mutex:
            told, at = self._verdicts.get(host, (None, 0.0))
        return told if time.monotonic() - at <= SILENT_S else None

    def watch(self, news: Callable[[str | None], None], asked: Callable[[], None]) -> Callable[[], None]:
        self._news, self._asked = news, asked

        def end() -> None:
            self._news = self._asked = None

        return end

    def hosts(self) -> set[str]:
        return {*self._verdicts, *self._names("journal")}

    def without_own_login(self) -> list[str]:
        """Every agent speaks for its own host alone."""
        return []

    def ask(self, request: dict[str, Any]) -> str:
        """Raises OSError where it cannot be kept."""
        name = f"r-{time.time_ns():020d}-{os.getpid()}"
        files.write(self._path("requests", name), json.dumps(request), 0o600)
        return name

    def requests(self) -> list[tuple[str, dict[str, Any] | Unusable]]:
        found: list[tuple[str, dict[str, Any] | Unusable]] = []
        for name in self._names("requests"):
            with contextlib.suppress(OSError):
                found.append((name, self._request(name)))
        return found

    def _request(self, name: str) -> dict[str, Any] | Unusable:
        try:
            return stored_rows.request(self._read("requests", name))
        except Malformed as why:
            return Unusable(str(why))

    def done(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            files.remove(self._path("requests", name))

    # Files.

    def _path(self, parent: str, name: str) -> str:
        return str(self.directory / parent / f"{name}.json")

    def _names(self, parent: str) -> list[str]:
        try:
            names = os.listdir(self.directory / parent)
        except OSError:
            return []
        stems = (name[: -len(".json")] for name in names if name.endswith(".json"))
        return sorted(stem for stem in stems if re.fullmatch(published_verdict.HOST, stem))

    def _read(self, parent: str, name: str) -> bytes:
        return files.read(self._path(parent, name), READ_AT_MOST)

    def _write(self, parent: str, name: str, row: Mapping[str, Any], durable: bool = False) -> None:
        with self._keeping():
            files.write(self._path(parent, name), json.dumps(dict(row), separators=(",", ":")), 0o600, durable=durable)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """What cannot be kept is told once, and goes on without."""
        try:
            yield
        except OSError as why:
            problem = f"{self.directory} cannot be written ({why.strerror}), so a restart forgets what happens now"
            if not self.problem:
                self._repair(f"{problem}. To do: see `df {self.directory}` and its owner")
            self.problem = problem
        else:
            self.problem = ""

    def _repair(self, why: str) -> None:
        del self.repaired[:-REPAIRED_AT_MOST]
        self.repaired.append(why)
        if self._news is not None:
            self._news(None)

    def _put_aside(self, parent: str, name: str, why: str) -> None:
        kept = files.put_aside(self._path(parent, name))
        where = f"It is kept as {kept}, and what" if kept else "What"
        self._repair(f"{why}. {where} was known of it starts empty")


def _short(name: str) -> str:
    return name.partition(".")[0]
