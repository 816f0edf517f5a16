# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the verdicts of the nodes of Slurm over TCP; see slurm/verdict_channel.py.

Nothing of a message is used before munged has accepted its credential, and then only if root has made it, on the node
that it is about: the credential's origin has to be an address of that node in slurm.conf. On a host that has its own
name as a loopback address, munged has that as the origin of all credentials, and on a host without an IPv4 address
0.0.0.0. The connection's address then counts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import net
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge, verdict_channel

SLURM_CONF = "/etc/slurm/slurm.conf"
# Connections at the same time, of all and of one address: so many that are to say something yet, and so many that have.
AT_MOST, OF_ONE_AT_MOST = 256, 8
# Credentials that munged is asked about at the same time.
DECODED_AT_MOST = 16
# How long the addresses of a node are used before its name is asked for again.
RESOLVED_S = 60.0
# What a node said that was refused is told at most so often.
TELL_S = 60.0
_NODE = re.compile(r"^NodeName=([A-Za-z0-9._-]{1,253}) (?:.* )?NodeAddr=(\S{1,253})", re.MULTILINE)

# What becomes of a verdict that was accepted: host and verdict, None where its agent stopped; gives the answer.
Take = Callable[[str, "Mapping[str, Any] | None"], Mapping[str, Any]]
Tell = Callable[[str, str], None]


class Addresses:
    """The addresses of the cluster's nodes, as slurm.conf has them."""

    def __init__(self, path: str = SLURM_CONF, resolve: Callable[[str], list[str]] = net.resolve) -> None:
        self.path, self._resolve = path, resolve
        self._lock = threading.Lock()
        self._read: tuple[int, ...] = ()
        self._names: dict[str, str] = {}
        self._known: dict[str, tuple[float, list[str]]] = {}

    def of(self, node: str) -> list[str] | None:
        """Those of a node; None for a node that the cluster does not have."""
        with self._lock:
            self._refresh()
            name = self._names.get(node)
            known = self._known.get(node)
        if name is None:
            return None
        if known is not None and time.monotonic() - known[0] < RESOLVED_S:
            return known[1]
        # Without the lock: a name server that does not answer keeps nobody else waiting.
        found = self._resolve(name)
        with self._lock:
            self._known[node] = time.monotonic(), found
        return found

    def _refresh(self) -> None:
        try:
            status = os.stat(self.path)
        except OSError:
            return
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._read:
            self._read, self._names, self._known = seen, dict(_NODE.findall(read_text(self.path))), {}


class Receiver:
    """Listens from its making on, until `close`. Raises OSError where the port cannot be had."""

    def __init__(
        self, port: int, addresses: Addresses, take: Take, tell: Tell, munged: str | None = None, host: str = ""
    ) -> None:
        self.addresses, self.take, self.tell, self.munged = addresses, take, tell, munged
        self._lock = threading.Lock()
        # Connections that have said nothing yet, the oldest first, and how many of an address have.
        self._silent: dict[socket.socket, str] = {}
        self._heard: Counter[str] = Counter()
        self._decoding = threading.Semaphore(DECODED_AT_MOST)
        # Who was told of -> when, and why.
        self._told: dict[str, tuple[float, str]] = {}
        self._listener = _listener(host, port)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Wakes the thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                # No descriptor is left, or the other side is gone again.
                time.sleep(0.05)
                continue
            peer = str(address[0]).removeprefix("::ffff:")
            self._make_room(peer)
            with self._lock:
                self._silent[connection] = peer
            threading.Thread(target=self._serve, args=(connection, peer), daemon=True).start()

    def _make_room(self, peer: str) -> None:
        """End the oldest connection that says nothing, where there are too many: an agent says all it has at once."""
        with self._lock:
            same = [one for one, address in self._silent.items() if address == peer]
            many = same if len(same) >= OF_ONE_AT_MOST else [*self._silent] if len(self._silent) >= AT_MOST else []
            for connection in many[:1]:
                del self._silent[connection]
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket, peer: str) -> None:
        end, nonce = time.monotonic() + verdict_channel.TIMEOUT_S, secrets.token_hex(32)
        with connection, contextlib.suppress(OSError):
            try:
                connection.sendall(verdict_channel.greeting(nonce))
                line = verdict_channel.read_line(connection, munge.CREDENTIAL_AT_MOST, end)
            except Malformed as why:
                self._refuse(peer, str(why))
                return
            finally:
                with self._lock:
                    self._silent.pop(connection, None)
            with self._lock:
                if self._heard[peer] >= OF_ONE_AT_MOST or sum(self._heard.values()) >= AT_MOST:
                    return
                self._heard[peer] += 1
            try:
                self._answer(connection, peer, line, nonce, end)
            finally:
                with self._lock:
                    self._heard[peer] -= 1
                    self._heard += Counter()

    def _answer(self, connection: socket.socket, peer: str, line: bytes, nonce: str, end: float) -> None:
        try:
            said = self._read(line, nonce, peer)
            answer = verdict_channel.answer(self.take(said.host, said.verdict), said.key)
        except (CallFailed, Malformed) as why:
            self._refuse(peer, str(why))
            answer = verdict_channel.refusal(one_line(why, 300))
        connection.settimeout(max(0.1, end - time.monotonic()))
        connection.sendall(answer)

    def _read(self, line: bytes, nonce: str, peer: str) -> verdict_channel.Message:
        """Raises CallFailed and Malformed for what is not to be used."""
        with self._decoding:
            credential = munge.decode(line.decode("ascii", "replace").strip(), self.munged)
        if credential.uid != 0:
            raise CallFailed(f"the credential is of uid {credential.uid}, and only root's counts")
        said = verdict_channel.read_message(credential.payload, nonce)
        known = self.addresses.of(said.host)
        if known is None:
            raise CallFailed(
                f"{one_line(said.host, 100)} is not a node of this cluster",
                "run `gpuops up --tags agent,slurm` where the inventory is",
            )
        origin = credential.origin
        address = ipaddress.ip_address(origin)
        if origin not in known and (address.is_loopback or address.is_unspecified):
            origin = peer
        if origin not in known:
            raise CallFailed(
                f"what is said of {said.host} comes from {origin}, and slurm.conf has that node at "
                f"{', '.join(known) or 'a name without an address'}",
                f"if {said.host} has both addresses, set slurm_common_address of {said.host} to {origin} in the "
                "inventory and run `gpuops up --tags slurm`",
            )
        return said

    def _refuse(self, peer: str, why: str) -> None:
        """Tell of it, but not at every try."""
        now = time.monotonic()
        with self._lock:
            before = self._told.get(peer)
            if before is not None and before[1] == why and now - before[0] < TELL_S:
                return
            if len(self._told) >= AT_MOST:
                self._told.clear()
            self._told[peer] = now, why
        self.tell(peer, why)


def _listener(host: str, port: int) -> socket.socket:
    """Of both kinds of addresses, where the host has both."""
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
    return socket.create_server((host, port), backlog=256)
