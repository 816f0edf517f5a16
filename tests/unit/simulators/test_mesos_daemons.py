# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three masters, agents and Marathon as daemons over a real ZooKeeper: elected, killed, drained, refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.local_zookeeper import NotHere, classpath
from tests.unit.simulators.mesos_cluster import until
from tests.unit.simulators.mesos_daemons import PRINCIPALS, Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def java():
    try:
        classpath()
    except NotHere as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def site(java, tmp_path_factory):
    """Masters, an agent without and one with two GPUs, and Marathon."""
    one = Site(tmp_path_factory.mktemp("site"))
    try:
        # Who comes first makes the path, and says who may write there.
        until(one.leader)
        one.agent("cpu1")
        one.agent("gpu1", gpus=2, ATTRIBUTES="gpu_model:A100;rack:r1")
        one.marathon()
        until(lambda: one.slave("cpu1") and one.slave("gpu1"))
        until(lambda: one.state()["frameworks"])
        yield one
    finally:
        one.stop()


@pytest.fixture
def marathon(site):
    """Marathon without an app."""
    one = site.marathons[0]
    yield one
    for app in one.ask("/v2/apps")[1]["apps"]:
        one.ask(f"/v2/apps{app['id']}", method="DELETE")
    site.settle(one)


def app(name, **fields):
    return {"id": f"/{name}", "cmd": "sleep 1000", "cpus": 0.5, "mem": 32, **fields}


def zookeeper(site):
    client = KazooClient(site.zookeeper.address)
    client.start()
    return client


def test_one_leads_and_the_others_point_to_it(site):
    leader = until(site.leader)
    answers = [one.ask("/state") for one in site.masters if one is not leader]
    assert [(code, headers["Location"]) for code, _, headers in answers] == [
        (307, f"//127.0.0.1:{leader.port}/master/state")
    ] * 2
    assert sum(one.metric("master/elected") for one in site.masters) == 1
    assert {one.metric("registrar/log/ensemble_size") for one in site.masters} == {3}
    # The password in it is for nobody.
    assert leader.ask("/flags")[1]["flags"]["zk"] == str(site.zk)
    client = zookeeper(site)
    nodes = sorted(name for name in client.get_children("/mesos") if name != "log_replicas")
    assert all(re.fullmatch(r"json\.info_\d{10}", name) for name in nodes)
    assert len(nodes) == len(client.get_children("/mesos/log_replicas")) == 3
    told = json.loads(client.get(f"/mesos/{nodes[0]}")[0])
    assert (told["address"]["port"], told["ip"], told["pid"]) == (
        leader.port,
        16777343,
        f"master@127.0.0.1:{leader.port}",
    )
    # Everybody may read, nobody but its owner may write, and Marathon's is its own.
    assert {(acl.id.scheme, acl.perms) for acl in client.get_acls("/mesos")[0]} == {("world", 1), ("digest", 31)}
    with pytest.raises(NoAuthError):
        client.get_children("/marathon")
    client.stop()


def test_an_app_goes_where_its_constraints_say(site, marathon):
    tasks = site.deploy(
        marathon,
        app(
            "spread",
            instances=2,
            gpus=0,
            constraints=[["@hostname", "UNIQUE"]],
            labels={"GPU_SCHEDULING_BEHAVIOR": "unrestricted"},
        ),
    )
    assert sorted(task["host"] for task in tasks) == ["cpu1", "gpu1"]
    tasks = site.deploy(marathon, app("rack", gpus=1, constraints=[["rack", "IS", "r1"]]))
    assert [task["host"] for task in tasks] == ["gpu1"]
    marathon.ask("/v2/apps", app("nowhere", constraints=[["rack", "LIKE", "r[2-9]"]]))
    until(lambda: reasons(marathon, "/nowhere").get("UnfulfilledConstraint"))
    assert site.tasks(marathon, "/nowhere") == []


def reasons(marathon, app_id):
    rows = [row for row in marathon.ask("/v2/queue")[1]["queue"] if row["app"]["id"] == app_id]
    steps = [step for row in rows for step in row["processedOffersSummary"]["rejectSummaryLastOffers"]]
    return {step["reason"]: step["declined"] for step in steps if step["declined"]}


def test_gpus_are_given_to_who_asks_for_them_and_only_once(site, marathon):
    tasks = site.deploy(marathon, app("train", gpus=1, instances=2, cmd="echo GPUs $STAND_IN_GPU_INDICES; sleep 1000"))
    assert [task["host"] for task in tasks] == ["gpu1", "gpu1"]
    logs = [next(site.base.glob(f"gpu1/slaves/*/{task['id']}/stdout")) for task in tasks]
    assert sorted(until(log.read_text) for log in logs) == ["GPUs 0\n", "GPUs 1\n"]
    marathon.ask("/v2/apps", app("more", gpus=1))
    until(lambda: reasons(marathon, "/more").get("InsufficientGpus") == 2)
    # Nothing of the agent with GPUs is left for who needs none, as long as it has one to give.
    marathon.ask("/v2/apps/train?force=true", {"instances": 1}, "PUT")
    until(lambda: site.tasks(marathon, "/more"))
    assert site.slave("gpu1")["used_resources"]["gpus"] == 2


def execute(site, *more, secret=PRINCIPALS["marathon"]):
    file = site.file("execute.secret", secret)
    known = [f"--master=file://{site.zk}", "--name=once", "--principal=marathon", f"--secret=file://{file}"]
    return subprocess.run(
        [site.base / "mesos/bin/mesos-execute", *known, *more], capture_output=True, text=True, timeout=120
    )


def test_one_command_runs_to_its_end_without_marathon(site):
    gpus = ["--framework_capabilities=GPU_RESOURCES", "--resources=cpus:0.1;mem:32;gpus:2"]
    done = execute(site, "--command=test $STAND_IN_GPU_INDICES = 0,1", *gpus)
    assert (done.returncode, "TASK_FINISHED for task 'once'" in done.stdout) == (0, True), done
    done = execute(site, "--command=exit 4")
    assert (done.returncode, "TASK_FAILED for task 'once'" in done.stdout) == (1, True), done
    done = execute(site, "--command=true", secret="guessed")
    assert (done.returncode, "not authenticated" in done.stderr) == (1, True), done
    # Nothing is left of them.
    until(lambda: [row["name"] for row in site.state()["frameworks"]] == ["marathon"])


def test_who_needs_no_gpus_stays_off_the_agents_that_have_some(site, marathon):
    tasks = site.deploy(marathon, app("web", instances=3))
    assert {task["host"] for task in tasks} == {"cpu1"}
    marathon.ask("/v2/apps", app("wide", cpus=4))
    until(lambda: reasons(marathon, "/wide") == {"InsufficientCpus": 1, "DeclinedScarceResources": 1})


def test_a_drain_moves_the_tasks_and_holds_until_it_is_lifted(site, marathon):
    free = {"GPU_SCHEDULING_BEHAVIOR": "unrestricted"}
    site.deploy(marathon, app("here", constraints=[["@hostname", "IS", "gpu1"]], labels=free))
    agent_id = site.slave("gpu1")["id"]
    assert site.operate("DRAIN_AGENT", agent_id, max_grace_period={"seconds": 5}) == 200
    until(lambda: shown(site, agent_id).get("drain_info", {}).get("state") == "DRAINED")
    until(lambda: site.tasks(marathon, "/here") == [])
    assert (shown(site, agent_id)["active"], shown(site, agent_id)["deactivated"]) == (False, True)
    until(lambda: any(row["count"] == 1 for row in marathon.ask("/v2/queue")[1]["queue"]))
    # The leader after this one knows of the drain.
    until(site.leader).stop()
    until(lambda: shown(site, agent_id).get("drain_info", {}).get("state") == "DRAINED")
    revive(site)
    assert site.operate("REACTIVATE_AGENT", agent_id) == 200
    until(lambda: [task["host"] for task in site.tasks(marathon, "/here")] == ["gpu1"])


def shown(site, agent_id):
    return next((row for row in site.state()["slaves"] if row["id"] == agent_id), {})


def revive(site):
    for one in site.masters:
        if one.process.poll() is not None:
            one.start()
    until(lambda: all(one.ask("/version")[0] == 200 for one in site.masters))


def test_the_leader_is_killed_and_agents_and_tasks_stay_who_they_are(site, marathon):
    tasks = site.deploy(marathon, app("stays", instances=2))
    before = {row["hostname"]: row["id"] for row in site.state()["slaves"]}
    pids, framework = site.pids(), site.state()["frameworks"][0]["id"]
    old = until(site.leader)
    old.stop(signal.SIGKILL)
    until(lambda: {row["hostname"]: row["id"] for row in site.state()["slaves"]} == before)
    until(lambda: [row["id"] for row in site.state()["frameworks"] if row["connected"]] == [framework])
    assert site.leader() is not old
    assert site.pids() == pids
    assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
    more = site.deploy(marathon, app("after"))
    assert [task["id"] for task in site.tasks(marathon, "/stays")] == [task["id"] for task in tasks]
    assert more[0]["state"] == "TASK_RUNNING"
    revive(site)
    assert site.leader() is not old


def test_marathon_comes_back_with_its_apps_and_another_takes_over(site, marathon):
    tasks = site.deploy(marathon, app("kept", instances=2, env={"A": "b"}))
    before = marathon.ask("/v2/apps/kept")[1]["app"]
    marathon.stop(signal.SIGKILL)
    marathon.start()
    until(lambda: marathon.ask("/v2/apps/kept")[0] == 200)
    now = marathon.ask("/v2/apps/kept")[1]["app"]
    assert {key: now[key] for key in ("version", "env", "instances")} == {
        key: before[key] for key in ("version", "env", "instances")
    }
    assert [task["id"] for task in now["tasks"]] == [task["id"] for task in tasks]
    second = site.marathon()
    until(lambda: second.ask("/v2/leader")[1] == {"leader": f"127.0.0.1:{marathon.port}"})
    code, told, headers = second.ask("/v2/apps/kept")
    assert (code, told["app"]["version"], headers["X-Marathon-Via"]) == (
        200,
        before["version"],
        f"1.1 127.0.0.1:{second.port}",
    )
    marathon.stop(signal.SIGKILL)
    until(lambda: second.ask("/v2/leader")[1] == {"leader": f"127.0.0.1:{second.port}"})
    assert site.deploy(second, app("new"))[0]["host"] == "cpu1"
    assert [task["id"] for task in site.tasks(second, "/kept")] == [task["id"] for task in tasks]
    marathon.start()
    second.stop()
    until(lambda: marathon.ask("/v2/leader")[1] == {"leader": f"127.0.0.1:{marathon.port}"})
    until(lambda: marathon.ask("/v2/apps/new")[0] == 200)
    site.marathons.remove(second)


def test_an_agent_that_was_away_finds_its_tasks_and_hears_how_others_ended(site, marathon):
    site.deploy(marathon, app("long"))
    stop = site.base / "end-now"
    site.deploy(marathon, app("short", cmd=f"while ! test -e {stop}; do sleep 0.1; done; exit 3", backoffSeconds=3600))
    agent, pids = site.agents["cpu1"], site.pids()
    agent.stop(signal.SIGKILL)
    stop.touch()
    short = next(pid for name, pid in pids.items() if name.startswith("short"))
    until(lambda: not Path(f"/proc/{short}").exists() or "Z" in Path(f"/proc/{short}/stat").read_text().split())
    agent.start()
    failed = until(lambda: marathon.ask("/v2/apps/short")[1]["app"].get("lastTaskFailure"))
    assert (failed["state"], failed["message"]) == ("TASK_FAILED", "Command exited with status 3")
    until(lambda: site.slave("cpu1"))
    name, pid = next((name, pid) for name, pid in pids.items() if name.startswith("long"))
    assert site.pids()[name] == pid


def test_health_checks_decide_when_a_deployment_is_over(site, marathon):
    fast = {"gracePeriodSeconds": 30, "intervalSeconds": 1, "timeoutSeconds": 5, "delaySeconds": 0}
    serve = "exec python3 -m http.server $PORT0 --bind 127.0.0.1"
    tasks = site.deploy(
        marathon, app("http", cmd=serve, healthChecks=[{"protocol": "HTTP", "path": "/", "portIndex": 0, **fast}])
    )
    assert [row["alive"] for row in tasks[0]["healthCheckResults"]] == [True]
    well = site.base / "well"
    check = {"protocol": "COMMAND", "command": {"value": f"test -e {well}"}, **fast}
    marathon.ask("/v2/apps", app("command", healthChecks=[check]))
    until(lambda: [task["state"] for task in site.tasks(marathon, "/command")] == ["TASK_RUNNING"])
    assert [row["affectedApps"] for row in marathon.ask("/v2/deployments")[1]] == [["/command"]]
    well.touch()
    site.settle(marathon)
    assert marathon.ask("/v2/apps/command")[1]["app"]["tasksHealthy"] == 1


def test_a_new_version_takes_the_place_of_the_old_one_without_a_gap(site, marathon):
    old = site.deploy(marathon, app("roll", instances=2))
    marathon.ask("/v2/apps/roll", {"env": {"V": "2"}}, "PUT")
    seen = set()

    def over():
        seen.add(sum(task["state"] == "TASK_RUNNING" for task in site.tasks(marathon, "/roll")))
        return marathon.ask("/v2/deployments")[1] == []

    until(over)
    new = site.tasks(marathon, "/roll")
    assert min(seen) >= 2
    assert len(new) == 2
    assert not {task["id"] for task in new} & {task["id"] for task in old}


def test_secrets_that_are_wrong_or_missing_are_refused(site, marathon):
    status, told = site.agent("stranger", secret="guessed").ended()
    assert (status, "refused authentication" in told) == (1, True)
    status, told = site.marathon(secret="guessed", ZK=f"zk://{site.zookeeper.address}/other").ended()
    assert (status, "not authenticated" in told) == (106, True)
    # The whole file counts, a newline at its end included.
    other = site.marathon(secret=PRINCIPALS["marathon"] + "\n", ZK=f"zk://{site.zookeeper.address}/third")
    assert other.ended()[0] == 106
    leader = until(site.leader)
    drain = {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": {"value": site.slave("gpu1")["id"]}}}
    assert leader.ask("/api/v1", drain)[0] == 401
    assert "stranger" not in {row["hostname"] for row in site.state()["slaves"]}
    site.file("zk-wrong", f"zk://mesos:guessed@{site.zookeeper.address}/mesos")
    status, told = site.master(9, ZK=f"file://{site.base}/zk-wrong").ended()
    assert (status, "not authenticated" in told) == (1, True)
    del site.agents["stranger"]
    site.marathons[1:] = []


def test_a_changed_agent_is_refused_as_a_daemon_too(site):
    agent = site.agents["cpu1"]
    agent.stop()
    for policy, words in (("equal", "Incompatible agent info detected."), ("additive", "decreased from 4 to 1")):
        other = site.agent(
            "again",
            HOSTNAME="cpu1",
            WORK_DIR=agent.variables["MESOS_WORK_DIR"],
            PORT=str(agent.port),
            RESOURCES=agent.variables["MESOS_RESOURCES"].replace("cpus:4", "cpus:1"),
            RECONFIGURATION_POLICY=policy,
        )
        status, told = other.ended()
        assert (status, words in told) == (1, True)
    del site.agents["again"]
    agent.start()
    until(lambda: site.slave("cpu1"))


def test_who_loses_zookeeper_while_leading_ends(site, marathon):
    old = until(site.leader)
    site.zookeeper.stop()
    status, told = old.ended()
    assert (status, "Lost leadership... committing suicide!" in told) == (1, True)
    assert marathon.ended()[0] == 103
    others = [one for one in site.masters if one is not old]
    assert [one.ask("/state")[0] for one in others] in ([503, 503], [307, 307], [503, 307], [307, 503])
    until(lambda: {one.ask("/state")[0] for one in others} == {503})
    site.zookeeper.start()
    old.start()
    marathon.start()
    until(lambda: site.slave("cpu1") and site.slave("gpu1"))
    until(lambda: marathon.ask("/v2/apps")[0] == 200)


def test_an_agent_that_is_gone_for_long_is_unreachable_and_its_tasks_run_elsewhere(java, tmp_path):
    pings = {"AGENT_PING_TIMEOUT": "1secs", "MAX_AGENT_PING_TIMEOUTS": "3"}
    one = Site(tmp_path, masters=1, QUORUM="1", **pings)
    try:
        until(one.leader)
        agents = {name: one.agent(name) for name in ("a", "b")}
        marathon = one.marathon()
        until(lambda: one.state()["frameworks"] and one.slave("a") and one.slave("b"))
        (task,) = one.deploy(marathon, app("job"))
        host = task["host"]
        other = "b" if host == "a" else "a"
        (pid,) = one.pids().values()
        agents[host].stop()
        until(lambda: one.state()["unreachable_slaves"] == 1)
        until(lambda: [task["host"] for task in one.tasks(marathon, "/job")] == [other])
        assert Path(f"/proc/{pid}").exists()
        # It comes back as who it was, and what nobody wants any more is killed.
        agents[host].start()
        until(lambda: one.slave(host))
        assert one.state()["unreachable_slaves"] == 0
        until(lambda: len(one.pids()) == 1)
        assert [task["host"] for task in one.tasks(marathon, "/job")] == [other]
    finally:
        one.stop()


def test_a_log_that_never_was_needs_all_masters_and_later_a_quorum(java, tmp_path):
    one = Site(tmp_path, masters=2)
    try:
        status, told = until(lambda: next(filter(leads, one.masters), None)).ended()
        assert (status, "Failed to perform fetch" in told) == (1, True)
        other = until(lambda: next(filter(leads, one.masters), None))
        assert other.metric("registrar/log/recovered") == 0
        for master in one.masters:
            master.stop()
            master.start()
        one.masters.append(one.master(2))
        leader = until(one.leader)
        others = [master for master in one.masters if master is not leader]
        # One that lost its disk comes back as long as a quorum still votes.
        others[0].stop()
        shutil.rmtree(others[0].variables["MESOS_WORK_DIR"])
        others[0].start()
        until(lambda: others[0].metric("registrar/log/recovered") == 1)
        others[0].stop()
        others[1].stop()
        body = {"type": "DEACTIVATE_AGENT", "deactivate_agent": {"agent_id": {"value": "nobody"}}}
        assert leader.ask("/api/v1", body, login="operator")[0] == 400
        schedule = {"windows": [{"machine_ids": [{"hostname": "a"}], "unavailability": {"start": {"nanoseconds": 0}}}]}
        assert leader.ask("/maintenance/schedule", schedule, login="operator")[0] == 0
        assert (leader.ended()[0], "Failed to update registry" in leader.log.read_text()) == (1, True)
    finally:
        one.stop()


def leads(master):
    return master.process.poll() is None and master.metric("master/elected") == 1
