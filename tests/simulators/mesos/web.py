# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP for the stand-ins: JSON in and out, one thread per request, one lock around every answer."""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grammar
import tls

LOCK = threading.RLock()
# Of this program, as libprocess would have it.
TLS = tls.Tls(os.environ)


class Answer(Exception):
    """Ends the request with this status, body and headers."""

    def __init__(self, status: int, body: Any = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


class Request:
    def __init__(self, method: str, target: str, headers: Any, body: bytes) -> None:
        self.method, self.headers, self.body = method, headers, body
        path, _, query = target.partition("?")
        self.path = path.rstrip("/") or "/"
        self.query = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)

    def json(self) -> Any:
        try:
            return json.loads(self.body or b"null")
        except ValueError as why:
            raise Answer(400, f"Failed to parse body into JSON: {why}") from why

    def login(self) -> tuple[str, str] | None:
        kind, _, told = self.headers.get("Authorization", "").partition(" ")
        if kind != "Basic":
            return None
        user, _, secret = base64.b64decode(told).decode().partition(":")
        return user, secret


def addresses(flags: dict[str, str]) -> tuple[str, str, str]:
    """What to listen on, and the address and name that others are told, as libprocess finds them."""
    bind = flags.get("ip") or os.environ.get("LIBPROCESS_IP", "")
    if "ip_discovery_command" in flags:
        found = subprocess.run(["/bin/sh", "-c", flags["ip_discovery_command"]], stdout=subprocess.PIPE, text=True)
        bind = found.stdout.strip()
    try:
        own = flags.get("advertise_ip") or bind or socket.gethostbyname(socket.gethostname())
    except OSError as why:
        grammar.die(f"Failed to obtain the IP address for '{socket.gethostname()}': {why}")
    name = flags.get("hostname", "")
    if not name and flags["hostname_lookup"] in ("true", "1"):
        with contextlib.suppress(OSError):
            name = socket.gethostbyaddr(own)[0]
    return bind or "0.0.0.0", own, name or own


def serve(
    ip: str,
    port: int,
    handle: Callable[[Request], Any],
    unlocked: dict[str, Callable[[Request], Any]] | None = None,
    libprocess: bool = True,
) -> ThreadingHTTPServer:
    """Starts to answer. `handle` returns what is sent as JSON, or raises Answer. Paths in `unlocked` do not wait.

    What is not libprocess' own HTTP knows nothing of its TLS.
    """
    free = unlocked or {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(self.command, self.path, self.headers, self.rfile.read(length))
            try:
                if request.path in free:
                    reply = Answer(200, free[request.path](request))
                else:
                    with LOCK:
                        reply = Answer(200, handle(request))
            except Answer as told:
                reply = told
            text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            data = text.encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/plain" if isinstance(reply.body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *arguments: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            spoken = TLS.accepted(request) if libprocess else request
            if spoken is not None:
                try:
                    super().finish_request(spoken, client_address)
                finally:
                    spoken.close()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """One who goes away in the middle is no matter."""

    server = Server((ip, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def call(url: str, body: Any, timeout_s: float = 5.0) -> Any:
    """POSTs JSON and gives the JSON of the answer. Raises urllib.error.URLError, HTTPError among them."""
    return TLS.call(url, body, timeout_s)


def sasl() -> bool:
    """Whether the SASL library finds the mechanism by which the programs know each other, CRAM-MD5.

    It is a plugin with a package of its own. STAND_IN_SASL says it for a test: yes or no.
    """
    told = os.environ.get("STAND_IN_SASL")
    if told:
        return told == "yes"
    places = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
    return any(glob.glob(f"{place}/sasl2/libcrammd5.so*") for place in places)
