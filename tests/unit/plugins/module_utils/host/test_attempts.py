# SPDX-License-Identifier: GPL-3.0-or-later
"""How many wrong passwords are looked at."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import attempts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.attempts import Attempts, Rate


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(clock: Clock) -> Attempts:
    return Attempts(address=Rate(4, 5.0), name=Rate(3, 60.0), both=Rate(2, 60.0), clock=clock)


def test_one_name_from_one_place_has_its_burst_and_then_one_after_the_other(known: Attempts, clock: Clock) -> None:
    assert [known.take("192.0.2.1", "alice") for _number in range(3)] == [0.0, 0.0, 60.0]
    # What was refused does not count.
    assert known.take("192.0.2.1", "alice") == 60.0
    clock.now += 59.0
    assert known.take("192.0.2.1", "alice") == 1.0
    clock.now += 1.0
    assert known.take("192.0.2.1", "alice") == 0.0
    assert known.take("192.0.2.1", "alice") == 60.0


def test_who_has_the_right_one_has_not_tried(known: Attempts) -> None:
    for _number in range(20):
        assert known.take("192.0.2.1", "alice") == 0.0
        known.give_back("192.0.2.1", "alice")


def test_many_names_from_one_place_are_refused(known: Attempts, clock: Clock) -> None:
    assert [known.take("192.0.2.1", f"u{number}") for number in range(5)] == [0.0] * 4 + [5.0]
    assert known.take("192.0.2.2", "u5") == 0.0
    clock.now += 5.0
    assert known.take("192.0.2.1", "u5") == 0.0


def test_logins_without_a_name_keep_no_other_name_waiting_longer(known: Attempts) -> None:
    assert [known.take("192.0.2.1", "") for _number in range(3)] == [0.0, 0.0, 60.0]
    assert [known.take("192.0.2.1", f"u{number}") for number in range(3)] == [0.0, 0.0, 5.0]


def test_one_name_from_many_places_is_refused_where_one_was_wrong_and_its_owner_gets_in(known: Attempts) -> None:
    assert [known.take(f"192.0.2.{number}", "alice") for number in (1, 2, 3)] == [0.0] * 3
    assert known.take("192.0.2.1", "alice") == 60.0
    assert known.take("192.0.2.9", "alice") == 0.0
    assert known.take("192.0.2.9", "alice") == 60.0
    assert known.take("192.0.2.1", "bob") == 0.0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("127.0.0.1", "127.9.8.7", True),
        ("127.0.0.1", "::1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("no address", "no address", True),
    ],
)
def test_addresses_that_one_user_has_are_one(one: str, other: str, is_same: bool) -> None:
    assert (attempts.network(one) == attempts.network(other)) is is_same


def test_what_is_kept_is_bounded(known: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "KEYS_AT_MOST", 30)
    for number in range(100):
        known.take(f"192.0.2.{number}", "x" * 100_000 + str(number))
    assert len(known._until) <= 30
    assert all(len(name) <= 64 for _kind, _place, name in known._until)
