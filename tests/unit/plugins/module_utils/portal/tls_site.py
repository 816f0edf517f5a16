# SPDX-License-Identifier: GPL-3.0-or-later
"""An authority with certificates of a hub and of two sessions, and servers that have them."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import identity
from ansible_collections.baremetal.gpu.plugins.plugin_utils.certificates import Authority, Pair

NAMES = {name: identity.certified(digit * 32) for name, digit in (("alice", "a"), ("bob", "b"))}


class Site:
    def __init__(self, directory: Path) -> None:
        self._authority = Authority(str(directory / "tls"))
        self._authority.make()
        self.authority = self._authority.certificate
        for name, what in {**NAMES, "hub": "127.0.0.1"}.items():
            self._authority.sign(name, [what], 2)

    def pair(self, name: str) -> Pair:
        return self._authority.pair(name)

    def environment(self) -> dict[str, str]:
        """What the session of alice has."""
        own = self.pair("alice")
        return {
            "JUPYTERHUB_SSL_CERTFILE": own.certificate,
            "JUPYTERHUB_SSL_KEYFILE": own.key,
            "JUPYTERHUB_SSL_CLIENT_CA": self.authority,
        }


class Server(ThreadingHTTPServer):
    """Keeps what came to it: path, token and body; and answers everything with `says`."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.came: list[tuple[str, str, object]] = []
        self.says = b"[]"
        self.status = 200
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        sent = json.loads(self.rfile.read(size)) if size else None
        self.server.came.append((self.path, self.headers["Authorization"], sent))
        self.send_response(self.server.status)
        self.send_header("Location", "https://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.says)

    do_POST = do_GET

    def log_message(self, *words: object) -> None:
        """Nothing on the screen."""


@contextmanager
def serving(pair: Pair | None, clients_of: str = "", port: int = 0) -> Iterator[Server]:
    """:param pair: what it proves itself with; without it there is no TLS.
    :param clients_of: the authority without whose certificate nobody is answered."""
    with Server(port) as server:
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            if clients_of:
                context.load_verify_locations(clients_of)
                context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
