# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's publisher with a real ZooKeeper: what others find there, and what happens when one of the two goes."""

from __future__ import annotations

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
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import make_acl, make_digest_acl

from ansible_collections.baremetal.gpu.plugins.module_utils import agent_zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.agent_zookeeper import Settings, ZooKeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper_client import Failure
from tests.local_zookeeper import ROOT, LocalZooKeeper, free_port
from tests.unit.simulators.mesos_cluster import until

AGENT = """
import sys, time
from ansible_collections.baremetal.gpu.plugins.module_utils.agent_zookeeper import Settings, ZooKeeper
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
    monkeypatch.setattr(agent_zookeeper, "RESTART_S", 0.0)
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


def test_orders_are_heard_whether_they_were_there_or_come_later(client, publisher, tmp_path):
    publisher.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path))
    heard: list[Any] = []

    def hears(number: int) -> bool:
        heard.extend(publisher.hear())
        return len(heard) >= number

    client.create(f"/{tmp_path.name}/orders/n1", b'{"order": {"id": "1"}, "clear": null}')
    until(lambda: hears(1))
    client.set(f"/{tmp_path.name}/orders/n1", b'{"order": {"id": "2"}, "clear": null}')
    until(lambda: hears(2))
    assert [row["order"]["id"] for row in heard] == ["1", "2"]


def test_it_logs_in_and_only_it_may_change_its_verdict(zookeeper, client, tmp_path):
    file = tmp_path / "credentials"
    file.write_text('{"user": "agents", "password": "hidden"}')
    file.chmod(0o600)
    acl = [make_digest_acl("agents", "hidden", all=True), make_acl("world", "anyone", read=True)]
    client.set_acls(f"/{tmp_path.name}/verdicts", acl)
    one = ZooKeeper(settings(zookeeper, tmp_path, credentials=str(file)), lambda told: told)
    one.publish({"verdict": "ok"})
    until(lambda: found(client, tmp_path))
    with pytest.raises(NoAuthError):
        client.set(f"/{tmp_path.name}/verdicts/n1", b"{}")
    one.close()


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
