# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network between hosts: who measures with whom, and which host or pair is slower than the others.

`hosts` are {name: {"network": what accept_network measured from there, a row for each peer, "accept": what accept_info
returned}}; what hosts send is untrusted.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import rdma
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    FLEET_LEAST,
    NETWORK,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    Item,
    judged,
    outliers,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number, rows

# A host or a pair that is this much slower than the others is named: TCP varies more than arithmetic does.
TOLERANCE = 0.25
# A round trip that is longer than the median of all hosts by both is named.
LATENCY_FACTOR, LATENCY_MORE_US = 2.0, 50.0
CABLE = "look at the speed and the errors of its port on both sides (`ethtool`), its cable, and its way to the others"

Pair = tuple[str, str]


def rounds(names: Sequence[str], most: int = 0) -> list[dict[str, str]]:
    """Every pair once, in rounds in each of which every host has one partner: {who measures: with whom}.

    One host stays in its place while the others move on by one. Of an odd number, one host rests in each round.

    :param most: how many rounds; 0 for all of them.
    """
    ring: list[str | None] = list(names)
    if len(ring) % 2:
        ring.append(None)
    found: list[dict[str, str]] = []
    for _round in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        row = {one: other for one, other in pairs if one is not None and other is not None}
        found += [row] if row else []
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found[:most] if most else found


class Measured:
    """What is known of all pairs.

    :ivar rates: Gbit/s by who sends and who receives.
    :ivar latencies: microseconds, by pair.
    :ivar errors: why a pair could not be measured.
    """

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        self.rates: dict[Pair, float] = {}
        self.latencies: dict[Pair, float] = {}
        self.errors: dict[Pair, str] = {}
        for host, row in hosts.items():
            for told in rows(row.get("network")):
                peer = told.get("peer")
                if not isinstance(peer, str) or peer not in hosts or peer == host:
                    continue
                if told.get("error"):
                    self.errors[host, peer] = str(told["error"])
                    continue
                for pair, key in (((host, peer), "send_gbit_s"), ((peer, host), "receive_gbit_s")):
                    rate = number(told.get(key))
                    if rate is not None:
                        self.rates[pair] = rate
                latency = number(told.get("latency_us"))
                if latency is not None:
                    self.latencies[host, peer] = latency

    def sent(self) -> dict[str, float]:
        """The best of each host: its own link is in the way of all its pairs, that of another host only of one."""
        return _most((one, rate) for (one, _other), rate in self.rates.items())

    def received(self) -> dict[str, float]:
        return _most((other, rate) for (_one, other), rate in self.rates.items())

    def round_trips(self) -> dict[str, float]:
        slowest = [(name, -value) for pair, value in self.latencies.items() for name in pair]
        return {name: -value for name, value in _most(slowest).items()}

    def cut_off(self) -> set[str]:
        """The hosts that reach fewer than half of those with whom they measured. Of two hosts nobody can say which."""
        tried, failed = list(self.latencies) + list(self.errors), list(self.errors)
        names = {name for pair in tried for name in pair}
        if len(names) < FLEET_LEAST:
            return set()
        return {
            name for name in names if 2 * sum(name in pair for pair in failed) > sum(name in pair for pair in tried)
        }


def _most(pairs: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        found[name] = max(value, found.get(name, value))
    return found


def _reach(found: Measured) -> list[Item]:
    remedy = "let the nodes reach each other: look at firewalls, routes and the port's VLAN"
    lost = found.cut_off()
    items = []
    for name in sorted({name for pair in (*found.errors, *found.latencies) for name in pair}):
        errors = {pair: why for pair, why in found.errors.items() if name in pair}
        if name in lost:
            why = next(iter(errors.values()))
            evidence = f"{len(errors)} of its peers do not reach it, or it does not reach them: {why}"
            items.append(judged("network.reach", NETWORK, name, False, evidence, remedy))
            continue
        mine = {pair[1]: why for pair, why in errors.items() if pair[0] == name and pair[1] not in lost}
        if not mine:
            items.append(judged("network.reach", NETWORK, name, True, "every peer that is sound was reached", ""))
        for peer, why in mine.items():
            items.append(judged("network.reach", NETWORK, name, False, why, remedy, f"to {peer}"))
    return items


def _rates(found: Measured, tolerance: float) -> tuple[list[Item], set[tuple[str, str]]]:
    """The items, and which hosts are slow: (name, direction)."""
    items, slow = [], set()
    for id, values, what in (
        ("network.send", found.sent(), "sends"),
        ("network.receive", found.received(), "receives"),
    ):
        if not values:
            continue
        median = statistics.median(values.values())
        named = {row.key: row for row in outliers(values, tolerance)}
        slow |= {(name, id) for name in named}
        for name, value in values.items():
            text = f"{what} {value:.2f} Gbit/s"
            if len(values) < FLEET_LEAST:
                text += "; with two hosts it is unknown which one is slow"
                items.append(Item(id, NETWORK, name, NOT_APPLICABLE, text))
                continue
            evidence = f"{text}, {value / median:.0%} of the median of {median:.2f}" if median else text
            items.append(judged(id, NETWORK, name, name not in named, evidence, CABLE))
    return items, slow


def _pairs(found: Measured, slow: set[tuple[str, str]], tolerance: float) -> list[Item]:
    """Pairs that are slow although both hosts are fast with others: the way between them is narrow."""
    sent, received = found.sent(), found.received()
    if len(sent) < FLEET_LEAST:
        return []
    bad: dict[Pair, str] = {}
    for (one, other), rate in found.rates.items():
        if (one, "network.send") in slow or (other, "network.receive") in slow:
            continue
        best = min(sent[one], received[other])
        if rate < best * (1 - tolerance):
            bad[one, other] = f"{rate:.2f} Gbit/s, where both reach {best:.2f} with others"
    remedy = "look at the links of the switches between the two, and at how they share their load"
    items = [
        judged("network.pair", NETWORK, one, False, text, remedy, f"to {other}") for (one, other), text in bad.items()
    ]
    sound = [name for name in sent if not any(one == name for one, _other in bad)]
    told = "no peer is slower than the others"
    return items + [judged("network.pair", NETWORK, name, True, told, "") for name in sound]


def _latencies(found: Measured) -> list[Item]:
    values = found.round_trips()
    items = []
    median = statistics.median(values.values()) if values else 0.0
    for name, value in values.items():
        text = f"the shortest round trip takes {value:.0f} us"
        if len(values) < FLEET_LEAST:
            items.append(Item("network.latency", NETWORK, name, NOT_APPLICABLE, f"{text}; there is no fleet"))
            continue
        good = value <= max(median * LATENCY_FACTOR, median + LATENCY_MORE_US)
        evidence = f"{text}, the median of all is {median:.0f} us"
        items.append(judged("network.latency", NETWORK, name, good, evidence, CABLE))
    return items


def _rdma(hosts: Mapping[str, Mapping[str, Any]]) -> list[Item]:
    """What TCP does not show is said."""
    found = []
    for name, row in hosts.items():
        ports = mapping(row.get("accept")).get("infiniband")
        active = [told for told in rows(ports) if rdma.is_up(told)]
        if isinstance(ports, list) and not active:
            found.append(Item("network.rdma", NETWORK, name, NOT_APPLICABLE, "the host has no active RDMA port"))
            continue
        why = "RDMA is not measured, only TCP" if active else "stage node shows whether the host has RDMA"
        remedy = "run `ib_write_bw` and `ib_write_lat` of perftest between pairs of hosts"
        found.append(Item("network.rdma", NETWORK, name, NOT_TESTABLE, why, remedy))
    return found


def items(hosts: Mapping[str, Mapping[str, Any]], tolerance: float = TOLERANCE) -> list[Item]:
    """All items of the stage. A row may have "why": what kept the host from listening."""
    found = Measured(hosts)
    rates, slow = _rates(found, tolerance)
    listed = [*_reach(found), *rates, *_pairs(found, slow, tolerance), *_latencies(found)]
    known = {item.host for item in listed}
    for name, row in hosts.items():
        if name in known:
            continue
        if row.get("why"):
            listed.append(Item("network.reach", NETWORK, name, NOT_TESTABLE, str(row["why"])))
        elif "network" not in row:
            listed.append(Item("network.reach", NETWORK, name, NOT_TESTABLE, "the host did not answer"))
        else:
            listed.append(Item("network.reach", NETWORK, name, NOT_APPLICABLE, "there is no other host to reach"))
    return listed + _rdma({name: row for name, row in hosts.items() if "network" in row})
