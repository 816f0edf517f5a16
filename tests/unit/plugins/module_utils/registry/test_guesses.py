# SPDX-License-Identifier: GPL-3.0-or-later
"""Wrong passwords at the registry: nginx, which tells of them, is Debian's."""

from __future__ import annotations

import base64
import http.client
import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.attempts import Attempts, Rate
from ansible_collections.baremetal.gpu.plugins.module_utils.registry import guesses
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.guesses import Guesses
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import registry as plan
from tests.local_registry import PASSWORDS, LocalRegistry, missing_programs

HEAD = b"<190>Nov 29 12:00:00 guess: "


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """What is kept of few guesses."""

    def __init__(self, refused: Path) -> None:
        self.refused, self.clock, self.said = refused, Clock(), list[str]()
        attempts = Attempts(Rate(6, 2.0), Rate(4, 30.0), Rate(3, 30.0), self.clock)
        self.guesses = Guesses(str(refused), attempts, lambda text, priority: self.said.append(text))

    def hear(self, name: str, address: str = "192.0.2.1", times: int = 1) -> set[str]:
        for _number in range(times):
            self.guesses.heard(HEAD + f"{address} {name}".encode())
        return self.files()

    def files(self) -> set[str]:
        return {path.name for path in self.refused.iterdir()} if self.refused.exists() else set()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "refused")


def test_one_name_from_one_place_is_shut_out_for_a_while(kept: Kept) -> None:
    assert kept.hear("alice", times=2) == set()
    assert kept.hear("alice", times=3) == {"guess-alice-192.0.2.1"}
    assert kept.said == ["too many wrong passwords for alice from 192.0.2.1: none is looked at"]
    kept.clock.now += 29.0
    kept.guesses.forgive()
    assert kept.files() == {"guess-alice-192.0.2.1"}
    kept.clock.now += 1.0
    kept.guesses.forgive()
    assert kept.files() == set()


def test_many_names_from_one_place_shut_that_out(kept: Kept) -> None:
    assert kept.hear("u1") | kept.hear("u2") | kept.hear("u3") | kept.hear("u4") | kept.hear("u5") == set()
    assert kept.hear("u6") == {"guess-192.0.2.1"}


def test_who_guesses_from_many_places_shuts_out_these_and_not_the_owner(kept: Kept) -> None:
    for number in range(1, 9):
        kept.hear("alice", f"192.0.2.{number}")
    assert kept.files() == {f"guess-alice-192.0.2.{number}" for number in range(4, 9)}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "a b", "\u212aevin", "-x", ".", "x" * 100, "a\x00b"])
def test_an_odd_name_is_no_path(kept: Kept, name: str, tmp_path: Path) -> None:
    assert kept.hear(name, times=4) == {"guess-none-192.0.2.1"}
    assert [path.name for path in tmp_path.iterdir()] == ["refused"]


@pytest.mark.parametrize(
    "line", [b"", b"guess: 192.0.2.1 alice", HEAD + b"../x alice", HEAD + b"192.0.2.1", b"\xff" * 99]
)
def test_what_nginx_does_not_write_counts_for_nobody(kept: Kept, line: bytes) -> None:
    for _number in range(9):
        kept.guesses.heard(line)
    assert kept.files() == set()


def test_one_that_cannot_be_counted_keeps_no_later_one_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, told = list[bytes](), threading.Event()

    def hear(line: bytes) -> None:
        heard.append(line)
        if line == b"first":
            raise OSError(28, "No space left on device")
        told.set()

    kept = Guesses(str(tmp_path / "refused"))
    monkeypatch.setattr(kept, "heard", hear)
    guesses.listen(str(tmp_path / "guesses.sock"), kept)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        for line in (b"first", b"second"):
            made.sendto(line, str(tmp_path / "guesses.sock"))
    assert told.wait(60)
    assert heard == [b"first", b"second"]


def test_what_an_earlier_program_has_left_goes(kept: Kept) -> None:
    kept.refused.mkdir()
    (kept.refused / "guess-192.0.2.9").touch()
    (kept.refused / "all.json").touch()
    kept.guesses.forgive()
    assert kept.files() == {"all.json"}


# --- with nginx ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    if missing_programs():
        pytest.skip(missing_programs())
    found = LocalRegistry(tmp_path_factory.mktemp("registry"))
    guesses.listen(str(found.place(plan.GUESSES)), Guesses(str(found.refused)))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_a_thousand_guesses_are_not_looked_at(registry: LocalRegistry) -> None:
    # Somebody says of themselves from where they ask.
    forged = {"X-Real-IP": "192.0.2.7"}
    answers = [registry.ask("GET", "/v2/", "alice", password=f"wrong{n}", headers=forged).status for n in range(200)]
    assert set(answers) == {401, 429}
    # What is under way while nginx tells of the tenth is answered yet.
    assert answers.count(401) <= 20
    refused = registry.ask("GET", "/v2/", "alice", password=PASSWORDS["alice"])
    assert (refused.status, refused.code) == (429, "TOOMANYREQUESTS")
    # A token is the same password in other words.
    assert registry.ask("GET", "/token", "alice", password=PASSWORDS["alice"]).status == 429
    # Others behind the same address go on, and nobody needs a password for what is public.
    assert registry.ask("GET", "/v2/", "bob").status == 200
    assert registry.ask("GET", "/v2/open/none/manifests/v1").status != 429
    assert {path.name for path in registry.refused.glob("guess-*")} == {"guess-alice-127.0.0.1"}


def test_guesses_for_many_names_are_not_looked_at(registry: LocalRegistry) -> None:
    answers = [registry.ask("GET", "/v2/", f"u{n}", password="wrong").status for n in range(200)]
    assert answers.count(429) >= 100
    assert registry.ask("GET", "/v2/open/none/manifests/v1").status != 429


def guess_inside(registry: LocalRegistry, client: str, name: str = "bob", own: str = "0" * 64) -> int:
    """The status of a wrong password at the port that nginx has for itself, with the headers that tell who asks."""
    word = base64.b64encode(f"{name}:wrong".encode()).decode()
    headers = {"Authorization": f"Basic {word}", "X-Real-IP": client, "X-Registry-Own": own}
    connection = http.client.HTTPConnection("127.0.0.1", registry.params["loopback_port"], timeout=60)
    try:
        connection.request("GET", "/v2/", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def guess_until_shut(registry: LocalRegistry, clients: Iterator[str], file: str, name: str, own: str) -> None:
    """nginx tells of guesses and goes on, so that some more are looked at until they are counted."""
    end = time.monotonic() + 60
    while not list(registry.refused.glob(file)):
        assert time.monotonic() < end, f"{file} does not come"
        guess_inside(registry, next(clients), name, own)


def test_a_user_of_the_host_is_nobody_else_at_the_port_inside(registry: LocalRegistry) -> None:
    clients = (f"192.0.2.{number % 250}" for number in itertools.count())
    guess_until_shut(registry, clients, "guess-*127.0.0.1", "bob", "0" * 64)
    assert guess_inside(registry, "192.0.2.251", "bob") == 429
    assert not list(registry.refused.glob("*192.0.2*"))
    assert "192.0.2." not in (registry.base / "log" / "access.log").read_text()


@pytest.mark.parametrize(
    ("addresses", "place"),
    [
        (("2001:db8:5:1::{:x}", "2001:db8:5:1:2:3:4:{:x}", "2001:db8:5:1:a::{:x}"), "2001:db8:5:1:"),
        (("2001:db8:6::{:x}",), "2001:db8:6::"),
    ],
)
def test_a_network_of_ipv6_is_one_place(registry: LocalRegistry, addresses: tuple[str, ...], place: str) -> None:
    # As nginx tells itself.
    found = re.search("[0-9a-f]{64}", registry.place(plan.OWN_REQUESTS).read_text())
    assert found
    name = f"u{len(addresses)}"
    clients = (addresses[number % len(addresses)].format(number + 1) for number in itertools.count())
    guess_until_shut(registry, clients, f"guess-{name}-{place}", name, found[0])
    assert {guess_inside(registry, one.format(0xFFF), name, found[0]) for one in addresses} == {429}
    # Another network is not shut out.
    assert guess_inside(registry, f"2001:db8:7:{len(addresses)}::1", name, found[0]) == 401


def test_only_nginx_tells_of_guesses(tmp_path: Path) -> None:
    path = tmp_path / "guesses.sock"
    guesses.listen(str(path), Guesses(str(tmp_path / "refused")))
    assert path.stat().st_mode & 0o777 == 0o660
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.sendto(b"no line", str(path))
