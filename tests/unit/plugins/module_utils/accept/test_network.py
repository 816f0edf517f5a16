# SPDX-License-Identifier: GPL-3.0-or-later
"""The network between two hosts, measured over loopback: figures, who is obeyed, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import network

TOKEN = "t" * 40


@pytest.fixture
def listener():
    """A listener in a thread, as serve() is in the process of its own."""
    server = network.open_socket(0)
    port = server.getsockname()[1]
    thread = threading.Thread(target=network.serve, args=(server, TOKEN, 30.0))
    thread.start()
    yield port
    network.end(port, TOKEN)
    thread.join(20)
    assert not thread.is_alive(), "the listener did not end when it was told to"


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_both_directions_and_the_round_trip_are_measured(listener):
    found = network.measure("localhost", listener, TOKEN, 0.2, 2)
    assert found["error"] is None
    assert found["send_gbit_s"] > 0.05
    assert found["receive_gbit_s"] > 0.05
    assert 0 < found["latency_us"] < 1e6


def test_who_does_not_know_the_token_gets_nothing_and_ends_nothing(listener):
    found = network.measure("localhost", listener, "other", 0.2, 1)
    assert found["error"]
    assert found["send_gbit_s"] is None
    network.end(listener, "other")
    with socket.create_connection(("localhost", listener)) as stranger:
        stranger.sendall(b"[]\n")
        assert stranger.recv(10) == b""
    assert network.measure("localhost", listener, TOKEN, 0.1, 1)["error"] is None


def test_a_host_that_is_not_there_is_a_finding():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert network.measure("127.0.0.1", port, TOKEN, 0.1, 1)["error"] == "Connection refused"


def test_the_listener_is_a_process_of_its_own_and_ends_on_demand():
    port = network.listen(TOKEN, 0, 60.0)
    assert network.measure("localhost", port, TOKEN, 0.1, 1)["error"] is None
    network.end(port, TOKEN)
    for _look in range(200):
        if not is_open(port):
            break
        threading.Event().wait(0.05)
    assert not is_open(port)


def test_a_listener_to_which_nobody_comes_ends():
    server = network.open_socket(0)
    port = server.getsockname()[1]
    network.serve(server, TOKEN, 0.3)
    assert not is_open(port)


class Visits:
    """Whether a listener ends though somebody comes again and again."""

    def __init__(self, first_line, idle_s):
        server = network.open_socket(0)
        self.port, self._line, self._idle_s = server.getsockname()[1], first_line, idle_s
        self._thread = threading.Thread(target=network.serve, args=(server, TOKEN, idle_s))

    def end_it(self, at_most):
        """How many came before it had ended."""
        self._thread.start()
        for count in range(at_most):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as visitor:
                visitor.sendall(self._line)
            self._thread.join(self._idle_s / 4)
            if not self._thread.is_alive():
                return count
        return None


@pytest.mark.parametrize(
    "line", [b"", b"x", b"[]\n", b'{"token": "other"}\n', b'{"token": null}\n', b"[" * 1023 + b"\n"]
)
def test_who_does_not_know_the_token_does_not_keep_it_alive(line):
    assert Visits(line, 1.0).end_it(at_most=200) is not None


def test_who_knows_the_token_keeps_it_alive():
    visits = Visits(json.dumps({"token": TOKEN, "order": "none"}).encode() + b"\n", 4.0)
    assert visits.end_it(at_most=12) is None
    network.end(visits.port, TOKEN)


def test_one_who_sends_slowly_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(network, "HELLO_S", 0.3)
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"x")
        feeder = threading.Thread(
            target=lambda: [threading.Event().wait(0.1) or other.sendall(b"x") for _n in range(9)]
        )
        feeder.start()
        with pytest.raises(OSError, match="timed out"):
            network._first_line(one)
        feeder.join()


def test_a_port_that_is_taken_is_told():
    with network.open_socket(0) as server, pytest.raises(OSError, match="in use"):
        network.listen(TOKEN, server.getsockname()[1], 5.0)
