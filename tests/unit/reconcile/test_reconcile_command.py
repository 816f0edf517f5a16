# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops reconcile`` as a process, with a real ZooKeeper and stand-ins of Mesos: what it does to a node's agent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ansible_collections.baremetal.gpu.plugins.module_utils import agent_zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler_settings import SECRETS
from tests.local_zookeeper import ROOT, LocalEnsemble, LocalZooKeeper, NotHere
from tests.unit.reconcile.site import ISOLATION, Site
from tests.unit.simulators.mesos_cluster import until

WAY = ["deactivate", "drain", "order", "settle", "close"]
Make = Callable[..., Site]


def task(site: Site, name: str, seconds: float, gpus: int = 1, task: str = "job") -> None:
    framework = site.cluster.framework("GPU_RESOURCES")
    site.cluster.launch(framework, site.cluster.slave(name)["id"], task, f"sleep {seconds}", gpus=gpus)


def test_a_fatal_card_goes_out_while_the_other_jobs_run_and_comes_back_when_it_is_mended(site: Make):
    one = site()
    node = one.node("n1", cards=3)
    one.leading()
    task(one, "n1", 4)
    first = one.cluster.slave("n1")["id"]
    node.fault(1)
    until(lambda: node.state == "deactivated")
    assert one.cluster.task("job")["state"] == "TASK_RUNNING"
    until(lambda: one.way("n1") == WAY)
    assert one.cluster.task("job")["state"] == "TASK_FINISHED"
    row = one.cluster.slave("n1")
    assert row["id"] != first
    assert (node.state, row["resources"]["gpus"]) == ("active", 2.0)
    node.mend(1)
    until(lambda: one.way("n1") == WAY * 2)
    assert one.cluster.slave("n1")["resources"]["gpus"] == 3.0
    begun = one.entries("begin", "n1")[0]
    assert begun["why"] == f"fatal: {node.uuids[1]} (xid)"
    assert begun["evidence"]["fatal"] == {node.uuids[1]: ["xid"]}


@pytest.mark.parametrize("point", ["before", pytest.param("after", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", WAY)
def test_killed_at_a_step_the_next_one_goes_on(site: Make, kind: str, point: str):
    one = site()
    node = one.node("n1")
    node.fault(0)
    killed = one.reconciler(program=[sys.executable, "-m", "tests.unit.reconcile.killed", kind, point])
    assert killed.wait(60) == -signal.SIGKILL
    assert one.way("n1")[-1] == kind
    one.reconciler()
    until(lambda: one.entries("end", "n1") and one.entries("end", "n1")[-1]["kind"] == "close")
    assert node.state == "active"
    assert one.cluster.slave("n1")["resources"]["gpus"] == 1.0
    assert node.listed == [node.uuids[1]]


def test_another_one_takes_over_when_the_leader_is_killed(site: Make):
    one = site()
    node = one.node("n1")
    task(one, "n1", 60)
    first = one.leading()
    second = one.reconciler()
    node.fault(0)
    until(lambda: node.state == "deactivated")
    first.kill()
    first.wait(20)
    until(lambda: len(one.entries("lead")) == 2)
    node.mend(0)
    until(lambda: node.state == "active")
    assert one.way("n1") == ["deactivate", "reactivate"]
    assert second.poll() is None


def test_sigterm_gives_the_lead_back_at_once(site: Make):
    one = site(session_s=60)
    first = one.leading()
    one.reconciler()
    first.terminate()
    assert first.wait(20) == 0
    # The session of the first one would last for a minute.
    until(lambda: len(one.entries("lead")) == 2, 20)


def test_one_that_waits_to_lead_stops_at_once_too(site: Make):
    one = site(session_s=60)
    one.leading()
    second = one.reconciler()
    until(lambda: len(one.client.get_children(f"{one.path}/election")) == 2)
    second.terminate()
    assert second.wait(20) == 0


def test_a_drain_by_others_is_left_alone(site: Make):
    one = site()
    node = one.node("n1")
    one.leading()
    agent = {"value": one.cluster.slave("n1")["id"]}
    body = {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": agent, "max_grace_period": {"seconds": 5}}}
    one.cluster.ask("/api/v1", body)
    until(lambda: node.state == "drained")
    node.fault(0)
    until(lambda: one.entries("wait", "n1"))
    node.mend(0)
    node.fault(1)
    time.sleep(1)
    assert one.way("n1") == []
    assert node.state == "drained"
    assert one.cluster.slave("n1")["id"] == agent["value"]


def test_the_breaker_holds_when_most_nodes_fail_and_an_operator_lets_go(site: Make):
    one = site()
    nodes = [one.node(f"n{number}") for number in range(5)]
    # A leader finds them all at once. Of one that leads already, the first could be taken out before the others fail.
    for node in nodes[:3]:
        node.fault(0)
    one.leading()
    until(lambda: one.entries("breaker"))
    time.sleep(1)
    assert {node.state for node in nodes} == {"active"}
    assert [row["why"].split(": ")[0] for row in one.entries("wait")] == ["deactivate is held back"] * 3
    done = one.command("clear", "--breaker")
    assert done.returncode == 0, done.stderr
    until(lambda: all(one.way(node.name) == WAY for node in nodes[:3]))


def test_a_node_that_loses_its_session_is_suspected_and_not_taken_out(site: Make):
    one = site()
    node = one.node("n1")
    one.leading()
    until(lambda: one.client.exists(f"{one.path}/journal/n1"))
    node.client.stop()
    until(lambda: any("suspected" in row["why"] for row in one.entries("wait", "n1")))
    assert node.state == "active"
    assert one.way("n1") == []


def test_a_node_that_publishes_nonsense_keeps_nobody_else_waiting(site: Make):
    one = site()
    node = one.node("n1")
    for number, text in enumerate(
        (b"no JSON", b"[]", b'{"schema": 2}', b'{"schema": 1, "devices": [3], "reasons": []}')
    ):
        one.client.create(f"{one.path}/verdicts/bad{number}", text)
    one.leading()
    node.fault(0)
    until(lambda: one.way("n1") == WAY)
    told = {row["host"] for row in one.entries("wait") if "it is passed over" in row["why"]}
    assert told == {"bad2's verdict", "bad3's verdict"}


def test_zookeeper_and_the_master_may_go_and_come_back(site: Make, zookeeper: LocalZooKeeper):
    one = site()
    node = one.node("n1")
    one.leading()
    zookeeper.stop(signal.SIGKILL)
    time.sleep(0.5)
    zookeeper.start()
    until(lambda: one.client.connected)
    one.cluster.master.stop(signal.SIGKILL)
    until(lambda: any("no master leads" in row["why"] for row in one.entries("problem")))
    # It is tried many times more, and told once: a long outage must not push what was done out of the journal.
    time.sleep(1.5)
    why = [row["why"] for row in one.entries("problem")]
    assert len(why) == len(set(why))
    one.cluster.start_master()
    until(lambda: node.state == "active")
    node.publish()
    node.fault(0)
    until(lambda: one.way("n1")[-5:] == WAY)
    assert node.state == "active"


def test_a_dry_run_and_a_record_change_nothing_and_say_what_they_would_do(site: Make):
    one = site()
    node = one.node("n1")
    node.fault(0)
    before = json.dumps(one.cluster.slave("n1"), sort_keys=True)
    dry = one.command("reconcile", "--once", "--mode", "dry-run")
    assert dry.returncode == 0, dry.stderr
    told = [json.loads(line) for line in dry.stdout.splitlines()]
    assert [row["why"] for row in told if row["what"] == "would"] == [f"would deactivate: fatal: {node.uuids[0]} (xid)"]
    assert not one.journal.exists()
    assert sorted(one.client.get_children(one.path)) == ["orders", "verdicts"]
    record = one.command("reconcile", "--once", "--mode", "record")
    assert record.returncode == 0, record.stderr
    assert [row["what"] for row in one.entries(host="n1")] == ["would"]
    assert json.dumps(one.cluster.slave("n1"), sort_keys=True) == before


def test_once_goes_as_far_as_it_can_and_the_status_tells_where_that_is(site: Make):
    one = site()
    node = one.node("n1")
    task(one, "n1", 60)
    node.fault(0)
    assert one.command("reconcile", "--once").returncode == 0
    assert node.state == "deactivated"
    shown = one.command("reconcile", "--status")
    assert shown.returncode == 0, shown.stderr
    line = next(text for text in shown.stdout.splitlines() if text.startswith("n1"))
    assert line.split()[:4] == ["n1", "fatal", "2", "deactivated"]
    assert "Nobody leads." in shown.stdout
    found = json.loads(one.command("reconcile", "--status", "--json").stdout)
    assert found["nodes"]["n1"]["memory"]["fenced"]["why"] == f"fatal: {node.uuids[0]} (xid)"


def test_what_an_operator_clears_reaches_the_node_and_what_is_unknown_is_refused(site: Make):
    one = site()
    node = one.node("n1")
    one.leading()
    assert one.command("clear", f"n1:{node.uuids[0]}").returncode == 0
    until(lambda: (json.loads(one.client.get(f"{one.path}/orders/n1")[0] or b"{}").get("clear") or {}).get("device"))
    assert json.loads(one.client.get(f"{one.path}/orders/n1")[0])["clear"]["device"] == node.uuids[0]
    until(lambda: one.client.get_children(f"{one.path}/requests") == [])
    wrong = one.command("clear", "n9")
    assert wrong.returncode == 64
    assert "n9 is no node that was ever heard of" in wrong.stderr
    assert one.command("clear").returncode == 64


def test_settings_that_cannot_be_used_are_refused_with_the_remedy(tmp_path):
    config, secret = tmp_path / "reconciler.json", tmp_path / "secret"
    config.write_text(
        json.dumps({"zookeeper": "127.0.0.1:1", "masters": ["http://127.0.0.1:1"], "credentials": str(secret)})
    )

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", "reconcile", "--config", str(config), *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 64
        return done.stderr

    assert "cannot be read" in run()
    secret.write_text(json.dumps(dict.fromkeys(SECRETS, "hidden")))
    secret.chmod(0o640)
    assert "mode 0640" in run()
    secret.chmod(0o600)
    secret.write_text('{"mesos_secret": "hidden"')
    told = run()
    assert "not JSON" in told
    assert "hidden" not in told
    config.write_text(json.dumps({"zookeeper": "127.0.0.1:1", "masters": ["http://127.0.0.1:1"], "polls": 3}))
    assert "polls not known" in run()
    config.write_text(json.dumps({"zookeeper": "z:1", "masters": ["http://m:1"], "policy": {"breaker_share": 2}}))
    assert "breaker_share is 2" in run()
    assert "mode is 'maybe'" in run("--mode", "maybe")


def test_it_logs_in_to_both_and_agents_may_do_no_more_than_they_need(site: Make, tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(
        json.dumps(
            {
                "zookeeper_user": "reconciler",
                "zookeeper_password": "hidden-1",
                "zookeeper_agents_user": "agents",
                "zookeeper_agents_password": "hidden-2",
                "mesos_principal": "operator",
                "mesos_secret": "hidden-3",
            }
        )
    )
    masters = tmp_path / "credentials.json"
    masters.write_text('{"credentials": [{"principal": "operator", "secret": "hidden-3"}]}')
    one = site("--authenticate_http_readwrite=true", f"--credentials={masters}", credentials=str(secret))
    one.client.delete(f"{one.path}/verdicts")
    one.client.delete(one.path)
    reconciler = one.leading()
    login = tmp_path / "agents.json"
    login.touch(0o600)
    login.write_text('{"user": "agents", "password": "hidden-2"}')
    one.cluster.agent("n1", ISOLATION, "--resources=gpus:1", "--nvidia_gpu_devices=0", gpus="ok")
    one.cluster.registered("n1")
    where = agent_zookeeper.Settings([one.zookeeper.address], "n1", one.path, str(login))
    publisher = agent_zookeeper.ZooKeeper(where, lambda told: told)
    sick = {"uuid": "GPU-0", "index": 0, "pci_address": "0", "verdict": "fatal", "reasons": []}
    told = {"schema": 1, "verdict": "fatal", "reasons": [], "devices": [sick], "listed": ["GPU-0"], "order": None}
    publisher.publish(told)
    until(lambda: one.cluster.slave("n1")["deactivated"])
    anyone, agent = KazooClient(one.zookeeper.address), KazooClient(one.zookeeper.address)
    anyone.start()
    agent.start()
    agent.add_auth("digest", "agents:hidden-2")
    for client, path in ((anyone, "verdicts"), (anyone, "requests"), (agent, "requests"), (agent, "orders")):
        with pytest.raises(NoAuthError):
            client.create(f"{one.path}/{path}/n2", b"{}")
    for client in (anyone, agent):
        with pytest.raises(NoAuthError):
            client.get(f"{one.path}/journal/n1")
        client.stop()
        client.close()
    publisher.close()
    shown = Path(f"/proc/{reconciler.pid}/cmdline").read_bytes().decode() + one.journal.read_text()
    shown += (one.base / "reconciler.log").read_text()
    assert "hidden" not in shown


@pytest.mark.slow
def test_the_leader_of_zookeeper_may_be_killed_while_a_node_is_on_its_way(tmp_path):
    try:
        ensemble = LocalEnsemble(tmp_path / "zookeeper")
    except NotHere as why:
        pytest.skip(str(why))
    (tmp_path / "site").mkdir()
    one = Site(tmp_path / "site", ensemble, session_s=6)
    try:
        node = one.node("n1", cards=3)
        one.leading()
        one.reconciler()
        task(one, "n1", 600)
        node.fault(0)
        until(lambda: node.state == "deactivated")
        ensemble.leader().stop(signal.SIGKILL)
        one.cluster.ask("/stand-in/kill", {"task_id": "job"})

        def ended() -> list[str]:
            return [row["kind"] for row in one.entries("end", "n1") if row["result"] == "done"]

        until(lambda: ended()[-1:] == ["close"], 120)
        assert node.state == "active"
        assert one.cluster.slave("n1")["resources"]["gpus"] == 2.0
        assert list(dict.fromkeys(ended())) == WAY
    finally:
        one.stop()
        ensemble.stop()
