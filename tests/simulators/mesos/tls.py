# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS of the stand-ins, as libprocess has it from LIBPROCESS_SSL_…, written after its documentation.

https://mesos.apache.org/documentation/latest/ssl/
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import grammar

# What libprocess offers where nobody says anything else, of those that OpenSSL still knows.
CIPHERS = "AES128-SHA:AES256-SHA:RC4-SHA:DHE-RSA-AES128-SHA:DHE-DSS-AES128-SHA:DHE-RSA-AES256-SHA:DHE-DSS-AES256-SHA"
# The first byte of a handshake.
HANDSHAKE = b"\x16"


def mode(environment: Mapping[str, str]) -> str:
    """off, downgrade or required."""
    if not _on(environment, "ENABLED"):
        return "off"
    return "downgrade" if _on(environment, "SUPPORT_DOWNGRADE") else "required"


def _on(environment: Mapping[str, str], *names: str) -> bool:
    return any(environment.get(f"LIBPROCESS_SSL_{name}") in ("true", "1") for name in names)


class Tls:
    """One program's. Exits where libprocess would, which is before anything else is done."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.mode = mode(environment)
        if self.mode == "off":
            return
        required = _on(environment, "REQUIRE_CERT", "REQUIRE_CLIENT_CERT")
        self.verifies = required or _on(environment, "VERIFY_CERT", "VERIFY_SERVER_CERT")
        self.by_name = environment.get("LIBPROCESS_SSL_HOSTNAME_VALIDATION_SCHEME") == "openssl"
        self.by_address = _on(environment, "VERIFY_IPADD")
        self.server = self._context(ssl.PROTOCOL_TLS_SERVER, environment)
        self.client = self._context(ssl.PROTOCOL_TLS_CLIENT, environment)
        self.server.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_NONE
        self.client.check_hostname = self.verifies and self.by_name
        self.client.verify_mode = ssl.CERT_REQUIRED if self.verifies else ssl.CERT_NONE

    @staticmethod
    def _context(side: int, environment: Mapping[str, str]) -> ssl.SSLContext:
        files = {}
        for kind, what in (("KEY", "key"), ("CERT", "certificate")):
            files[kind] = environment.get(f"LIBPROCESS_SSL_{kind}_FILE", "")
            if not files[kind]:
                grammar.die(f"SSL requires {what}! NOTE: Set path with LIBPROCESS_SSL_{kind}_FILE")
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        newest = ssl.TLSVersion.TLSv1_3 if _on(environment, "ENABLE_TLS_V1_3") else ssl.TLSVersion.TLSv1_2
        context.maximum_version = newest
        try:
            context.set_ciphers(environment.get("LIBPROCESS_SSL_CIPHERS") or CIPHERS)
        except ssl.SSLError as why:
            grammar.die(f"Could not set ciphers: {why}")
        try:
            context.load_cert_chain(files["CERT"], files["KEY"])
        except (OSError, ssl.SSLError) as why:
            grammar.die(f"Could not load cert file or key file: {why}")
        authority = environment.get("LIBPROCESS_SSL_CA_FILE")
        try:
            if authority:
                context.load_verify_locations(authority)
            else:
                context.set_default_verify_paths()
        except (OSError, ssl.SSLError) as why:
            grammar.die(f"Could not load CA file and/or directory: {why}")
        return context

    def accepted(self, connection: socket.socket) -> socket.socket | None:
        """What is spoken on a connection that came in; None if it is not taken."""
        if self.mode == "off":
            return connection
        connection.settimeout(20)
        try:
            if connection.recv(1, socket.MSG_PEEK) == HANDSHAKE:
                found: socket.socket = self.server.wrap_socket(connection, server_side=True)
                found.settimeout(None)
                return found
            connection.settimeout(None)
        except OSError:
            return None
        return connection if self.mode == "downgrade" else None

    def call(self, url: str, body: Any, timeout_s: float) -> Any:
        """POSTs JSON and gives the JSON of the answer. Raises urllib.error.URLError, HTTPError among them."""
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}

        def ask(scheme: str) -> Any:
            request = urllib.request.Request(f"{scheme}://{url.partition('://')[2]}", data, headers)
            context = self.client if scheme == "https" else None
            with urllib.request.urlopen(request, timeout=timeout_s, context=context) as reply:
                return json.loads(reply.read() or b"null")

        if self.mode == "off":
            return ask("http")
        if self.verifies and self.by_name and not self.by_address and _is_address(url):
            raise urllib.error.URLError("an IP address is verified only with LIBPROCESS_SSL_VERIFY_IPADD")
        try:
            return ask("https")
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            if self.mode == "required":
                raise
        return ask("http")


def _is_address(url: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(url.partition("://")[2].partition("/")[0].rpartition(":")[0])
        return True
    return False
