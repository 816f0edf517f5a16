# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many wrong passwords are looked at, by where they come from and for whom they are."""

from __future__ import annotations

import ipaddress
import time
from typing import Callable, NamedTuple

# Of more, those that were free the soonest are forgotten.
KEYS_AT_MOST = 20_000


class Rate(NamedTuple):
    """So many at once, and one more after so many seconds each."""

    burst: int
    each_s: float


ADDRESS, NAME, BOTH = Rate(20, 5.0), Rate(10, 60.0), Rate(5, 60.0)
_Key = tuple[str, str, str]


def network(address: str) -> str:
    """Where an address is from: whoever has one address of IPv6 has 2^64 of them, and whoever is on the host itself has
    all that lead back to it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return "127.0.0.1"
    return str(found) if found.version == 4 else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


class Attempts:
    """Counts each attempt as a wrong one until it is given back.

    A name for which too many were wrong stays open for whoever has had none wrong for it: who guesses locks nobody out.
    """

    def __init__(
        self,
        address: Rate = ADDRESS,
        name: Rate = NAME,
        both: Rate = BOTH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._name, self._both, self._clock = address, name, both, clock
        # When the last wrong one is forgotten.
        self._until: dict[_Key, float] = {}

    def take(self, address: str, name: str) -> float:
        """Count an attempt, if it may be made: 0.0. Otherwise in how many seconds it may."""
        now, keys = self._clock(), self._keys(address, name)
        wait = self._wait(keys, now)
        if not wait:
            self.count(address, name)
        return wait

    def count(self, address: str, name: str) -> None:
        """An attempt that was made."""
        now = self._clock()
        for key, rate in self._keys(address, name):
            until = max(self._until.get(key, now), now) + rate.each_s
            self._until[key] = min(until, now + rate.burst * rate.each_s)
        if len(self._until) > KEYS_AT_MOST:
            kept = sorted(self._until.items(), key=lambda pair: pair[1])[KEYS_AT_MOST // 2 :]
            self._until = dict(kept)

    def give_back(self, address: str, name: str) -> None:
        """An attempt that was no wrong one."""
        for key, rate in self._keys(address, name):
            if key in self._until:
                self._until[key] -= rate.each_s

    def closed(self, address: str, name: str) -> tuple[bool, bool]:
        """Whether no attempt may be made from an address, and whether none for that name from there."""
        keys, now = self._keys(address, name), self._clock()
        return bool(self._wait(keys[:1], now)), bool(self._wait(keys, now))

    def _keys(self, address: str, name: str) -> tuple[tuple[_Key, Rate], ...]:
        place, name = network(address), name[:64]
        # The kind keeps them apart: a login may have no name.
        return (
            (("address", place, ""), self._address),
            (("name", "", name), self._name),
            (("both", place, name), self._both),
        )

    def _wait(self, keys: tuple[tuple[_Key, Rate], ...], now: float) -> float:
        waits = [
            max(0.0, self._until.get(key, now) + rate.each_s - now - rate.burst * rate.each_s) for key, rate in keys
        ]
        # The name's counts only for whoever had a wrong one for it.
        if len(waits) > 1 and self._until.get(keys[2][0], now) <= now:
            waits[1] = 0.0
        return max(waits)
