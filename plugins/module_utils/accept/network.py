# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bandwidth and latency of TCP between two hosts: a listener that goes away by itself, and who measures against it.

The listener is a process of its own, as user nobody, without any file. It obeys only who knows the token, and ends when
it is told to, or when nobody who knows it has come for a while; so a run that is killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import select
import socket
import statistics
import threading
import time
from typing import Any, Callable

CHUNK = 1 << 20
# The first line of a connection: {"token", "order", "seconds"}.
LINE_MOST = 1024
HELLO_S, CONNECT_S = 5.0, 10.0
# What comes later than this after the agreed seconds is not waited for: a narrow link takes long to empty its queues.
LATE_S = 2.0
CONNECTIONS_MOST = 256
ROUND_TRIPS = 200
SECONDS_MOST = 60.0
NOBODY = 65534
TAKE, GIVE, ECHO, END = "take", "give", "echo", "end"


# --- The listener -----------------------------------------------------------------------------------------------------


def open_socket(port: int) -> socket.socket:
    """Listens for both families of addresses where the host has both; port 0 is any. Raises OSError."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    return socket.create_server(("", port), backlog=64)


def listen(token: str, port: int, idle_s: float) -> int:
    """Starts the listener as a process of its own; its port. Raises OSError."""
    server = open_socket(port)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach(server.fileno())
                serve(server, token, idle_s)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with server:
        chosen: int = server.getsockname()[1]
    return chosen


def _detach(kept: int) -> None:
    """Nothing of the caller is held open, and nothing of root's rights is left."""
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, 65536)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def serve(server: socket.socket, token: str, idle_s: float) -> None:
    """Obeys until it is told to end, or nobody who knows the token has come for idle_s."""
    ended = threading.Event()
    threads: list[threading.Thread] = []
    heard = [time.monotonic()]

    def is_known() -> None:
        heard[0] = time.monotonic()

    while not ended.is_set() and time.monotonic() - heard[0] < idle_s:
        threads = [thread for thread in threads if thread.is_alive()]
        if len(threads) >= CONNECTIONS_MOST:
            ended.wait(0.2)
            continue
        ready, _writable, _failed = select.select([server], [], [], 0.2)
        if not ready:
            continue
        try:
            connection, _address = server.accept()
        except OSError:
            # Who came has gone already.
            continue
        threads.append(threading.Thread(target=_obey, args=(connection, token, ended, is_known), daemon=True))
        threads[-1].start()
    server.close()


def _first_line(connection: socket.socket) -> bytes:
    """What comes until the end of a line, within HELLO_S. Raises OSError."""
    line, deadline = b"", time.monotonic() + HELLO_S
    while not line.endswith(b"\n") and len(line) < LINE_MOST:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the other side has closed the connection")
        line += byte
    return line


def _obey(connection: socket.socket, token: str, ended: threading.Event, is_known: Callable[[], None]) -> None:
    # Who does not know the token can send anything.
    with connection, contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        told = json.loads(_first_line(connection))
        if not isinstance(told, dict) or not hmac.compare_digest(str(told.get("token")).encode(), token.encode()):
            return
        is_known()
        seconds = min(max(float(told.get("seconds") or 0), 0.0), SECONDS_MOST)
        connection.settimeout(seconds + LATE_S + HELLO_S)
        order = told.get("order")
        if order == END:
            ended.set()
        elif order == ECHO:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _trip in range(ROUND_TRIPS):
                connection.sendall(_exactly(connection, 8))
        elif order == GIVE:
            send_for(connection, seconds)
        elif order == TAKE:
            connection.sendall(json.dumps(take_for(connection, seconds)).encode())
            connection.shutdown(socket.SHUT_WR)
            # What is still under way is not read; closing now could overtake the answer.
            time.sleep(0.2)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other side has closed the connection")
        data += part
    return data


def send_for(connection: socket.socket, seconds: float) -> None:
    """Sends as fast as it is taken, and closes its direction."""
    data = memoryview(bytes(CHUNK))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.send(data)
    connection.shutdown(socket.SHUT_WR)


def take_for(connection: socket.socket, seconds: float) -> dict[str, float]:
    """{bytes, seconds} of what came until the other side had sent all, or was late."""
    buffer = bytearray(CHUNK)
    count, started = 0, time.monotonic()
    while time.monotonic() - started < seconds + LATE_S:
        taken = connection.recv_into(buffer)
        if not taken:
            break
        if not count:
            started = time.monotonic()
        count += taken
    return {"bytes": count, "seconds": time.monotonic() - started}


# --- Who measures -----------------------------------------------------------------------------------------------------


def _connect(address: str, port: int, token: str, order: str, seconds: float = 0.0) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_S)
    connection.settimeout(seconds + LATE_S + HELLO_S)
    connection.sendall(json.dumps({"token": token, "order": order, "seconds": seconds}).encode() + b"\n")
    return connection


def _round_trips(connect: Callable[..., socket.socket]) -> float:
    """The median of the round trips of 8 bytes, in microseconds."""
    times = []
    with connect(ECHO) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(ROUND_TRIPS):
            started = time.perf_counter()
            connection.sendall(number.to_bytes(8, "big"))
            if _exactly(connection, 8) != number.to_bytes(8, "big"):
                raise ConnectionError("the bytes that came back are other ones")
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _send(connect: Callable[..., socket.socket], seconds: float) -> dict[str, float]:
    with connect(TAKE, seconds) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # The other side does not wait for what is late.
            send_for(connection, seconds)
        answer = b""
        while part := connection.recv(LINE_MOST):
            answer += part
    told: dict[str, float] = json.loads(answer)
    return told


def _receive(connect: Callable[..., socket.socket], seconds: float) -> dict[str, float]:
    with connect(GIVE, seconds) as connection:
        return take_for(connection, seconds)


def _gbit_s(work: Callable[[], dict[str, float]], streams: int) -> float:
    """The rate of several streams together. Raises OSError for the first one that fails."""
    found: list[dict[str, float]] = []
    wrong: list[Exception] = []

    def one() -> None:
        try:
            found.append(work())
        except (OSError, ValueError) as failure:
            wrong.append(failure)

    threads = [threading.Thread(target=one, daemon=True) for _stream in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return sum(row["bytes"] for row in found) * 8e-9 / max(*(row["seconds"] for row in found), 1e-6)


def measure(address: str, port: int, token: str, seconds: float, streams: int) -> dict[str, Any]:
    """{error, latency_us, send_gbit_s, receive_gbit_s}; what is not known is null. Never raises for the network."""
    result: dict[str, Any] = {"error": None, "latency_us": None, "send_gbit_s": None, "receive_gbit_s": None}
    connect = functools.partial(_connect, address, port, token)
    try:
        result["latency_us"] = round(_round_trips(connect), 1)
        result["send_gbit_s"] = round(_gbit_s(lambda: _send(connect, seconds), streams), 4)
        result["receive_gbit_s"] = round(_gbit_s(lambda: _receive(connect, seconds), streams), 4)
    except (OSError, ValueError) as failure:
        result["error"] = f"{getattr(failure, 'strerror', None) or failure or type(failure).__name__}"
    return result


def end(port: int, token: str) -> None:
    """Ends the listener of this host, if it is still there."""
    with contextlib.suppress(OSError), _connect("localhost", port, token, END) as connection:
        connection.recv(1)
