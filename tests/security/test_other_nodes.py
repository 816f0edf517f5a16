# SPDX-License-Identifier: GPL-3.0-or-later
"""Root on another node, and somebody without a login, against a real ZooKeeper and the reconciler as a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError, NotEmptyError
from kazoo.security import make_acl

from tests.unit.reconcile import places
from tests.unit.reconcile.site import Site, SomeNode
from tests.unit.reconcile.test_reconcile_command import WAY
from tests.unit.reconcile.test_whose_nodes import verdict
from tests.unit.simulators.mesos_cluster import until

Make = Callable[..., Site]
OPEN = [make_acl("world", "anyone", all=True)]
FORGED = json.dumps(verdict("a", "fatal")).encode()
# Below the reconciler's part. The host is called a.
NODES = (
    *("", "/hosts", "/hosts/a", "/hosts/a/verdict", "/orders", "/orders/a", "/journal", "/journal/a"),
    *("/verdicts", "/verdicts/a", "/requests", "/election", "/fleet", "/aside"),
)
ATTEMPTS: dict[str, Callable[[KazooClient, str], Any]] = {
    "replaces": lambda eve, path: eve.set(path, FORGED),
    "deletes": lambda eve, path: eve.delete(path),
    "makes one below": lambda eve, path: eve.create(f"{path}/zz", FORGED),
    "makes one that goes below": lambda eve, path: eve.create(f"{path}/zz", FORGED, ephemeral=True),
    "makes numbered ones below": lambda eve, path: eve.create(f"{path}/zz", FORGED, sequence=True),
    "opens": lambda eve, path: eve.set_acls(path, OPEN),
}
# What comes to nothing: our part as a whole could be deleted by whoever owns ZooKeeper's root, if it were empty, which
# it never is; and who speaks in the old place is not heard of a host that has a login.
ALLOWED = {("", "deletes"), ("/verdicts", "makes one below"), ("/verdicts", "makes one that goes below")}


def attempted(eve: KazooClient, path: str) -> list[tuple[str, str]]:
    """What came about of all attempts on all nodes."""
    done = []
    for node in NODES:
        for name, attempt in ATTEMPTS.items():
            try:
                attempt(eve, f"{path}{node}")
            except (NoAuthError, NoNodeError):
                continue
            except NotEmptyError:
                # It may, as soon as nothing is below.
                pass
            done.append((node, name))
    return done


def contents(one: Site) -> dict[str, bytes]:
    return {node: one.client.get(f"{one.path}{node}")[0] for node in NODES if one.client.exists(f"{one.path}{node}")}


def readable(eve: KazooClient, path: str) -> list[str]:
    found = []
    for node in NODES:
        for look in (eve.get, eve.get_children):
            try:
                look(f"{path}{node}")
            except (NoAuthError, NoNodeError):
                continue
            found.append(node)
    return sorted(set(found))


@pytest.mark.parametrize("made_first", [False, True])
def test_nothing_of_a_host_or_of_the_reconciler_is_anybody_elses(site: Make, made_first: bool) -> None:
    one = site()
    if made_first:
        # Whoever is there first makes all of it, open to everybody, with lies in it.
        early = places.connected(one.zookeeper.address)
        for node in NODES:
            early.create(f"{one.path}{node}", FORGED if node.count("/") == 2 else b"", acl=OPEN)
        early.create(f"{one.path}/requests/r-1", b'{"kind": "permit"}', acl=OPEN)
        early.create(f"{one.path}/election/0__lock__0000000000", b"eve", acl=OPEN)
    else:
        early = places.connected(one.zookeeper.address, ("eve", "x"))
    one.login("a")
    one.login("b")
    if made_first:
        one.leading()
        until(lambda: one.client.exists(f"{one.path}/hosts/b"))
        node = SomeNode(one.cluster, "a", 2, one.zookeeper.address, one.path, places.login_of("a"))
        one.nodes.append(node)
        until(lambda: node.state == "active")
    else:
        node = one.node("a")
        one.place("b")
        one.leading()
    until(lambda: one.client.exists(f"{one.path}/journal/a"))
    root_on_b = places.connected(one.zookeeper.address, places.login_of("b"))
    before = contents(one)
    assert json.loads(before["/hosts/a/verdict"])["verdict"] == "ok"
    for eve in (root_on_b, early):
        assert [row for row in attempted(eve, one.path) if row not in ALLOWED] == []
        assert [name for name in readable(eve, one.path) if "a" in name.split("/")] == []
    after = contents(one)
    assert {name: after[name] for name in before if name not in ("/verdicts", "/verdicts/a")} == {
        name: before[name] for name in before if name not in ("/verdicts", "/verdicts/a")
    }
    # Nothing came of it, and the host is heard as before.
    assert one.way("a") == []
    assert one.entries("permit") == []
    node.fault(0)
    if made_first:
        # What was remembered of it is a lie, so that it is held until somebody has looked.
        until(lambda: one.entries("wait", "a"))
        assert one.command("clear", "a").returncode == 0
    until(lambda: one.way("a") == WAY)
    for eve in (root_on_b, early):
        eve.stop()
        eve.close()
