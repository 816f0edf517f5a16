# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a quorum does not come about is said, one reason at a time. The answers of mon_status are hand-made."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mon import store as ceph_monitor
from tests.unit.plugins.module_utils.ceph.ceph_captured import CLUSTER

MONITORS = [{"name": name, "address": f"192.0.2.{number}"} for number, name in enumerate("abc", 1)]


def status(quorum: list[int], state: str = "leader", **addresses: str) -> dict[str, Any]:
    known = {row["name"]: row["address"] for row in MONITORS} | addresses
    return {
        "state": state,
        "quorum": quorum,
        "monmap": {
            "fsid": CLUSTER,
            "mons": [
                {
                    "rank": rank,
                    "name": name,
                    "public_addrs": {
                        "addrvec": [
                            {"type": "v2", "addr": f"{known[name]}:3300"},
                            {"type": "v1", "addr": f"{known[name]}:6789"},
                        ]
                    },
                }
                for rank, name in enumerate("abc")
            ],
        },
    }


def diagnose(**more: Any) -> list[str]:
    given: dict[str, Any] = {
        "name": "a",
        "fsid": CLUSTER,
        "monitors": MONITORS,
        "status": status([], "probing"),
        "local": {"127.0.0.1", "192.0.2.1"},
        "ports": {(row["address"], port): "" for row in MONITORS for port in (3300, 6789)},
        "names": {"a": [], "b": [], "c": []},
        "clock_offset_s": 0.2,
        **more,
    }
    problems = ceph_monitor.diagnose(**given)
    assert all(problem.remedy for problem in problems)
    return [f"{problem.cause}; {problem.remedy}" for problem in problems]


def test_a_quorum_is_complete_only_with_all_monitors():
    assert ceph_monitor.is_complete(status([0, 1, 2]), "abc")
    assert not ceph_monitor.is_complete(status([0, 1]), "abc")
    assert not ceph_monitor.is_complete(status([0, 1, 2], "electing"), "abc")
    assert not ceph_monitor.is_complete(None, "abc")


def test_without_a_known_reason_the_state_is_told():
    (problem,) = diagnose()
    assert problem.startswith("its state is probing; not in the quorum: a, b, c; ")


def test_each_reason_is_told_with_its_value():
    def said(**more: Any) -> str:
        return diagnose(**more)[0]

    assert "192.0.2.1" in said(local={"198.51.100.1"})
    assert "journalctl -u ceph-mon@a" in said(status=None)
    assert "192.0.2.9 for b" in said(status=status([], "probing", b="192.0.2.9"))
    assert "3300 (No route to host)" in said(ports={("192.0.2.2", 3300): "No route to host"})
    assert "b resolves to 192.0.2.77" in said(names={"b": ["192.0.2.77"]})
    assert "+90 s" in said(clock_offset_s=90.0)
    assert "another-cluster" in said(
        status={**status([]), "monmap": {**status([])["monmap"], "fsid": "another-cluster"}}
    )
    assert "does not know c" in said(
        status={**status([]), "monmap": {"fsid": CLUSTER, "mons": status([])["monmap"]["mons"][:2]}}
    )


def test_several_reasons_are_told_at_once():
    said = diagnose(status=None, local=set(), clock_offset_s=-3600.0)
    assert len(said) == 3
