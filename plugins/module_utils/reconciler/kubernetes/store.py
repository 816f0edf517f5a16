# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler of Kubernetes keeps, in one namespace of the API server:

    ConfigMap node.HOST     {memory, last, clear}: what is known of the node, and its last entries
    ConfigMap fleet         the breaker's memory
    ConfigMap request-NAME  what operators ask of the reconciler
    ConfigMap aside-…       what could not be used, as it was
    Lease reconciler        who leads

Nodes tell their verdicts, and get their orders, in annotations of their own objects (kubernetes/names.py), which are
watched. An object is written over only in the version in which it was read.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import published as published_verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Published, Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered, Api
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import HEARD, NODES, ORDERS, VERDICT
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows as stored_rows
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import NotLeading, NotOurs
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.settings import Settings

# A node that has said nothing for so long is silent: three heartbeats.
SILENT_S = 180.0
TICK_S, PAUSE_S = 1.0, 1.0
# A lead that is not renewed for LEASE_S may be taken by another, and is given up before that.
LEASE_S, RENEW_S, GIVE_UP_S = 15, 3.0, 10.0
KIND = "baremetal-gpu/kind"
LEASE = "reconciler"
NODE, FLEET, REQUEST, ASIDE = "node", "fleet", "request", "aside"
# A ConfigMap has 1 MiB at most.
ROW_AT_MOST = 900 << 10
REPAIRED_AT_MOST = 100
GONE, CONFLICT = 404, 409


class Unreached(OSError):
    """The API server is not reached, or refuses: whether something was done is not known."""


class Place:
    """Ours among those who want to lead."""

    def __init__(self, store: KubernetesStore, name: str) -> None:
        self.store, self.name = store, name
        self._cancelled, self._over = threading.Event(), threading.Event()
        self._seen: tuple[Any, float] = ("", 0.0)
        self._thread: threading.Thread | None = None

    def acquire(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not self._cancelled.is_set():
            at = time.monotonic()
            if self._take():
                self.store.leads_until = at + GIVE_UP_S
                self._thread = threading.Thread(target=self._renew, daemon=True)
                self._thread.start()
                return True
            if end is not None and time.monotonic() >= end:
                return False
            self._cancelled.wait(TICK_S)
        return False

    def _take(self, again: bool = False) -> bool:
        """Whether the lease is ours now. One that another has not renewed for its time may be taken."""
        with self.store.reached():
            try:
                found = self.store.api.get(f"{self.store.leases}/{LEASE}")
            except Answered as why:
                if why.status != GONE:
                    raise
                found = {"metadata": {"name": LEASE}, "spec": {}}
            spec = found.get("spec") or {}
            holder = spec.get("holderIdentity") or ""
            if holder not in ("", self.name):
                now, told = time.monotonic(), (holder, spec.get("renewTime"))
                if self._seen[0] != told:
                    self._seen = told, now
                if again or now - self._seen[1] < LEASE_S:
                    return False
            now_text = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            same = holder == self.name
            spec = {
                "holderIdentity": self.name,
                "leaseDurationSeconds": LEASE_S,
                "renewTime": now_text,
                "acquireTime": spec.get("acquireTime") if same else now_text,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (not same),
            }
            return self._put({**found, "spec": spec})

    def _put(self, lease: dict[str, Any]) -> bool:
        try:
            if "resourceVersion" in lease["metadata"]:
                self.store.api.replace(f"{self.store.leases}/{LEASE}", lease)
            else:
                self.store.api.create(self.store.leases, lease)
            return True
        except Answered as why:
            if why.status != CONFLICT:
                raise
            return False

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            at = time.monotonic()
            try:
                if not self._take(again=True):
                    break
                self.store.leads_until = at + GIVE_UP_S
            except Unreached:
                if time.monotonic() >= self.store.leads_until:
                    break
        if not self._over.is_set():
            self.store.leads_until = 0.0
            self.store.changed(True, True)

    def cancel(self) -> None:
        self._cancelled.set()

    def release(self) -> None:
        self._over.set()
        self.store.leads_until = 0.0
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        with contextlib.suppress(CallFailed, KeyError):
            found = self.store.api.get(f"{self.store.leases}/{LEASE}")
            if found["spec"].get("holderIdentity") == self.name:
                self._put({**found, "spec": {**found["spec"], "holderIdentity": ""}})


class KubernetesStore:
    """See `Store`."""

    UNREACHABLE: tuple[type[Exception], ...] = (Unreached,)
    NAME = "the API server"

    def __init__(self, settings: Settings, api: Api) -> None:
        self.settings, self.api = settings, api
        self.maps = f"/api/v1/namespaces/{settings.namespace}/configmaps"
        self.leases = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self.refused: dict[str, str] = {}
        self.repaired: list[str] = []
        # Until when nobody else can lead, by the monotonic clock.
        self.leads_until = 0.0
        self.changed: Callable[[bool, bool], None] = lambda _connected, _lost: None
        self._news: Callable[[str | None], None] | None = None
        self._asked: Callable[[], None] | None = None
        self._mutex = threading.Lock()
        # Host -> its annotations, and when it was heard last.
        self._notes: dict[str, tuple[dict[str, Any], float]] = {}
        self._read: dict[str, tuple[str, Published]] = {}
        # The version in which a ConfigMap was read or written last.
        self._versions: dict[str, str] = {}
        self._ended = threading.Event()

    def listen(self, changed: Callable[[bool, bool], None]) -> None:
        self.changed = changed

    def place(self, name: str) -> Place:
        return Place(self, name)

    @staticmethod
    def take(place: Place, timeout_s: float | None = None) -> bool:
        return place.acquire(timeout_s)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        try:
            yield
        except CallFailed as why:
            raise Unreached(str(why)) from why

    # Nodes.

    def open(self) -> None:
        """Take in what the nodes have said before. Where the API server is away, that comes later."""
        with contextlib.suppress(Unreached):
            self._list()
            self.changed(True, False)

    def serve(self) -> None:
        for work in (self._follow, self._tick):
            threading.Thread(target=work, daemon=True).start()

    def renew(self) -> None:
        """There is no session."""

    def close(self) -> None:
        self._ended.set()

    def _list(self) -> str:
        """The version of the list."""
        with self.reached():
            found = self.api.get(NODES)
        notes = {}
        for row in found.get("items") or ():
            name, told = _notes(row)
            notes[name] = told
        with self._mutex:
            gone = set(self._notes) - set(notes)
            for name in gone:
                del self._notes[name]
        for name in gone:
            self._tell_news(name)
        for name, told in notes.items():
            self._hear(name, told)
        return str((found.get("metadata") or {}).get("resourceVersion", ""))

    def _follow(self) -> None:
        """Until the end: what nodes say."""
        while not self._ended.is_set():
            with contextlib.suppress(CallFailed, OSError, KeyError, TypeError, AttributeError):
                self._watch_from(self._list())
            if not self._ended.is_set():
                self.changed(False, False)
                self._ended.wait(PAUSE_S)

    def _watch_from(self, version: str) -> None:
        """Until the end, or until what is watched is lost, which an exception tells."""
        self.changed(True, False)
        while not self._ended.is_set():
            for kind, node in self.api.watch(NODES, version):
                version = str(node["metadata"]["resourceVersion"])
                if kind != "BOOKMARK":
                    self._take(kind, node)

    def _take(self, kind: str, node: Mapping[str, Any]) -> None:
        name, told = _notes(node)
        if kind == "DELETED":
            with self._mutex:
                self._notes.pop(name, None)
            self._tell_news(name)
        else:
            self._hear(name, told)

    def _hear(self, name: str, told: dict[str, Any]) -> None:
        with self._mutex:
            before, at = self._notes.get(name, ({}, 0.0))
            beats = any(told.get(key) != before.get(key) for key in (VERDICT, HEARD))
            now = time.monotonic()
            was_silent = now - at > SILENT_S
            self._notes[name] = told, now if beats else at
        if told.get(VERDICT) != before.get(VERDICT) or (beats and was_silent):
            self._tell_news(name)

    def _tick(self) -> None:
        """Until the end: silent nodes and requests."""
        silent: set[str] = set()
        while not self._ended.wait(TICK_S):
            now = time.monotonic()
            with self._mutex:
                found = {name for name, (_told, at) in self._notes.items() if now - at > SILENT_S}
            for name in found - silent:
                self._tell_news(name)
            silent = found
            if self._asked is not None:
                with contextlib.suppress(Unreached):
                    if self._maps(REQUEST):
                        self._asked()

    def _tell_news(self, name: str) -> None:
        news = self._news
        if news is not None:
            news(name)

    def verdicts(self) -> dict[str, Published]:
        with self._mutex:
            names = sorted(self._notes)
        found = {name: self.verdict(name) for name in names}
        return {name: told for name, told in found.items() if told is not None}

    def verdict(self, host: str) -> Published | None:
        with self._mutex:
            told, at = self._notes.get(host, ({}, 0.0))
            text = told.get(VERDICT)
            if text is None or time.monotonic() - at > SILENT_S:
                return None
            # The driver tells by the object whether it is another one.
            if self._read.get(host, ("",))[0] != text:
                self._read[host] = text, published_verdict.read(host, text.encode())
            return self._read[host][1]

    def watch(self, news: Callable[[str | None], None], asked: Callable[[], None]) -> Callable[[], None]:
        self._news, self._asked = news, asked

        def end() -> None:
            self._news = self._asked = None

        return end

    def send(self, host: str, document: dict[str, Any]) -> None:
        text = json.dumps(document, separators=(",", ":")) if any(document.values()) else None
        with self.reached():
            try:
                node = self.api.patch(f"{NODES}/{host}", {"metadata": {"annotations": {ORDERS: text}}})
            except Answered as why:
                # A node that is gone is told of nothing.
                if why.status != GONE:
                    raise
            else:
                self._hear(*_notes(node))

    def sent(self, host: str) -> dict[str, Any]:
        with self._mutex:
            text = self._notes.get(host, ({}, 0.0))[0].get(ORDERS)
        try:
            return json_object(text) if text else {}
        except Malformed:
            return {}

    def hosts(self) -> set[str]:
        with self._mutex:
            return {name for name, (told, _at) in self._notes.items() if VERDICT in told} | {*self._hosts()}

    def _hosts(self) -> Iterator[str]:
        with contextlib.suppress(Unreached):
            yield from (name[len(NODE) + 1 :] for name in self._maps(NODE))

    def without_own_login(self) -> list[str]:
        """Every kubelet writes its own node alone."""
        return []

    # What is kept.

    def prepare(self) -> None:
        """The namespace and the rights are made with the cluster."""
        try:
            self.api.get(self.maps)
        except Answered as why:
            where = f"the namespace {self.settings.namespace} cannot be used: {why}"
            raise NotOurs(f"{where}. To do: run `gpuops up --tags kubernetes`") from why
        except CallFailed as why:
            raise Unreached(str(why)) from why

    def prepare_hosts(self) -> None:
        """Hosts have no places of their own."""

    def refresh(self) -> bool:
        """Hosts have no logins of their own."""
        return False

    def leader(self) -> str | None:
        with self.reached():
            try:
                spec = self.api.get(f"{self.leases}/{LEASE}").get("spec") or {}
            except Answered as why:
                if why.status != GONE:
                    raise
                return None
        with contextlib.suppress(ValueError):
            at = datetime.datetime.strptime(str(spec.get("renewTime")), "%Y-%m-%dT%H:%M:%S.%fZ")
            age = time.time() - at.replace(tzinfo=datetime.timezone.utc).timestamp()
            if abs(age) < 4 * LEASE_S:
                return one_line(spec.get("holderIdentity") or "") or None
        return None

    def load(self, keep: bool = False) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]], dict[str, str]]:
        """See `Store.load`. What cannot be used is begun anew: the steps need nothing that was remembered."""
        self._versions = {}
        rows: dict[str, dict[str, Any]] = {}
        for name, found in self._maps(NODE).items():
            host = name[len(NODE) + 1 :]
            row = self._usable(name, found, functools.partial(stored_rows.node, plan, host), keep)
            if row and "apart" not in row:
                rows[host] = row
        fleet = self._maps(FLEET).get(FLEET)
        return {} if fleet is None else self._usable(FLEET, fleet, stored_rows.fleet, keep), rows, {}

    def _maps(self, kind: str) -> dict[str, dict[str, Any]]:
        query = urllib.parse.urlencode({"labelSelector": f"{KIND}={kind}"})
        with self.reached():
            found = self.api.get(f"{self.maps}?{query}").get("items") or ()
        return {row["metadata"]["name"]: row for row in found}

    def _usable(
        self, name: str, found: Mapping[str, Any], check: Callable[[bytes], dict[str, Any]], keep: bool
    ) -> dict[str, Any] | None:
        """What a ConfigMap has; None where it cannot be used. With `keep` it is put aside then."""
        self._versions[name] = str(found["metadata"]["resourceVersion"])
        text = _row(found)
        try:
            return check(text.encode())
        except Malformed as why:
            if keep:
                kept = f"{ASIDE}-{time.time_ns()}"
                with self.reached():
                    self.api.create(self.maps, self._map(kept, ASIDE, {"name": name, "row": text}))
                self._repair(f"ConfigMap {name} cannot be used: {why}. It is kept as {kept}, and a new one is started")
        return None

    def _map(self, name: str, kind: str, data: Mapping[str, str]) -> dict[str, Any]:
        about = {"name": name, "namespace": self.settings.namespace, "labels": {KIND: kind}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": dict(data)}

    def save_node(self, host: str, row: dict[str, Any]) -> None:
        self._save(f"{NODE}.{host}", NODE, row)

    def save_fleet(self, row: dict[str, Any]) -> None:
        self._save(FLEET, FLEET, row)

    def _save(self, name: str, kind: str, row: dict[str, Any]) -> None:
        if time.monotonic() >= self.leads_until:
            raise NotLeading("the lease was not renewed in time")
        text = json.dumps(row, separators=(",", ":"))
        while len(text) > ROW_AT_MOST and row.get("last"):
            row = {**row, "last": row["last"][1:]}
            text = json.dumps(row, separators=(",", ":"))
        body = self._map(name, kind, {"row": text})
        known = self._versions.get(name)
        with self.reached():
            try:
                if known is None:
                    found = self.api.create(self.maps, body)
                else:
                    body["metadata"]["resourceVersion"] = known
                    found = self.api.replace(f"{self.maps}/{name}", body)
            except Answered as why:
                if why.status in (CONFLICT, GONE):
                    raise NotLeading(f"another reconciler has written {name}: {why}") from why
                raise
        self._versions[name] = str(found["metadata"]["resourceVersion"])

    # What operators ask.

    def ask(self, request: dict[str, Any]) -> str:
        name = f"{REQUEST}-{time.time_ns():020d}-{os.getpid()}"
        with self.reached():
            self.api.create(self.maps, self._map(name, REQUEST, {"row": json.dumps(request)}))
        return name

    def requests(self) -> list[tuple[str, dict[str, Any] | Unusable]]:
        return [(name, _request(row)) for name, row in sorted(self._maps(REQUEST).items())]

    def done(self, name: str) -> None:
        with self.reached():
            try:
                self.api.delete(f"{self.maps}/{name}")
            except Answered as why:
                if why.status != GONE:
                    raise

    def _repair(self, why: str) -> None:
        del self.repaired[:-REPAIRED_AT_MOST]
        self.repaired.append(why)


def _row(found: Mapping[str, Any]) -> str:
    return str((found.get("data") or {}).get("row", ""))


def _request(found: Mapping[str, Any]) -> dict[str, Any] | Unusable:
    try:
        return stored_rows.request(_row(found).encode())
    except Malformed as why:
        return Unusable(str(why))


def _notes(node: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(name, annotations of ours) of a node."""
    about = node["metadata"]
    notes = about.get("annotations") or {}
    return str(about["name"]), {key: str(notes[key]) for key in (VERDICT, HEARD, ORDERS) if key in notes}
