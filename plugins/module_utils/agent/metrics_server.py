# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics over HTTP, for a Prometheus that scrapes the agent itself. Only where a port is asked for.

A scrape gets what was published last; it never asks a GPU. Nobody who connects can hold up the agent: no call waits for
a client, and what a client may send, how long it may take, and how many there may be is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish

REQUEST_AT_MOST = 8192
CLIENTS_AT_MOST = 16
CLIENT_S = 5.0
PATH = "/metrics"


@dataclass
class Settings:
    """Where it listens: an IP address of the host, and a port."""

    port: int
    address: str = "127.0.0.1"


def response(request: bytes, body: bytes) -> bytes:
    """The answer to the head of a request: `body` to GET and HEAD of PATH."""
    method, _space, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    status = "200 OK"
    if method not in ("GET", "HEAD"):
        status, body = "405 Method Not Allowed", b"only GET\n"
    elif path != PATH:
        status, body = "404 Not Found", f"only {PATH}\n".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)


class Client:
    """One connection: its request is read, then the answer is sent, each as far as it goes without waiting."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + CLIENT_S
        self.answer: bytes | None = None
        self._request = b""

    def go_on(self, body: bytes) -> bool:
        """Whether it is to be waited for further. Raises OSError where the client has gone."""
        if self.answer is None:
            try:
                chunk = self.connection.recv(REQUEST_AT_MOST)
            except BlockingIOError:
                return True
            self._request += chunk
            if b"\r\n\r\n" not in self._request:
                return bool(chunk) and len(self._request) < REQUEST_AT_MOST
            self.answer = response(self._request, body)
        with contextlib.suppress(BlockingIOError):
            self.answer = self.answer[self.connection.send(self.answer) :]
        return bool(self.answer)


class Listener:
    """An open port and its clients. Raises OSError, with the remedy, where the port cannot be opened."""

    def __init__(self, settings: Settings) -> None:
        family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((settings.address, settings.port))
            self.socket.listen(CLIENTS_AT_MOST)
        except OSError as failure:
            self.socket.close()
            raise OSError(_why_not(settings, failure)) from failure
        self.socket.setblocking(False)
        self.clients: dict[int, Client] = {}
        self.selector = selectors.EpollSelector()
        self.selector.register(self.socket, selectors.EVENT_READ)

    def serve(self, body: bytes) -> None:
        """Goes on with whoever is ready."""
        for key, _mask in self.selector.select(0):
            client = self.clients.get(key.fd)
            if key.data is None:
                self._accept()
            elif client is not None and client is key.data:
                # Another one may have its number by now.
                self._go_on(client, body)
        self.drop_late()

    def drop_late(self) -> None:
        now = time.monotonic()
        for client in [client for client in self.clients.values() if client.deadline < now]:
            self._drop(client)

    def close(self) -> None:
        # Nothing is unregistered: a child would take it from the agent's own selector.
        for client in self.clients.values():
            client.connection.close()
        self.socket.close()
        self.selector.close()

    def _accept(self) -> None:
        try:
            connection, _address = self.socket.accept()
        except OSError:
            # Gone again.
            return
        connection.setblocking(False)
        if len(self.clients) >= CLIENTS_AT_MOST:
            self._drop(min(self.clients.values(), key=lambda client: client.deadline))
        client = self.clients[connection.fileno()] = Client(connection)
        self.selector.register(connection, selectors.EVENT_READ, client)

    def _go_on(self, client: Client, body: bytes) -> None:
        try:
            if not client.go_on(body):
                self._drop(client)
            elif client.answer:
                self.selector.modify(client.connection, selectors.EVENT_WRITE, client)
        except OSError:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        self.selector.unregister(client.connection)
        del self.clients[client.connection.fileno()]
        client.connection.close()


def _why_not(settings: Settings, failure: OSError) -> str:
    remedy = (
        "stop what listens there, or give another gpu_agent_metrics_port"
        if failure.errno == errno.EADDRINUSE
        else "give an address of this host as gpu_agent_metrics_address"
    )
    return f"metrics are not served at {settings.address} port {settings.port} ({failure.strerror}). To do: {remedy}"


class MetricsServer:
    """A publisher. `pipe` can be waited for, and `hear` is to be called when it is ready; see agent.py."""

    def __init__(self, settings: Settings, dcgm_names: str = "none") -> None:
        self.settings = settings
        self.dcgm_names = dcgm_names
        self._body = b""
        self._listener: Listener | None = None
        # A child that hangs in the kernel must not keep the port from the next agent.
        os.register_at_fork(after_in_child=self.close)

    @property
    def pipe(self) -> selectors.EpollSelector | None:
        return self._listener.selector if self._listener else None

    def publish(self, result: dict[str, Any]) -> None:
        """Raises OSError where it cannot listen; the next publication tries again."""
        self._body = publish.page(result, self.dcgm_names).encode("utf-8")
        if self._listener is None:
            self._listener = Listener(self.settings)
        self._listener.drop_late()

    def hear(self) -> list[dict[str, Any]]:
        """Serves who is ready. Nobody orders anything here, so nothing is heard."""
        if self._listener:
            self._listener.serve(self._body)
        return []

    def close(self) -> None:
        """Who scrapes is refused from now on, so the series end."""
        if self._listener:
            self._listener.close()
            self._listener = None
