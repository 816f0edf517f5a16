# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's publisher with a real ZooKeeper: what others find there, and what happens when one of the two goes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from kazoo.security import make_acl, make_digest_acl

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import courier
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import zookeeper as agent_zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.zookeeper import Settings, ZooKeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import Failure
from tests.local_zookeeper import ROOT, LocalZooKeeper, free_port
from tests.unit.reconcile import places
from tests.unit.simulators.mesos_cluster import until

AGENT = """
import sys, time
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.zookeeper import Settings, ZooKeeper
one = ZooKeeper(Settings(["127.0.0.1:" + sys.argv[1]], "n1", sys.argv[2]), lambda told: told)
one.publish({"verdict": "ok"})
print(one.process, flush=True)
time.sleep(600)
"""


@pytest.fixture
def client(zookeeper: LocalZooKeeper, tmp_path: Path) -> Iterator[KazooClient]:
    one = KazooClient(zookeeper.address)
    one.start()
    one.ensure_path(f"/{tmp_path.name}/verdicts")
    one.ensure_path(f"/{tmp_path.name}/orders")
    yield one
    one.stop()
    one.close()


def settings(zookeeper: LocalZooKeeper, path: Path, **more: Any) -> Settings:
    # The first server is not there; any of them will do.
    servers = [f"127.0.0.1:{port}" for port in (free_port(), zookeeper.port)]
    return Settings(servers, "n1", f"/{path.name}", **{"session_s": 3.0, **more})


@pytest.fixture(params=[3.0])
def publisher(zookeeper: LocalZooKeeper, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ZooKeeper]:
    """With a session of so many seconds."""
    one = ZooKeeper(settings(zookeeper, tmp_path, session_s=request.param), lambda told: told)
    yield one
    one.close()


def put(publisher: ZooKeeper, **told: Any) -> None:
    try:
        publisher.publish(told)
    except OSError:
        # It says what is wrong and goes on.
        return


def found(client: KazooClient, path: Path) -> Any:
    try:
        return json.loads(client.get(f"/{path.name}/verdicts/n1")[0])
    except NoNodeError:
        return None


def test_a_verdict_is_there_as_long_as_its_agent(client, publisher, tmp_path):
    publisher.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path) == {"verdict": "ok"})
    assert client.exists(f"/{tmp_path.name}/verdicts/n1").ephemeralOwner
    publisher.publish({"verdict": "fatal"})
    until(lambda: found(client, tmp_path) == {"verdict": "fatal"})
    publisher.close()
    assert found(client, tmp_path) is None


def test_an_agent_that_is_killed_leaves_no_verdict(zookeeper, client, tmp_path):
    command = [sys.executable, "-c", AGENT, str(zookeeper.port), f"/{tmp_path.name}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as agent:
        until(lambda: found(client, tmp_path))
        child = int(agent.stdout.readline())
        agent.kill()
    until(lambda: found(client, tmp_path) is None)
    until(lambda: not Path(f"/proc/{child}").exists())


def test_an_agent_that_says_nothing_any_more_loses_its_verdict(zookeeper, client, tmp_path):
    one = ZooKeeper(settings(zookeeper, tmp_path, silent_s=0.5), lambda told: told)
    one.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path))
    until(lambda: found(client, tmp_path) is None)
    put(one, verdict="ok")
    until(lambda: found(client, tmp_path))
    one.close()


# Longer than a server takes to start on a machine that is busy.
@pytest.mark.parametrize("publisher", [40.0], indirect=True)
def test_a_lost_connection_does_not_lose_the_verdict(zookeeper, client, publisher, tmp_path):
    publisher.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path))
    before = client.exists(f"/{tmp_path.name}/verdicts/n1")
    zookeeper.stop(signal.SIGKILL)
    zookeeper.start()
    until(lambda: client.connected)
    put(publisher, verdict="fatal")
    until(lambda: found(client, tmp_path) == {"verdict": "fatal"})
    after = client.exists(f"/{tmp_path.name}/verdicts/n1")
    assert (after.ephemeralOwner, after.czxid) == (before.ephemeralOwner, before.czxid)


def test_a_host_that_is_cut_off_loses_its_verdict_and_gives_it_again_afterwards(client, publisher, tmp_path):
    publisher.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path))
    os.kill(publisher.process, signal.SIGSTOP)
    until(lambda: found(client, tmp_path) is None)
    os.kill(publisher.process, signal.SIGCONT)
    until(lambda: found(client, tmp_path) == {"verdict": "ok"})


def test_without_a_server_the_agent_goes_on_and_says_so(tmp_path):
    one = ZooKeeper(Settings([f"127.0.0.1:{free_port()}"], "n1"), lambda told: told)
    one.publish({"verdict": "ok"})
    until(lambda: one.hear() == [] and one.problem)
    with pytest.raises(OSError, match=r"no server of ZooKeeper gave a session: 127\.0\.0\.1"):
        one.publish({"verdict": "ok"})
    one.close()


def test_a_child_that_dies_is_started_again(zookeeper, client, tmp_path, monkeypatch):
    monkeypatch.setattr(courier, "RESTART_S", 0.0)
    one = ZooKeeper(settings(zookeeper, tmp_path), lambda told: told)
    one.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path))
    os.kill(one.process, signal.SIGKILL)
    time.sleep(0.2)
    assert one.hear() == []
    put(one, verdict="degraded")
    until(lambda: found(client, tmp_path) == {"verdict": "degraded"})
    one.close()


def test_the_node_of_a_session_that_is_not_over_yet_is_taken_over(client, publisher, tmp_path):
    client.create(f"/{tmp_path.name}/verdicts/n1", b'{"verdict": "old"}', ephemeral=True)
    publisher.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path) == {"verdict": "ok"})
    assert client.exists(f"/{tmp_path.name}/verdicts/n1").ephemeralOwner != client.client_id[0]


# --- with a login of its own ---


@pytest.fixture
def reconciler(zookeeper: LocalZooKeeper) -> Iterator[KazooClient]:
    one = places.as_reconciler(zookeeper.address)
    yield one
    one.stop()
    one.close()


def credentials(base: Path, login: tuple[str, str], former: tuple[str, str] | None = None) -> str:
    told = {"user": login[0], "password": login[1]}
    if former:
        told.update(former_user=former[0], former_password=former[1])
    return str(places.private(base / "login", told))


@pytest.fixture
def own(zookeeper: LocalZooKeeper, reconciler: KazooClient, tmp_path: Path) -> Iterator[ZooKeeper]:
    """A publisher of the host n1 with its own login, and its node."""
    login = places.make(reconciler, f"/{tmp_path.name}", "n1")
    one = ZooKeeper(settings(zookeeper, tmp_path, credentials=credentials(tmp_path, login)), lambda told: told)
    yield one
    one.close()


def published(client: KazooClient, path: Path, place: str = "hosts/n1/verdict") -> Any:
    try:
        return json.loads(client.get(f"/{path.name}/{place}")[0])
    except NoNodeError:
        return None


def test_its_verdict_is_for_the_reconciler_alone_and_no_other_host_can_touch_it(reconciler, own, zookeeper, tmp_path):
    own.publish({"verdict": "fatal"})
    until(lambda: published(reconciler, tmp_path) == {"verdict": "fatal"})
    path = f"/{tmp_path.name}"
    places.make(reconciler, path, "n2")
    places.say(reconciler, path, "n1")
    for logins in ((), (places.login_of("n2"),)):
        other = places.connected(zookeeper.address, *logins)
        for name, *words in (
            ("get", f"{path}/hosts/n1/verdict"),
            ("set", f"{path}/hosts/n1/verdict", b"{}"),
            ("delete", f"{path}/hosts/n1/verdict"),
            ("create", f"{path}/hosts/n1/more", b"{}"),
            ("set", f"{path}/hosts/n1", b"{}"),
            ("set_acls", f"{path}/hosts/n1/verdict", [make_acl("world", "anyone", all=True)]),
            ("set_acls", f"{path}/hosts/n1", [make_acl("world", "anyone", all=True)]),
            ("create", f"{path}/hosts/n3", b"{}"),
            ("create", f"{path}/verdicts/n1", b"{}"),
            ("get", f"{path}/orders/n1"),
            ("set", f"{path}/orders/n1", b"{}"),
            ("delete", f"{path}/orders/n1"),
            ("create", f"{path}/orders/n3", b"{}"),
        ):
            with pytest.raises(NoAuthError):
                getattr(other, name)(*words)
        other.stop()
        other.close()
    assert published(reconciler, tmp_path) == {"verdict": "fatal"}


def test_what_somebody_takes_away_or_changes_is_put_there_again(reconciler, own, tmp_path):
    own.publish({"verdict": "fatal"})
    path = f"/{tmp_path.name}/hosts/n1/verdict"
    until(lambda: published(reconciler, tmp_path) == {"verdict": "fatal"})
    owner = reconciler.exists(path).ephemeralOwner
    host = places.connected(reconciler.hosts[0][0] + f":{reconciler.hosts[0][1]}", places.login_of("n1"))
    host.delete(path)
    until(lambda: published(reconciler, tmp_path) == {"verdict": "fatal"})
    host.set(path, b'{"verdict": "ok"}')
    until(lambda: published(reconciler, tmp_path) == {"verdict": "fatal"})
    # As something that would outlast the agent, too.
    reconciler.delete(path)
    with contextlib.suppress(NodeExistsError):
        host.create(path, b'{"verdict": "ok"}')
    until(lambda: published(reconciler, tmp_path) == {"verdict": "fatal"} and reconciler.exists(path).ephemeralOwner)
    assert reconciler.exists(path).ephemeralOwner == owner
    host.stop()
    host.close()


def test_until_the_reconciler_has_made_its_node_it_publishes_where_all_hosts_do(
    reconciler, zookeeper, tmp_path, monkeypatch
):
    monkeypatch.setattr(agent_zookeeper, "RETRY_AT_MOST_S", 0.3)
    path, shared = f"/{tmp_path.name}", ("agents", "hidden-2")
    reconciler.ensure_path(path)
    may = make_digest_acl(*shared, read=True, create=True, delete=True)
    reconciler.create(f"{path}/verdicts", acl=[*places.OURS, may])
    login = credentials(tmp_path, places.login_of("n1"), shared)
    one = ZooKeeper(settings(zookeeper, tmp_path, credentials=login), lambda told: told)
    one.publish({"verdict": "ok"})
    until(lambda: published(reconciler, tmp_path, "verdicts/n1") == {"verdict": "ok"})
    places.make(reconciler, path, "n1")
    until(lambda: published(reconciler, tmp_path) == {"verdict": "ok"})
    put(one, verdict="fatal")
    for place in ("hosts/n1/verdict", "verdicts/n1"):
        # A reconciler of before, which may lead again, knows the other place only.
        until(lambda place=place: published(reconciler, tmp_path, place) == {"verdict": "fatal"})
    # The login that hosts have shared is no more.
    reconciler.set_acls(f"{path}/verdicts", places.OURS)
    reconciler.delete(f"{path}/verdicts/n1")
    put(one, verdict="degraded")
    until(lambda: published(reconciler, tmp_path) == {"verdict": "degraded"})
    assert published(reconciler, tmp_path, "verdicts/n1") is None
    assert one.hear() == []
    assert one.problem is None
    one.close()


def test_orders_are_heard_whether_they_were_there_or_come_later(reconciler, own, tmp_path):
    path, heard = f"/{tmp_path.name}", []
    own.publish({"verdict": "ok"})
    until(lambda: published(reconciler, tmp_path))

    def hears(number: int) -> bool:
        heard.extend(own.hear())
        return len(heard) >= number

    orders = [{"id": str(number), "kind": "replace", "agent_id": "S0", "gpus": []} for number in range(3)]
    places.say(reconciler, path, "n1", order=orders[0])
    until(lambda: hears(1))
    places.say(reconciler, path, "n1", order=orders[1])
    until(lambda: hears(2))
    places.say(reconciler, path, "n1", order={**orders[2], "gpus": [{"a": 1}]})
    until(lambda: own.hear() == [] and "gpus[0] is an object, not a UUID" in (own.problem or ""))
    places.say(reconciler, path, "n1", order=orders[2])
    until(lambda: hears(3))
    assert [row["order"]["id"] for row in heard] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "acl",
    [
        [make_acl("world", "anyone", all=True)],
        [*places.OURS, make_digest_acl("n2", "hidden", write=True), make_acl("world", "anyone", read=True)],
        [make_digest_acl("n2", "hidden", all=True), make_acl("world", "anyone", read=True)],
    ],
)
def test_orders_that_somebody_else_could_write_are_not_heard_and_that_is_said(reconciler, own, tmp_path, acl):
    own.publish({"verdict": "ok"})
    until(lambda: published(reconciler, tmp_path))
    order = {"id": "1", "kind": "replace", "agent_id": "S0", "gpus": []}
    reconciler.create(f"/{tmp_path.name}/orders/n1", json.dumps({"order": order}).encode(), acl=acl)
    heard: list[Any] = []
    until(
        lambda: heard.extend(own.hear()) or "clients other than the reconciler can write there" in (own.problem or "")
    )
    assert heard == []


def test_without_a_login_nobody_gives_orders(client, publisher, tmp_path):
    order = {"id": "1", "kind": "replace", "agent_id": "S0", "gpus": []}
    client.create(f"/{tmp_path.name}/orders/n1", json.dumps({"order": order, "clear": {"id": "2"}}).encode())
    publisher.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path) == {"verdict": "ok"})
    client.set(f"/{tmp_path.name}/orders/n1", json.dumps({"order": {**order, "id": "3"}}).encode())
    publisher.publish({"verdict": "degraded"})
    until(lambda: found(client, tmp_path) == {"verdict": "degraded"})
    assert publisher.hear() == []


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [
        (0o644, '{"user": "a", "password": "hidden"}', "mode 0644"),
        (0o600, '{"user": "hidden"}', "not a JSON object with user and password"),
        (0o600, "hidden", "not a JSON object with user and password"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_without_showing_them(tmp_path, mode, text, words):
    file = tmp_path / "credentials"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(Failure, match=words) as refused:
        agent_zookeeper.secret(str(file))
    assert "hidden" not in str(refused.value)
