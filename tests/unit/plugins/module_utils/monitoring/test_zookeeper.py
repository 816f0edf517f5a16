# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of a ZooKeeper server, and of what is none. The server is the hand-made one of the other tests."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words
from tests.unit.plugins.zookeeper_words import Words

THREE = "clientPort=2181\nserver.1=zk1:2888:3888\nserver.2=zk2:2888:3888\nserver.3=zk3:2888:3888\n"


@pytest.fixture
def words() -> Iterator[Words]:
    one = Words("follower")
    yield one
    one.stop()


def at_once(done: Callable[..., bool], servers: Iterable[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Without the time of an election."""
    assert seconds > 0
    return four_letter_words.wait_until(done, servers, 0.0, 0.3)


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Part]:
    def looked(port: int, text: str = THREE, **given: Any) -> Part:
        (tmp_path / "zoo.cfg").write_text(text)
        return zookeeper.look("127.0.0.1", port, str(tmp_path / "zoo.cfg"), **{"wait": at_once, **given})

    return looked


def values(part: Part) -> dict[str, float]:
    return {name: value for name, _labels, value in part.samples}


@pytest.mark.parametrize(
    ("mode", "text", "serving", "servers"),
    [
        ("leader", THREE, 1.0, 3.0),
        ("follower", THREE, 1.0, 3.0),
        ("observer", THREE, 1.0, 3.0),
        ("standalone", "clientPort=2181\n", 1.0, 1.0),
        # Alone beside an ensemble it is no member, and one that only reads has no quorum.
        ("standalone", THREE, 0.0, 3.0),
        ("read-only", THREE, 0.0, 3.0),
        (None, THREE, 0.0, 3.0),
    ],
)
def test_a_server_serves_where_it_is_in_a_quorum(
    words: Words, look: Callable[..., Part], mode: str | None, text: str, serving: float, servers: float
) -> None:
    words.mode = mode
    part = look(words.port, text)
    assert values(part) == {"zookeeper_serving": serving, "zookeeper_ensemble_servers": servers}
    assert bool(part.complaints) == (serving == 0.0)


def test_one_that_starts_or_elects_is_waited_for(words: Words, look: Callable[..., Part]) -> None:
    words.mode = None
    asked = []

    def answer(host: str, port: int, word: str, timeout: float) -> str:
        asked.append(word)
        if len(asked) == 3:
            words.mode = "follower"
        return four_letter_words.ask(host, port, word, timeout)

    part = look(words.port, wait=functools.partial(four_letter_words.wait_until, asker=answer))
    assert values(part)["zookeeper_serving"] == 1.0
    assert part.complaints == []
    assert asked == ["srvr"] * 3


def test_a_server_that_is_not_there_serves_nobody(look: Callable[..., Part]) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        part = look(one.getsockname()[1])
    assert values(part) == {"zookeeper_serving": 0.0, "zookeeper_ensemble_servers": 3.0}
    assert "nothing listens there" in part.complaints[0]


def test_one_that_takes_a_connection_and_says_nothing_serves_nobody(look: Callable[..., Part]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        part = look(one.getsockname()[1])
    assert values(part)["zookeeper_serving"] == 0.0
    assert "no answer in time" in part.complaints[0]


@pytest.mark.parametrize(
    "nonsense",
    ["HTTP/1.1 400 Bad Request\r\n\r\n", "", "Mode: leader\n", "\x1b[31m\n" * 1000, "Zxid: 0x\nMode: \nZookeeper"],
)
def test_nonsense_is_no_serving_server(words: Words, look: Callable[..., Part], nonsense: str) -> None:
    words.other_program = nonsense
    part = look(words.port)
    assert values(part) == {"zookeeper_serving": 0.0, "zookeeper_ensemble_servers": 3.0}
    assert part.complaints[0].isprintable()


def test_where_srvr_is_not_allowed_nothing_is_told_but_the_remedy(words: Words, look: Callable[..., Part]) -> None:
    words.allowed = ["ruok"]
    part = look(words.port)
    assert values(part) == {"zookeeper_ensemble_servers": 3.0}
    assert "put srvr into zookeeper_words" in part.complaints[0]


def test_without_a_configuration_the_number_of_servers_is_not_made_up(words: Words, tmp_path: Path) -> None:
    part = zookeeper.look("127.0.0.1", words.port, str(tmp_path / "none.cfg"), at_once)
    assert values(part) == {"zookeeper_serving": 1.0}
    assert "none.cfg cannot be read" in part.complaints[0]
