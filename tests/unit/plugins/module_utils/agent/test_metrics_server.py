# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics over HTTP, asked through real sockets; the loop is that of the agent in small."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command, metrics_server
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.agent import Agent
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.metrics_server import MetricsServer, Settings
from tests.unit.plugins.exposition import parse
from tests.unit.plugins.health_host import Host

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """One that the kernel gives no connection of other tests in the meantime, as those from 32768 on."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind((LOOPBACK, random.randrange(20000, 32000)))
            return int(one.getsockname()[1])


def result(gpus: int = 1) -> dict[str, Any]:
    agent = {"probe_error": None, "probe_seconds": 0.01, "probe_time": 9000.0, "stuck": 0, "xids": []}
    return {"time": 9000.0, "uptime": 8000.0, "agent": agent, "snapshot": Host(gpus=gpus).snapshot(), "health": None}


@contextlib.contextmanager
def serving(server: MetricsServer) -> Iterator[None]:
    """Somebody calls `hear` when `pipe` is ready, as the agent does."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            assert server.pipe
            if server.pipe.select(0.05):
                server.hear()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    one = MetricsServer(Settings(port=free_port()), "classic")
    one.publish(result())
    yield one
    one.close()


def url(server: MetricsServer, path: str = "/metrics") -> str:
    return f"http://{LOOPBACK}:{server.settings.port}{path}"


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection((LOOPBACK, server.settings.port), timeout=10)


def said(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            found += chunk
    return found


def test_a_scrape_gets_what_was_published_last(server):
    with serving(server), urllib.request.urlopen(url(server), timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = parse(answer.read().decode())
    assert len(found["gpu_power_watts"].series) == 1
    assert len(found["DCGM_FI_DEV_POWER_USAGE"].series) == 1
    server.publish(result(gpus=8))
    with serving(server), urllib.request.urlopen(url(server), timeout=10) as answer:
        assert len(parse(answer.read().decode())["gpu_power_watts"].series) == 8


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/../etc/passwd", 404), ("POST", "/metrics", 405), ("DELETE", "/metrics", 405)],
)
def test_there_is_nothing_else_to_get(server, method, path, status):
    request = urllib.request.Request(url(server, path), method=method)
    with serving(server), pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == status


def test_a_head_has_no_body(server):
    with serving(server), connect(server) as one:
        one.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _end, body = said(one).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b""


def test_a_client_that_reads_slowly_gets_everything(server, monkeypatch):
    monkeypatch.setattr(server, "_body", b"x" * 5_000_000)
    with serving(server), connect(server) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with urllib.request.urlopen(url(server), timeout=10) as other:
            assert len(other.read()) == 5_000_000
        assert said(slow).endswith(b"\r\n\r\n" + b"x" * 5_000_000)


def test_a_request_that_comes_in_pieces_is_one(server):
    with serving(server), connect(server) as one:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\nHost: x", b"\r\n", b"\r\n"):
            one.sendall(piece)
        assert said(one).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("garbage", [b"\0" * 20_000, b"A: b\r\n" * 5000, b"\xff\xfe\r\n\r\n", b"\r\n\r\n"])
def test_garbage_gets_no_metrics_and_ends_nothing(server, garbage):
    with serving(server):
        with connect(server) as one:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                one.sendall(garbage)
            assert b"gpu_" not in said(one)
        with urllib.request.urlopen(url(server), timeout=10) as answer:
            assert answer.status == 200


def test_a_client_that_says_nothing_is_dropped(server, monkeypatch):
    monkeypatch.setattr(metrics_server, "CLIENT_S", -1.0)
    with serving(server), connect(server) as silent:
        assert said(silent) == b""


def test_many_silent_clients_keep_nobody_out(server):
    with serving(server), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(3 * metrics_server.CLIENTS_AT_MOST)]
        with urllib.request.urlopen(url(server), timeout=10) as answer:
            assert answer.status == 200
        assert said(silent[0]) == b""


def test_a_port_that_somebody_has_is_told_with_the_remedy_and_tried_again():
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        server = MetricsServer(Settings(port=other.getsockname()[1]))
        with pytest.raises(OSError, match=rf"127\.0\.0\.1 port {server.settings.port} .*To do: stop what listens"):
            server.publish(result())
        assert server.pipe is None
    server.publish(result())
    with serving(server), urllib.request.urlopen(url(server), timeout=10) as answer:
        assert answer.status == 200
    server.close()


def test_a_child_does_not_keep_the_port(server):
    """A child that hangs in the kernel outlives the agent, and the next agent wants to listen."""
    reading, writing = os.pipe()
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begun, b"x")
        os.read(reading, 1)
        os._exit(0)
    try:
        # It lets go of the port as soon as it runs.
        os.read(ready, 1)
        server.close()
        again = MetricsServer(Settings(port=server.settings.port))
        again.publish(result())
        again.close()
    finally:
        os.write(writing, b"x")
        assert os.waitpid(child, 0)[1] == 0
        for end in (reading, writing, ready, begun):
            os.close(end)


def test_a_child_leaves_the_agents_clients_alone(server):
    with connect(server) as one:
        server.hear()
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with serving(server):
            one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert said(one).startswith(b"HTTP/1.1 200 OK")


def test_the_agent_serves_from_its_own_loop(tmp_path, server):
    settings = command.Settings(
        state_directory=str(tmp_path), socket=str(tmp_path / "agent.sock"), kernel_log=str(tmp_path / "kmsg")
    )
    agent = Agent(settings, lambda: None, [server])
    agent._watch_pipes()
    with connect(server) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        while not server._listener.clients:
            for key, _mask in agent.selector.select(10):
                key.data()
        for key, _mask in agent.selector.select(10):
            key.data()
        assert said(one).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("section", [{"port": 0}, {"port": 70000}, {"port": "9400"}, {}, {"port": 9400, "tls": True}])
def test_a_section_of_the_configuration_that_makes_no_sense_is_refused(tmp_path, section):
    (tmp_path / "agent.json").write_text(json.dumps({"metrics": section}))
    with pytest.raises(command.ConfigError, match="metrics"):
        command.read_config(str(tmp_path / "agent.json"))
