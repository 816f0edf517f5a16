# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler as a service: waits to lead, follows the verdicts, and gives the lead back when it is told to stop."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.sd_notify import notify
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.driver import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.journal import Journal
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import (
    Backend,
    NotLeading,
    NotOurs,
    Place,
    Store,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Settings, Wrong

PAUSE_S = 1.0
# Nodes that fail together are told of within a moment; the breaker is to see them together.
GATHER_S = 0.1
# Until what takes moments is looked at again.
SOON_S = 0.25


class Service:
    """``Service(settings, backend, store).run()`` until `stop` is called."""

    def __init__(self, settings: Settings, backend: Backend, store: Store) -> None:
        self.settings, self.backend, self.store = settings, backend, store
        self.acts = settings.policy.mode == "act"
        path = None if settings.policy.mode == "dry-run" else Path(settings.journal)
        self.journal = Journal(path, file_bytes=settings.journal_bytes, files=settings.journal_files)
        # Of one look nothing is written: the file is that of the service on the same host.
        self.textfile = metrics.Textfile(None, self._tell)
        # Told, and not over yet.
        self.complaint = ""
        self.stopping, self.connected, self.lost = threading.Event(), threading.Event(), threading.Event()
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        # Of what came and was not looked at yet: hosts, and whether an operator asked something.
        self.hosts: set[str] = set()
        self.asked = False
        # Ours in the queue of those who want to lead.
        self.place: Place | None = None
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.store.listen(self._state)

    def stop(self) -> None:
        """From any thread, but not from a signal's handler, which could wait for itself."""
        self.stopping.set()
        if self.place is not None:
            self.place.cancel()
        self.events.put(("wake", None))

    def _state(self, connected: bool, lost: bool) -> None:
        if connected:
            self.connected.set()
        else:
            self.connected.clear()
            # Nobody does the leader's work now. The other thread may wait for an answer of ZooKeeper.
            self.textfile.write(metrics.STANDBY)
        if lost:
            self.lost.set()
        self.events.put(("wake", None))

    def halted(self) -> bool:
        """Without a session it may be that somebody else leads already."""
        return self.stopping.is_set() or self.lost.is_set() or not self.connected.is_set()

    # Leading.

    def run(self) -> None:
        """Raises settings.Wrong where ZooKeeper gives no session in the beginning, or the port is another's."""
        self.store.open()
        self.store.serve()
        self.textfile = metrics.Textfile(self.settings.metrics, self._tell)
        notify("READY=1\nSTATUS=waits to lead")
        try:
            while not self.stopping.is_set():
                self.textfile.write(metrics.STANDBY)
                self._try()
        finally:
            notify("STOPPING=1")
            try:
                self.store.close()
            finally:
                # After the end of the connection, which is told there.
                self.textfile.remove()

    def _try(self) -> None:
        try:
            self._contend()
        except (NotLeading, NotOurs) as why:
            self._complain(str(why))
            self.stopping.wait(PAUSE_S)
        except self.store.UNREACHABLE as why:
            self._complain(f"{self.store.NAME}: {type(why).__name__} {why}".strip())
            self.stopping.wait(PAUSE_S)
            # A place in the queue of which we do not know would make us wait for ourselves.
            self.store.renew()

    def _tell(self, why: str) -> None:
        self.journal.write("*", "problem", why=why)

    def _complain(self, why: str) -> None:
        """Once, however often it is tried again: a day without ZooKeeper must not push out what was done before it."""
        if why != self.complaint:
            self.complaint = why
            self._tell(why)

    def _contend(self) -> None:
        self.lost.clear()
        self.store.prepare()
        place = self.place = self.store.place(self.name)
        try:
            if not self.stopping.is_set() and self.store.take(place):
                self.store.prepare_hosts()
                self._lead()
        finally:
            with contextlib.suppress(*self.store.UNREACHABLE):
                place.cancel()
                place.release()
            notify("STATUS=waits to lead")

    def _lead(self) -> None:
        """As long as the session lasts. What a lost connection left open is taken up again like after a crash."""
        end = self.store.watch(
            lambda host: self.events.put(("verdict", host)), lambda: self.events.put(("request", None))
        )
        leads = False
        try:
            while not self.stopping.is_set() and not self.lost.is_set():
                if not self.connected.wait(PAUSE_S):
                    self.textfile.write(metrics.STANDBY)
                    continue
                try:
                    driver = self._driver(first=not leads)
                    leads = True
                    self._follow(driver)
                except self.store.UNREACHABLE as why:
                    self.textfile.write(metrics.STANDBY)
                    self._complain(f"{self.store.NAME}: {type(why).__name__} {why}".strip())
                    self.stopping.wait(PAUSE_S / 10)
        finally:
            end()

    def _driver(self, first: bool = True) -> Driver:
        """With what is known from before; the first one under a lead is told of."""
        fleet, rows, apart = self.store.load(keep=self.acts)
        driver = Driver(
            self.store,
            self.backend,
            self.settings.policy,
            self.journal,
            fleet,
            rows,
            self.halted,
            self._take,
            apart=apart,
        )
        driver.verdicts = self.store.verdicts()
        self._tell_repairs()
        if first:
            mode = self.settings.policy.mode
            self.journal.write("*", "lead", by=self.name, mode=mode, nodes=len(driver.memories))
        notify(f"STATUS=leads, mode {self.settings.policy.mode}")
        return driver

    def _follow(self, driver: Driver) -> None:
        due, self.asked = 0.0, True
        while not self.halted():
            self._wait(driver, due)
            if self.halted():
                return
            if self.store.repaired:
                self._tell_repairs()
            hosts: set[str] | None = self.hosts
            if time.monotonic() >= due:
                self._take_logins(driver)
                hosts, due = None, time.monotonic() + self.settings.poll_s
            self.hosts = set()
            try:
                if self.asked:
                    self._serve(driver)
                driver.turn(hosts)
                self.complaint = ""
                if driver.soon:
                    self.hosts |= driver.soon
                    due = min(due, time.monotonic() + SOON_S)
            except CallFailed as why:
                # The scheduler is away for a while; what is to be done is still there afterwards. Not by `due`: what an
                # operator asked is not waited for.
                self._complain(str(why))
                self.stopping.wait(min(PAUSE_S, self.settings.poll_s))
                due = 0.0
            self.textfile.write(metrics.leader(driver, self.store.refused, self.complaint))

    def _take_logins(self, driver: Driver) -> None:
        """Hosts come and get other logins while the reconciler runs."""
        try:
            if not self.store.refresh():
                return
        except Wrong as why:
            self._complain(str(why))
            return
        self.store.prepare_hosts()
        driver.verdicts = self.store.verdicts()
        self._tell_repairs()

    def _tell_repairs(self) -> None:
        for why in self.store.repaired:
            self.journal.write("*", "repair", why=why)
        for host, why in sorted(self.store.refused.items()):
            self.journal.write(host, "problem", why=why)
        self.store.repaired = []

    def _wait(self, driver: Driver, due: float) -> None:
        """Until a verdict changes, something is asked or a look is due."""
        while not self.hosts and not self.asked and not self.halted():
            patience = due - time.monotonic()
            if patience <= 0:
                return
            self._take(driver, patience)
        if self.hosts:
            until = time.monotonic() + GATHER_S
            while (left := until - time.monotonic()) > 0 and not self.halted():
                self._take(driver, left)

    def _take(self, driver: Driver, patience: float = 0.0) -> None:
        """What has come in; waits so many seconds for the first."""
        while True:
            try:
                kind, value = self.events.get(timeout=patience) if patience else self.events.get_nowait()
            except queue.Empty:
                return
            patience = 0.0
            if kind == "verdict":
                self._look_at(driver, value)
            self.asked = self.asked or kind == "request"

    def _look_at(self, driver: Driver, host: str | None) -> None:
        """A host whose verdict may be another, or all where there may be new ones."""
        if host is None:
            found = self.store.verdicts()
            self.hosts |= {name for name in {*found, *driver.verdicts} if found.get(name) != driver.verdicts.get(name)}
            driver.verdicts = found
            return
        self.hosts.add(host)
        told = self.store.verdict(host)
        if told is None:
            driver.verdicts.pop(host, None)
        else:
            driver.verdicts[host] = told

    def _serve(self, driver: Driver) -> None:
        if not driver.nodes:
            driver.look()
        for name, request in self.store.requests() if self.acts else ():
            if isinstance(request, Unusable):
                self.journal.write("*", "problem", why=f"request {name} is ignored: {request.why}")
            else:
                driver.request(name, request)
            self.store.done(name)
        self.asked = False

    # One look.

    def once(self) -> bool:
        """All nodes, each as far as it goes without waiting; False if somebody else leads. Raises CallFailed."""
        self.store.open()
        try:
            if not self.acts:
                self._driver().turn()
                return True
            self.store.prepare()
            place = self.store.place(self.name)
            if not self.store.take(place, PAUSE_S):
                return False
            try:
                self.store.prepare_hosts()
                driver = self._driver()
                self._serve(driver)
                driver.turn()
            finally:
                place.release()
            return True
        finally:
            self.store.close()
