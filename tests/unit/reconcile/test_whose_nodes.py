# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose nodes in ZooKeeper are: the reconciler as a process, and somebody who was there first or speaks for others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import make_acl, make_digest_acl, make_digest_acl_credential

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import zookeeper as agent_zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos import plan as reconcile
from tests.unit.reconcile import places
from tests.unit.reconcile.site import ISOLATION, Site
from tests.unit.reconcile.test_reconcile_command import WAY
from tests.unit.simulators.mesos_cluster import until

Make = Callable[..., Site]
OPEN = [make_acl("world", "anyone", all=True)]
SHARED = ("agents", "hidden-2")


@contextlib.contextmanager
def client(site: Site, *logins: tuple[str, str]) -> Iterator[KazooClient]:
    one = places.connected(site.zookeeper.address, *logins)
    yield one
    one.stop()
    one.close()


def verdict(host: str, state: str) -> dict[str, Any]:
    reasons = [{"code": "xid", "verdict": "fatal", "action": "reset_gpu", "text": "Xid 79"}] if state == "fatal" else []
    gpu = {"uuid": f"GPU-{host}", "index": 0, "pci_address": "0000:00:00.0", "verdict": state, "reasons": reasons}
    told = {"schema": 1, "host": host, "verdict": state, "reasons": [], "devices": [gpu], "listed": [f"GPU-{host}"]}
    return {**told, "order": None, "boot_id": "1", "time": 1.0}


def mesos_agent(site: Site, name: str) -> None:
    site.cluster.agent(name, ISOLATION, "--resources=gpus:1", "--nvidia_gpu_devices=0", gpus="ok")
    site.cluster.registered(name)


class Publisher:
    """The real publisher of a host."""

    def __init__(self, site: Site, host: str, login: tuple[str, str], former: tuple[str, str] | None = None) -> None:
        self.host = host
        told = {"user": login[0], "password": login[1]}
        if former:
            told.update(former_user=former[0], former_password=former[1])
        file = places.private(site.base / f"login-{host}", told)
        where = agent_zookeeper.Settings([site.zookeeper.address], host, site.path, str(file), session_s=4.0)
        self.publisher = agent_zookeeper.ZooKeeper(where, lambda told: told)

    def says(self, state: str) -> None:
        with contextlib.suppress(OSError):
            self.publisher.publish(verdict(self.host, state))

    def close(self) -> None:
        self.publisher.close()


@pytest.fixture
def publishers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Publisher]]:
    monkeypatch.setattr(agent_zookeeper, "RETRY_AT_MOST_S", 0.3)
    made: list[Publisher] = []

    def make(*words: Any) -> Publisher:
        made.append(Publisher(*words))
        return made[-1]

    yield make
    for one in made:
        one.close()


def state(site: Site, host: str) -> bool:
    return bool(site.cluster.slave(host)["deactivated"])


def content(site: Site, path: str, reader: KazooClient | None = None) -> bytes:
    """Empty for what is not there, or may not be read."""
    try:
        return bytes((reader or site.client).get(f"{site.path}/{path}")[0])
    except (NoNodeError, NoAuthError):
        return b""


def shared_secrets(site: Site) -> str:
    login = {"zookeeper_user": places.LOGIN[0], "zookeeper_password": places.LOGIN[1]}
    agents = {"zookeeper_agents_user": SHARED[0], "zookeeper_agents_password": SHARED[1]}
    return str(places.private(site.secrets, {**login, **agents}))


def test_what_somebody_had_made_first_is_taken_back_and_nothing_of_it_is_gone_on_from(site: Make):
    one = site()
    memory = {**reconcile.empty("n1"), "number": 7, "known": True}
    memory["gpus"] = {"GPU-n1-0": {"resets": 9, "reboots": 9, "at": 1.0, "quarantine": True}}
    order = {"id": "n1-1-1", "kind": "replace", "agent_id": "S0", "gpus": []}
    with client(one) as eve:
        for path, data in {
            "": b"",
            "/orders": b"",
            "/orders/n1": json.dumps({"order": order}).encode(),
            "/journal": b"",
            "/journal/n1": json.dumps({"memory": memory, "last": []}).encode(),
            "/journal/n3": json.dumps({"memory": reconcile.empty("n3"), "last": []}).encode(),
            "/hosts": b"",
            "/hosts/n2": json.dumps({"reader": make_digest_acl_credential("eve", "x")}).encode(),
            "/hosts/n2/verdict": json.dumps(verdict("n2", "fatal")).encode(),
            "/requests": b"",
            "/requests/r-1": b'{"kind": "permit"}',
            "/election": b"",
            "/election/0__lock__0000000000": b"eve",
            "/fleet": b'{"schema": 1, "fences": [], "permitted": ["n1"]}',
            "/verdicts": b"",
            "/verdicts/n3": json.dumps(verdict("n3", "fatal")).encode(),
        }.items():
            eve.create(f"{one.path}{path}", data, acl=OPEN)
        one.login("n2")
        one.login("n3")
        for name in ("n1", "n2", "n3"):
            mesos_agent(one, name)
        one.leading()
        until(lambda: one.entries("wait", "n1"))
        assert "another client could write it" in one.entries("wait", "n1")[0]["why"]
        told = " ".join(row["why"] for row in one.entries("repair"))
        for name in ("", "/orders", "/journal", "/hosts", "/requests", "/election", "/verdicts"):
            assert f"{one.path}{name} was open to world:anyone, and belongs to the reconciler again" in told
        for path in ("", "/orders", "/journal", "/journal/n1", "/hosts", "/hosts/n2", "/election", "/requests"):
            for attempt in (eve.get, eve.get_children, lambda path: eve.create(f"{path}/x")):
                with pytest.raises(NoAuthError):
                    attempt(f"{one.path}{path}")
        for path in ("/orders/n1", "/hosts/n2/verdict", "/verdicts/n3", "/journal/n3"):
            assert one.client.exists(f"{one.path}{path}") is None
        assert one.entries("permit") == []
        assert one.way("n1") == one.way("n2") == one.way("n3") == []
        kept = [one.client.get(f"{one.path}/aside/{name}")[0] for name in one.client.get_children(f"{one.path}/aside")]
        assert json.dumps({"memory": memory, "last": []}).encode() in kept
        assert not [name for name in one.client.get_children(one.path) if name.startswith("doubt")]


def test_nodes_that_cannot_be_taken_back_are_named_and_nothing_is_read_until_they_are_ours(site: Make):
    one = site()
    with client(one, ("eve", "x")) as eve:
        acl = [make_digest_acl("eve", "x", all=True)]
        eve.create(one.path, acl=acl)
        eve.create(f"{one.path}/orders", acl=acl)
        refused = one.command("reconcile", "--once")
        assert refused.returncode == 1
        assert f"{one.path} belongs to another client, so nothing of it is read. To do: delete it" in refused.stderr
        process = one.reconciler()
        until(lambda: any("belongs to another client" in row["why"] for row in one.entries("problem")))
        eve.delete(one.path, recursive=True)
        until(lambda: one.entries("lead"))
        assert process.poll() is None


def test_one_host_cannot_speak_for_another_nor_hold_the_fleet(site: Make, publishers):
    one = site(credentials="")
    one.settings["credentials"] = shared_secrets(one)
    one.config.write_text(json.dumps(one.settings))
    names = [f"n{number}" for number in range(6)]
    hosts = {name: publishers(one, name, one.login(name)) for name in names}
    for name in names:
        mesos_agent(one, name)
        hosts[name].says("ok")
    one.leading()
    until(lambda: all(one.client.exists(f"{one.path}/hosts/{name}/verdict") for name in names))
    until(lambda: len(one.entries("wait")) == 0 and len(one.client.get_children(f"{one.path}/journal")) == len(names))
    # Root on n5 has its own login, and the one that all had before.
    with client(one, places.login_of("n5"), SHARED) as eve:
        for name in names[:5]:
            eve.create(f"{one.path}/verdicts/{name}", json.dumps(verdict(name, "fatal")).encode(), ephemeral=True)
            forged = json.dumps(verdict(name, "fatal")).encode()
            for attempt in (
                lambda path, data=forged: eve.set(f"{path}/verdict", data),
                lambda path: eve.delete(f"{path}/verdict"),
                lambda path, data=forged: eve.create(f"{path}/other", data),
            ):
                with pytest.raises(NoAuthError):
                    attempt(f"{one.path}/hosts/{name}")
        with pytest.raises((NoAuthError, NoNodeError)):
            eve.set(f"{one.path}/orders/n0", b"{}")
        # For itself it may say what it likes.
        eve.set(f"{one.path}/hosts/n5/verdict", json.dumps(verdict("n0", "fatal")).encode())
        hosts["n3"].says("fatal")
        until(lambda: state(one, "n3"))
        assert one.entries("breaker") == []
        assert [name for name in names if state(one, name)] == ["n3"]


def test_from_the_login_that_all_share_to_one_for_each_no_verdict_is_lost(site: Make, publishers):
    one = site(credentials="")
    one.settings["credentials"] = shared_secrets(one)
    one.config.write_text(json.dumps({key: value for key, value in one.settings.items() if key != "logins"}))
    for name in ("n1", "n2"):
        mesos_agent(one, name)
    # As it was: a reconciler without logins of hosts, and agents that share one.
    old = one.leading()
    first, second = publishers(one, "n1", SHARED), publishers(one, "n2", SHARED)
    first.says("ok")
    second.says("ok")
    until(lambda: {"n1", "n2"} <= {*one.client.get_children(f"{one.path}/journal")})
    # The hosts go first, and their node is not there yet.
    first.close()
    first = publishers(one, "n1", places.login_of("n1"), SHARED)
    first.says("ok")
    until(lambda: one.client.exists(f"{one.path}/verdicts/n1"))
    # Then the reconciler.
    one.config.write_text(json.dumps(one.settings))
    one.login("n1")
    one.login("n2")
    old.terminate()
    old.wait(20)
    before = len(one.entries())
    one.leading()
    until(lambda: one.client.exists(f"{one.path}/hosts/n1/verdict"))
    until(lambda: json.loads(one.client.get(f"{one.path}/hosts/n1")[0])["moved"])
    told = one.command("reconcile", "--status").stdout
    assert "These hosts publish with a shared login: n2." in told
    for host in (first, second):
        host.says("fatal")
        until(lambda name=host.host: state(one, name))
    # Of a host that has its own, nobody takes what comes with the other one.
    with client(one, SHARED) as eve:
        eve.delete(f"{one.path}/verdicts/n1")
        with contextlib.suppress(Exception):
            eve.create(f"{one.path}/verdicts/n1", json.dumps(verdict("n1", "ok")).encode(), ephemeral=True)
    told = [row["why"] for row in one.entries()[before:] if row["what"] == "wait"]
    assert not [why for why in told if "its GPU agent has no session" in why]
    until(lambda: b"fatal" in content(one, "verdicts/n1") and b"fatal" in content(one, "hosts/n1/verdict"))


def test_the_logins_of_a_host_and_of_the_reconciler_can_be_exchanged_while_it_runs(site: Make, publishers):
    one = site()
    mesos_agent(one, "n1")
    first = publishers(one, "n1", one.login("n1"))
    first.says("ok")
    before = one.leading()
    until(lambda: one.client.exists(f"{one.path}/hosts/n1/verdict"))
    one.logins["n1"] = make_digest_acl_credential("n1", "hidden-new")
    places.private(one.base / "logins", one.logins)
    # What it has published stays, and is followed.
    until(lambda: any(row.id.id == one.logins["n1"] for row in one.client.get_acls(f"{one.path}/hosts/n1")[0]))
    first.says("degraded")
    until(lambda: b"degraded" in content(one, "hosts/n1/verdict"))
    first.close()
    second = publishers(one, "n1", ("n1", "hidden-new"))
    second.says("ok")
    until(lambda: one.client.exists(f"{one.path}/hosts/n1/verdict"))
    # The reconciler's own.
    login, former = ("reconciler", "hidden-newer"), places.LOGIN
    told = dict(zip(("user", "password", "former_user", "former_password"), (*login, *former), strict=True))
    places.private(one.secrets, {f"zookeeper_{key}": value for key, value in told.items()})
    before.terminate()
    before.wait(20)
    one.leading()
    second.says("fatal")
    until(lambda: state(one, "n1"))
    with client(one, login) as owner:
        until(lambda: b"fatal" in content(one, "hosts/n1/verdict", owner))
        assert owner.get(f"{one.path}/journal/n1")
    with client(one, former) as nobody, pytest.raises(NoAuthError):
        nobody.get(f"{one.path}/hosts/n1")


def test_a_dry_run_without_a_login_works_and_acting_without_one_is_refused(site: Make, tmp_path: Path):
    one = site()
    one.settings.update(credentials=None, logins=None)
    one.config.write_text(json.dumps(one.settings))
    refused = one.command("reconcile", "--once")
    assert refused.returncode == 64
    assert "there is no login for ZooKeeper, so that any client could give orders" in refused.stderr
    mesos_agent(one, "n1")
    with client(one) as anyone:
        anyone.create(f"{one.path}/verdicts/n1", json.dumps(verdict("n1", "fatal")).encode(), makepath=True)
        told = one.command("reconcile", "--once", "--mode", "dry-run")
        assert told.returncode == 0, told.stderr
        assert "would deactivate: fatal: GPU-n1 (xid)" in told.stdout
        assert not state(one, "n1")
        assert WAY[0] not in one.way("n1")
