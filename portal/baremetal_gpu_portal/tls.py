# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS between the hub, the proxy and sessions: where the certificates are, and whether it is the session that answers.

JupyterHub makes the authorities and certificates. It would take any certificate of any session for the one that it asks
for, so each session has a name of its own here.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import socket
import ssl
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver
from jupyterhub.app import JupyterHub
from jupyterhub.utils import make_ssl_context
from tornado import httpserver

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import identity

ANSWER_S = 2


class Resolver(AbstractResolver):
    """Knows the hosts of sessions, and asks the system for others."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[dict[str, Any]]:
        found = await asyncio.get_running_loop().getaddrinfo(
            identity.address(host) or host, port, type=socket.SOCK_STREAM, family=family
        )
        return [
            {"hostname": host, "host": row[4][0], "port": port, "family": row[0], "proto": row[2], "flags": 0}
            for row in found
        ]

    async def close(self) -> None:
        """It holds nothing."""


def name_of(url: str) -> str:
    """What a certificate has for the host of a URL."""
    host = urlsplit(url).hostname or ""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def ip_of(address: str) -> str:
    """The IP address of a node. Raises Refused."""
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as why:
        remedy = "the operators see to it that the portal's host finds it, by its DNS or /etc/hosts"
        raise CallFailed(f"the node {address} has no address here: {why.strerror}", remedy) from why


def authority(location: str) -> str:
    """By what the authority of sessions is told from another one; empty before it is made."""
    try:
        return hashlib.sha256(Path(location, "notebooks-ca", "notebooks-ca.crt").read_bytes()).hexdigest()
    except OSError:
        return ""


@cache
def _context() -> ssl.SSLContext:
    """It takes time to read, and sessions are asked each second until they answer."""
    hub = JupyterHub.instance()
    return make_ssl_context(hub.internal_ssl_key, hub.internal_ssl_cert, cafile=hub.internal_ssl_ca)


def believe_the_proxy_alone() -> None:
    """The hub's log has the address of whoever asks as the proxy tells it. A session may ask the hub itself, and would
    tell any."""
    begin, believe = httpserver._HTTPRequestContext.__init__, httpserver._HTTPRequestContext._apply_xheaders

    def remember(self: Any, stream: Any, *more: Any, **named: Any) -> None:
        begin(self, stream, *more, **named)
        self.stream = stream

    def believe_proxy(self: Any, headers: Any) -> None:
        try:
            certificate = self.stream.socket.getpeercert() or {}
        except (AttributeError, ValueError):
            return
        if (("commonName", "proxy-client"),) in certificate.get("subject", ()):
            believe(self, headers)

    httpserver._HTTPRequestContext.__init__ = remember
    httpserver._HTTPRequestContext._apply_xheaders = believe_proxy


async def listener(name: str, address: str, port: int) -> bool | None:
    """Who listens there: True for the session of that name, False for another program, None for nobody."""
    try:
        _reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), ANSWER_S)
    except (OSError, TimeoutError):
        return None
    try:
        await asyncio.wait_for(writer.start_tls(_context(), server_hostname=identity.host(name, address)), ANSWER_S)
    except (OSError, TimeoutError, ssl.SSLError):
        return False
    finally:
        writer.close()
    return True
