# SPDX-License-Identifier: GPL-3.0-or-later
"""Who measures with whom, and which host or pair is named: the one whose link is narrow, and no other."""

from __future__ import annotations

import itertools

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL, NOT_APPLICABLE, NOT_TESTABLE, PASS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.network import items, rounds

NAMES = [f"n{number}" for number in range(1, 7)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 33])
def test_every_pair_meets_once_and_nobody_is_in_two_pairs_of_a_round(count):
    names = [f"n{number}" for number in range(count)]
    found = rounds(names)
    pairs = [frozenset(pair) for row in found for pair in row.items()]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, itertools.combinations(names, 2)))
    for row in found:
        busy = [name for pair in row.items() for name in pair]
        assert len(busy) == len(set(busy))
    assert len(found) == (0 if count < 2 else count - 1 + count % 2)


def test_as_many_rounds_as_are_wanted():
    assert rounds(NAMES, 2) == rounds(NAMES)[:2]


def fleet(names=NAMES, rate=24.0):
    """Rates differ by a few percent, as they do."""
    hosts = {name: {"network": [], "accept": {"infiniband": []}} for name in names}
    for number, row in enumerate(rounds(names)):
        for one, other in row.items():
            told = {"error": None, "latency_us": 30.0 + number, "receive_gbit_s": rate + number % 3 * 0.5}
            hosts[one]["network"].append({"peer": other, "send_gbit_s": rate - number % 2, **told})
    return hosts


def pairs(hosts):
    return [(host, row["peer"], row) for host in hosts for row in hosts[host]["network"]]


def failures(found):
    return {(item.host, item.subject, item.id) for item in found if item.outcome == FAIL}


def test_a_sound_network_passes():
    found = items(fleet())
    assert {item.outcome for item in found if item.id != "network.rdma"} == {PASS}
    assert {item.outcome for item in found if item.id == "network.rdma"} == {NOT_APPLICABLE}
    assert {item.host for item in found} == set(NAMES)


@pytest.mark.parametrize("names", [NAMES, NAMES[:3]])
def test_a_host_that_sends_slowly_is_named_alone(names):
    hosts = fleet(names)
    for one, other, row in pairs(hosts):
        if one == "n2":
            row["send_gbit_s"] = 1.0
        if other == "n2":
            row["receive_gbit_s"] = 1.0
    found = items(hosts)
    assert failures(found) == {("n2", "", "network.send")}
    (item,) = [item for item in found if item.outcome == FAIL]
    assert "1.00 Gbit/s" in item.evidence
    assert item.remedy


def test_a_narrow_way_between_two_sound_hosts_is_a_pair():
    hosts = fleet()
    for one, other, row in pairs(hosts):
        if {one, other} == {"n2", "n5"}:
            row["send_gbit_s" if one == "n2" else "receive_gbit_s"] = 3.0
    assert failures(items(hosts)) == {("n2", "to n5", "network.pair")}


def test_a_host_that_answers_late_is_named_alone():
    hosts = fleet()
    for one, other, row in pairs(hosts):
        row["latency_us"] += 500.0 * ("n3" in (one, other))
    assert failures(items(hosts)) == {("n3", "", "network.latency")}


def test_a_host_that_nobody_reaches_is_named_and_not_its_peers():
    hosts = fleet()
    for one, other, row in pairs(hosts):
        if "n4" in (one, other):
            row.update(error="timed out", send_gbit_s=None, receive_gbit_s=None, latency_us=None)
    assert failures(items(hosts)) == {("n4", "", "network.reach")}


def test_a_way_that_is_cut_is_a_pair():
    hosts = fleet()
    for one, other, row in pairs(hosts):
        if {one, other} == {"n1", "n2"}:
            row.update(error="no route to host", send_gbit_s=None, receive_gbit_s=None, latency_us=None)
            told = (one, f"to {other}", "network.reach")
    assert failures(items(hosts)) == {told}


def test_of_two_hosts_nobody_can_say_which_is_slow():
    hosts = fleet(NAMES[:2])
    hosts["n1"]["network"][0]["send_gbit_s"] = 0.1
    found = items(hosts)
    assert failures(found) == set()
    assert {item.outcome for item in found if item.id == "network.send"} == {NOT_APPLICABLE}


def test_one_host_alone_and_one_that_is_silent():
    found = items({"n1": {"network": []}})
    assert [(item.id, item.outcome) for item in found if item.id != "network.rdma"] == [
        ("network.reach", NOT_APPLICABLE)
    ]
    found = items({**fleet(NAMES[:4]), "n9": {}, "n8": {"network": [], "why": "the host cannot listen on port 7"}})
    assert [item.evidence for item in found if item.outcome == NOT_TESTABLE and item.id != "network.rdma"] == [
        "the host did not answer",
        "the host cannot listen on port 7",
    ]


def test_that_rdma_is_not_measured_is_said():
    hosts = fleet()
    hosts["n1"]["accept"]["infiniband"] = [{"name": "mlx5_0/1", "state": "4: ACTIVE"}]
    del hosts["n2"]["accept"]
    told = {item.host: item for item in items(hosts) if item.id == "network.rdma"}
    assert {name: item.outcome for name, item in told.items()} == {
        **dict.fromkeys(NAMES, NOT_APPLICABLE),
        "n1": NOT_TESTABLE,
        "n2": NOT_TESTABLE,
    }
    assert "ib_write_bw" in told["n1"].remedy


def test_a_host_that_lies_breaks_nothing():
    for nonsense in (7, "x", [7], [{"peer": 7}], [{"peer": "n1", "send_gbit_s": "fast", "latency_us": True}]):
        assert {item.host for item in items({**fleet(), "n2": {"network": nonsense}})} == set(NAMES)
