# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops reconcile`` as a process, with a real ZooKeeper and stand-ins of Mesos: what it does to a node's agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import settings as reconciler_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.settings import Settings
from tests.local_zookeeper import ROOT, LocalEnsemble, LocalZooKeeper, NotHere
from tests.unit.reconcile import places
from tests.unit.reconcile.site import ISOLATION, Site
from tests.unit.simulators.mesos_cluster import until

WAY = ["deactivate", "drain", "order", "settle", "close"]
Make = Callable[..., Site]


def task(site: Site, name: str, seconds: float, gpus: int = 1, task: str = "job") -> None:
    framework = site.cluster.framework("GPU_RESOURCES")
    site.cluster.launch(framework, site.cluster.slave(name)["id"], task, f"sleep {seconds}", gpus=gpus)


def test_a_fatal_gpu_goes_out_while_the_other_jobs_run_and_comes_back_when_it_is_mended(site: Make):
    one = site()
    node = one.node("n1", gpus=3)
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


def publishes(site: Site, name: str, data: bytes) -> KazooClient:
    """A host that publishes what it likes, as itself."""
    login = site.place(name)
    client = places.connected(site.zookeeper.address, login)
    acl = [make_digest_acl(*login, all=True), make_digest_acl(*places.LOGIN, read=True)]
    client.create(f"{site.path}/hosts/{name}/verdict", data, acl=acl, ephemeral=True)
    return client


def test_hosts_that_publish_nonsense_are_named_and_left_as_they_are_and_the_others_are_served(site: Make):
    one = site(policy={"silent": "deactivate", "suspect_s": 0})
    node = one.node("n1")
    whole = node.verdict()
    sick = {"uuid": "GPU-0", "index": 0, "pci_address": "0000:00:00.0", "verdict": "fatal", "reasons": []}
    nonsense = {
        "not-json": b"no JSON",
        "no-object": b"[]",
        "deep": b'{"schema": 1, "host": "deep", "x": ' + b"[" * 100000 + b"]" * 100000 + b"}",
        "large": b'{"schema": 1, "x": "' + b"x" * 700000 + b'"}',
        "newer": json.dumps({**whole, "host": "newer", "schema": 2}).encode(),
        "other": json.dumps(whole).encode(),
        "address": json.dumps({**whole, "host": "address", "devices": [{**sick, "pci_address": [1]}]}).encode(),
        "key": json.dumps({**whole, "host": "key", "devices": [{**sick, "uuid": {"a": 1}}]}).encode(),
        "nan": json.dumps({**whole, "host": "nan", "time": float("nan")}).encode(),
        "future": json.dumps({**whole, "host": "future", "time": time.time() + 86400, "devices": [sick]}).encode(),
    }
    others = [publishes(one, name, data) for name, data in nonsense.items()]
    for name in nonsense:
        one.cluster.agent(name, ISOLATION, "--resources=gpus:1", "--nvidia_gpu_devices=0", gpus="ok")
        one.cluster.registered(name)
    one.leading()
    node.fault(0)
    until(lambda: one.way("n1") == WAY)
    told = {row["host"]: row["why"] for row in one.entries("wait")}
    assert {name for name in nonsense if told[name].startswith("left as it is: its verdict is ignored: ")} == {
        *nonsense
    }
    assert "pci_address is a list, not a PCI address" in told["address"]
    assert "it belongs to n1" in told["other"]
    assert "in the future" in told["future"]
    assert {one.cluster.slave(name)["deactivated"] for name in nonsense} == {False}
    shown = one.command("reconcile", "--status")
    assert "deep is left as it is: its verdict is ignored: it is nested too deep" in shown.stdout
    for client in others:
        client.stop()
        client.close()


def test_a_journal_that_cannot_be_used_is_put_aside_and_holds_its_host_until_it_is_cleared(site: Make):
    one = site()
    bad = {
        "n1": b'{"memory": {"schema": 1, "host": "n1", "number": "many"}, "last": []}',
        "n2": b"\xff\xfe",
        "n3": b'{"memory": {"schema": 9, "new": true}, "last": []}',
        "n4": b'{"memory": ' + b"[" * 100000,
    }
    nodes = [one.node(name, gpus=2) for name in [*bad, "n5"]]
    for name, data in bad.items():
        one.client.create(f"{one.path}/journal/{name}", data, makepath=True)
    one.client.create(f"{one.path}/fleet", b'{"schema": 1, "fences": 3}')
    for node in nodes:
        node.fault(0)
    one.leading()
    until(lambda: one.way("n5") == WAY)
    assert {one.cluster.slave(name)["deactivated"] for name in bad} == {False}
    told = {row["host"]: row["why"] for row in one.entries("wait")}
    assert all(told[name].startswith(f"left as it is: {one.path}/journal/{name} cannot be used: ") for name in bad)
    kept = {
        name: one.client.get(f"{one.path}/aside/{name}")[0] for name in one.client.get_children(f"{one.path}/aside")
    }
    assert {*kept.values()} == {bad["n1"], bad["n2"], bad["n4"], b'{"schema": 1, "fences": 3}'}
    # What another version wrote is for that one.
    assert one.client.get(f"{one.path}/journal/n3")[0] == bad["n3"]
    assert "n1 is left as it is" in one.command("reconcile", "--status").stdout
    # The next one to lead does not take it for a new host.
    one.reconcilers[-1].kill()
    one.reconcilers[-1].wait(20)
    one.leading()
    nodes[-1].mend(0)
    until(lambda: one.way("n5")[len(WAY) :] == WAY)
    assert one.way("n1") == []
    assert one.command("clear", "n1").returncode == 0
    until(lambda: one.way("n1") == WAY)


def test_a_host_whose_agent_cannot_start_with_its_list_gets_another_one_once_no_job_of_it_lives(site: Make):
    one = site("--agent_ping_timeout=1secs", "--max_agent_ping_timeouts=1")
    node = one.node("n1", gpus=3)
    one.node("n2")
    one.leading()
    first = one.cluster.slave("n1")["id"]
    until(lambda: one.client.exists(f"{one.path}/journal/n1"))
    # As it is with a GPU that does not answer: the agent ends as soon as it starts, again and again.
    node.program.stop(signal.SIGKILL)
    until(lambda: node.state == "gone")
    node.unit, node.executors = "activating", 2
    node.fault(1)
    until(lambda: any("2 of its executors run" in row["why"] for row in one.entries("wait", "n1")))
    node.unit, node.executors = "inactive", 0
    node.publish()
    until(lambda: any("its unit was stopped by hand" in row["why"] for row in one.entries("wait", "n1")))
    assert one.way("n1") == []
    node.unit = "activating"
    node.publish()
    until(lambda: one.way("n1") == ["order", "settle", "close"])
    row = one.cluster.slave("n1")
    assert row["id"] != first
    assert (node.state, row["resources"]["gpus"]) == ("active", 2.0)
    assert node.listed == [node.uuids[0], node.uuids[2]]
    begun = one.entries("begin", "n1")[0]
    assert begun["why"] == f"fatal: {node.uuids[1]} (xid), without which the agent does not start"
    assert begun["order"]["agent_id"] == first


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
    told = [line for line in dry.stdout.splitlines() if line.startswith("n1: would")]
    assert told == [f"n1: would deactivate: fatal: {node.uuids[0]} (xid)"]
    assert not one.journal.exists()
    assert sorted(one.client.get_children(one.path)) == ["hosts", "orders", "verdicts"]
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
    node.fault(0)
    one.leading()
    assert one.command("clear", f"n1:{node.uuids[0]}").returncode == 0
    until(lambda: (json.loads(one.client.get(f"{one.path}/orders/n1")[0] or b"{}").get("clear") or {}).get("device"))
    assert json.loads(one.client.get(f"{one.path}/orders/n1")[0])["clear"]["device"] == node.uuids[0]
    until(lambda: one.client.get_children(f"{one.path}/requests") == [])
    wrong = one.command("clear", "n9")
    assert wrong.returncode == 64
    assert "n9 is not a known node" in wrong.stderr
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
    secret.write_text(json.dumps(dict.fromkeys(Settings.SECRETS, "hidden")))
    secret.chmod(0o640)
    assert "mode 0640" in run()
    secret.chmod(0o600)
    secret.write_text('{"mesos_secret": "hidden"')
    told = run()
    assert "not JSON" in told
    assert "hidden" not in told
    secret.write_text('{"mesos_secret": "hidden", "mesos_principal": "operator"}')
    told = run("--mode", "act")
    assert "there is no login for ZooKeeper" in told
    config.write_text(json.dumps({"zookeeper": "127.0.0.1:1", "masters": ["http://127.0.0.1:1"], "polls": 3}))
    assert "polls not known" in run()
    config.write_text(json.dumps({"zookeeper": "z:1", "masters": ["http://m:1"], "policy": {"breaker_share": 2}}))
    assert "breaker_share is 2" in run()
    assert "mode is 'maybe'" in run("--mode", "maybe")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can call it as somebody else")
@pytest.mark.parametrize("kept", [0o700, 0o755], ids=["closed directory", "open directory"])
def test_an_ordinary_administrator_is_told_to_use_sudo_and_not_to_take_the_secret(tmp_path, kept):
    directory = tmp_path / "etc"
    directory.mkdir()
    secret = directory / "credentials.json"
    secret.write_text("{}")
    secret.chmod(0o600)
    directory.chmod(kept)
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    number = os.fork()
    if number == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            reconciler_settings.private(str(secret))
        except reconciler_settings.Wrong as why:
            os._exit(10 if "sudo gpuops-reconciler" in str(why) and "chown" not in str(why) else 11)
        os._exit(12)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 10


def test_where_there_is_no_reconciler_the_command_names_the_host_to_call_it_on(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gpuops", "clear", "gpu1", "--config", str(tmp_path / "reconciler.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "call `sudo gpuops-reconciler` on a host of the group gpu_reconcilers" in done.stderr


def test_it_logs_in_to_both_and_tells_nobody_a_secret(site: Make, tmp_path):
    secrets = {"mesos_principal": "operator", "mesos_secret": "hidden-3"}
    login = {"zookeeper_user": places.LOGIN[0], "zookeeper_password": places.LOGIN[1]}
    places.private(tmp_path / "both", {**login, **secrets})
    masters = tmp_path / "credentials.json"
    masters.write_text('{"credentials": [{"principal": "operator", "secret": "hidden-3"}]}')
    flags = ("--authenticate_http_readwrite=true", f"--credentials={masters}")
    one = site(*flags, credentials=str(tmp_path / "both"))
    node = one.node("n1")
    reconciler = one.leading()
    node.fault(0)
    until(lambda: one.way("n1") == WAY)
    anyone = places.connected(one.zookeeper.address)
    for path in ("", "/journal", "/journal/n1", "/orders/n1", "/hosts/n1/verdict", "/fleet"):
        with pytest.raises(NoAuthError):
            anyone.get(f"{one.path}{path}")
        with pytest.raises(NoAuthError):
            anyone.create(f"{one.path}{path}/x")
    anyone.stop()
    anyone.close()
    shown = Path(f"/proc/{reconciler.pid}/cmdline").read_bytes().decode() + one.journal.read_text()
    shown += (one.base / "reconciler.log").read_text()
    assert "hidden" not in shown


def test_whoever_comes_with_other_secrets_is_told_which_file_to_put_back(site: Make, tmp_path):
    login = {"zookeeper_user": places.LOGIN[0], "zookeeper_password": places.LOGIN[1]}
    places.private(tmp_path / "login", login)
    one = site(credentials=str(tmp_path / "login"))
    one.leading()
    places.private(tmp_path / "login", {**login, "zookeeper_password": "another"})
    for words in (("reconcile", "--status"), ("clear", "--breaker")):
        refused = one.command(*words)
        assert refused.returncode == 1
        assert f"refuses {tmp_path}/login at {one.path}" in refused.stderr
        assert "gpu_reconciler_secrets_path" in refused.stderr


@pytest.mark.slow
def test_the_leader_of_zookeeper_may_be_killed_while_a_node_is_on_its_way(tmp_path):
    try:
        ensemble = LocalEnsemble(tmp_path / "zookeeper")
    except NotHere as why:
        pytest.skip(str(why))
    (tmp_path / "site").mkdir()
    one = Site(tmp_path / "site", ensemble, session_s=6)
    try:
        node = one.node("n1", gpus=3)
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
