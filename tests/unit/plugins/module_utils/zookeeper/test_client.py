# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of the small client of ZooKeeper, byte by byte. What a real server makes of them: tests/roles."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import client

HELLO = struct.pack(">iiqi", 0, 10000, 0x1234, 16) + bytes(16) + b"\0"


class Scripted:
    """A hand-made server that answers each message by the next of its answers, then closes.

    An answer that is a list is sent as several messages.
    """

    def __init__(self, *answers: bytes | list[bytes]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.listener.getsockname()
        self.answers = answers
        self.received: list[bytes] = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        connection, _peer = self.listener.accept()
        with connection:
            for answer in self.answers:
                (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                self.received.append(connection.recv(length, socket.MSG_WAITALL))
                for part in [answer] if isinstance(answer, bytes) else answer:
                    connection.sendall(struct.pack(">i", len(part)) + part)

    def session(self) -> client.Session:
        return client.Session(self.host, self.port, 10)


def reply(xid: int, code: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">iqi", xid, 7, code) + data


def test_a_user_is_named_with_the_checksum_that_servers_compute():
    # The value is the one that ZooKeeper's own DigestAuthenticationProvider prints for super:test.
    assert client.digest_id("super", "test") == "super:D/InIHSb7yEEbrWz8b9l71RjZJU="


def test_a_session_begins_and_a_user_is_authenticated():
    server = Scripted(HELLO, reply(-4))
    server.session().authenticate("mesos", "secret")
    assert server.received == [
        struct.pack(">iqiqi", 0, 0, 10000, 0, 16) + bytes(16) + b"\0",
        struct.pack(">iii", -4, 100, 0) + b"\0\0\0\x06digest" + b"\0\0\0\x0cmesos:secret",
    ]


def test_a_node_is_made_with_its_acl():
    server = Scripted(HELLO, reply(1, data=b"\0\0\0\x02/m"))
    server.session().create("/m", [client.Acl(31, "digest", "u:h"), client.Acl(1, "world", "anyone")])
    assert server.received[1] == (
        struct.pack(">ii", 1, 1)
        + b"\0\0\0\x02/m"
        + struct.pack(">i", 0)
        + struct.pack(">ii", 2, 31)
        + b"\0\0\0\x06digest\0\0\0\x03u:h"
        + struct.pack(">i", 1)
        + b"\0\0\0\x05world\0\0\0\x06anyone"
        + struct.pack(">i", 0)
    )


def test_an_acl_is_read_and_notices_in_between_are_passed_over():
    acl = struct.pack(">ii", 1, 31) + b"\0\0\0\x05world\0\0\0\x06anyone"
    server = Scripted(HELLO, [reply(-1), reply(1, data=acl + bytes(68))])
    assert server.session().get_acl("/m") == [client.Acl(31, "world", "anyone")]


def test_a_node_that_is_not_there_has_no_acl():
    assert Scripted(HELLO, reply(1, -101)).session().get_acl("/m") is None


def test_what_is_not_permitted_is_said_in_words():
    with pytest.raises(client.Failure, match="set the ACL of /m: not permitted") as told:
        Scripted(HELLO, reply(1, -102)).session().set_acl("/m", [])
    assert told.value.code == -102


def test_an_answer_that_is_cut_or_of_another_program_is_refused():
    with pytest.raises(client.Failure, match="not one of ZooKeeper"):
        Scripted(HELLO, reply(1, data=struct.pack(">ii", 1, 31) + b"\0\0\0\x09wor")).session().get_acl("/m")
    with pytest.raises(client.Failure, match="gave no session"):
        Scripted(struct.pack(">ii", 0, 0)).session()


def test_servers_are_tried_in_turn_and_each_is_told():
    closed = socket.create_server(("127.0.0.1", 0))
    gone = {"host": "127.0.0.1", "port": closed.getsockname()[1]}
    closed.close()
    electing = Scripted()
    with pytest.raises(client.Failure, match=r"refused; 127.0.0.1:\d+: .*(closed the connection|reset)"):
        client.connect([gone, {"host": electing.host, "port": electing.port}], 10)
    well = Scripted(HELLO)
    assert client.connect([gone, {"host": well.host, "port": well.port}], 10)


def test_checksums_of_passwords_are_not_shown():
    rows = [client.Acl(31, "digest", client.digest_id("mesos", "secret")), client.Acl(5, "world", "anyone")]
    assert client.in_words(rows) == ["digest:mesos all", "world:anyone read,create"]
