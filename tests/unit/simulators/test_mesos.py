# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-ins for mesos-master and mesos-agent are as strict as the programs they stand for."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.unit.simulators.mesos_cluster import PROGRAMS, Cluster, Program, free_port, until
from tests.unit.simulators.mesos_daemons import packed

FLAGS = json.loads((PROGRAMS / "flags.json").read_text(encoding="utf-8"))
GPU = "--isolation=filesystem/linux,cgroups/devices,gpu/nvidia"
BAD = {
    "bool": "yes",
    "duration": "5 min",
    "bytes": "1.5GB",
    "int": "x",
    "uint": "-1",
    "port": "no",
    "uint_list": "0, 1",
}


@pytest.fixture
def cluster(tmp_path):
    one = Cluster(tmp_path)
    yield one
    one.stop()


def refused(program: str, *flags: str, gpus: str = "", **env: str) -> tuple[int, str]:
    return Program(program, list(flags), {"STAND_IN_GPUS": gpus, **env}).ended()


def status(cluster: Cluster, body: dict) -> int:
    try:
        cluster.ask("/api/v1", body)
    except urllib.error.HTTPError as told:
        return told.code
    return 200


def call(kind: str, agent_id: str, **more: object) -> dict:
    return {"type": kind, kind.lower(): {"agent_id": {"value": agent_id}, **more}}


@pytest.mark.parametrize("program", ["master", "agent"])
def test_one_flag_of_each_kind_is_refused_with_a_bad_value(program):
    kinds = {row["kind"]: name for name, row in FLAGS[program].items()}
    tried = [(kinds[kind], bad) for kind, bad in BAD.items() if kind in kinds]
    assert len(tried) >= 5
    for name, bad in tried:
        code, told = refused(program, f"--{name}={bad}")
        assert (code, told.split(":")[0]) == (1, f"Failed to load flag '{name}'")


# The work_dir is not made before the URL is read.
ZK = ["--quorum=2", "--work_dir=/no/such/place", "--ip=127.0.0.1"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--nosuch=1"], "Failed to load unknown flag 'nosuch'"),
        (["--no-nosuch"], "Failed to load unknown flag 'nosuch' via 'no-nosuch'"),
        (["--port=1", "--port=1"], "Duplicate flag 'port' on command line"),
        (["--agent_ping_timeout=1secs", "--slave_ping_timeout=1secs"], "is already loaded via name"),
        (["--port"], "Missing value"),
        (["--zk=zk://a:1/m", "--work_dir=/tmp"], "Need to specify --quorum"),
        ([*ZK, "--zk=zk://a:1/"], "Expecting a (chroot) path for ZooKeeper ('/' is not supported)"),
        ([*ZK, "--zk=a:1/mesos"], "Expecting 'zk://' at the beginning of the URL"),
        ([*ZK, "--zk=file:///no/such/file"], "Error reading file '/no/such/file': No such file or directory"),
    ],
)
def test_flags_are_refused_in_the_words_of_the_real_master(flags, told):
    code, said = refused("master", *flags)
    assert code == 1
    assert told in said


def test_an_unknown_variable_is_passed_over_and_a_bad_value_is_not(tmp_path):
    code, told = refused("agent", MESOS_NOSUCH="1", MESOS_WORK_DIR=str(tmp_path))
    assert (code, told.strip()) == (1, "Missing required option: --master")
    code, told = refused("agent", MESOS_STRICT="yes")
    assert (code, "flag 'strict'" in told) == (1, True)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([GPU, "--resources=gpus:2"], "must be specified together"),
        ([GPU, "--nvidia_gpu_devices=0"], "must be specified together"),
        ([GPU, "--resources=gpus:2", "--nvidia_gpu_devices=0"], "different numbers"),
        ([GPU, "--resources=gpus:2", "--nvidia_gpu_devices=0,0"], "duplicates"),
        ([GPU, "--resources=gpus:1.5", "--nvidia_gpu_devices=0"], "unsigned integer"),
        ([GPU, "--resources=gpus:1", "--nvidia_gpu_devices=7"], "greater than"),
        ([GPU, "--resources=gpus:1", "--nvidia_gpu_devices=2"], "deviceGetHandleByIndex: GPU is lost"),
        ([GPU], "deviceGetHandleByIndex: GPU is lost"),
        (["--nvidia_gpu_devices=0"], "can only be specified if"),
        (["--isolation=cgroups/devices,gpu/nvidia"], "'filesystem/linux' isolator must be enabled"),
        (["--isolation=filesystem/linux,gpu/nvidia,cgroups/devices"], "'cgroups/devices' must precede 'gpu/nvidia'"),
        (["--resources=cpus"], "missing or extra ':'"),
        (["--resources=gpus:two"], "Bad type"),
        (['--resources=[{"name": "gpus", "scalar": {"value": 1}}]'], "type"),
    ],
)
def test_gpus_that_do_not_fit_stop_the_agent(tmp_path, flags, told):
    code, said = refused("agent", "--master=a:1", f"--work_dir={tmp_path}", *flags, gpus="ok,ok,GPU is lost")
    assert code == 1
    assert told in said


@pytest.mark.parametrize("text", ["{x,y}", "a:{", "a:x{y}", "a:x(y", "a:x[1]", "a:", "abc", "a:1e-320"])
def test_attributes_that_crash_the_real_agent_crash_this_one(tmp_path, text):
    code, _ = refused("agent", "--master=a:1", f"--work_dir={tmp_path}", f"--attributes={text}")
    assert code == -signal.SIGABRT


def test_gpus_without_cgroups_devices_abort(tmp_path):
    code, _ = refused("agent", "--master=a:1", f"--work_dir={tmp_path}", "--isolation=filesystem/linux,gpu/nvidia")
    assert code == -signal.SIGABRT


def test_attributes_and_resources_arrive_as_the_real_master_shows_them(cluster):
    cluster.agent(
        "gpu1",
        GPU,
        "--resources=cpus:8;gpus:2",
        "--nvidia_gpu_devices=0,2",
        "--attributes=m:Tesla V100;n:0042;v:535.261.03;p:x(y)",
        gpus="ok,GPU is lost,ok",
    )
    row = cluster.registered("gpu1")
    assert row["attributes"] == {"m": "TeslaV100", "n": 42, "v": "535.261.03", "p": "x(y)"}
    assert row["resources"]["gpus"] == 2
    assert row["active"]


def test_flags_show_the_path_of_a_secret_and_the_content_of_another_file(tmp_path):
    files = {
        "credentials": '{"credentials": [{"principal": "p", "secret": "s3cret"}]}',
        "domain": '{"fault_domain": {"region": {"name": "r"}, "zone": {"name": "z"}}}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    one = Cluster(tmp_path, *[f"--{name}=file://{tmp_path / name}" for name in files])
    (tmp_path / "where").write_text(f"127.0.0.1:{one.port}")
    try:
        shown = one.ask("/flags")["flags"]
        assert (shown["credentials"], shown["domain"]) == (str(tmp_path / "credentials"), files["domain"])
        assert one.ask("/state")["flags"] == shown
        port = free_port()
        where = [f"--master=file://{tmp_path / 'where'}", f"--port={port}", "--ip=127.0.0.1"]
        one.agents.append(Program("agent", [*where, f"--work_dir={tmp_path}/a", "--hostname=a"]))
        one.registered("a")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as reply:
            assert json.load(reply)["flags"]["master"] == str(tmp_path / "where")
    finally:
        one.stop()


@pytest.mark.parametrize(
    ("policy", "first", "then", "told"),
    [
        ("equal", "gpus:4", "gpus:2", "Incompatible agent info detected."),
        ("additive", "gpus:4", "gpus:2", "Value of scalar resource 'gpus' decreased from 4 to 2"),
        ("additive", "gpus:4", "gpus:6", None),
        ("equal", "gpus:4", "gpus:4", None),
    ],
)
def test_a_changed_agent_comes_back_only_as_its_policy_allows(cluster, policy, first, then, told):
    port = free_port()
    flags = [f"--reconfiguration_policy={policy}"]
    cluster.agent("a", *flags, f"--resources={first}", port=port)
    old = cluster.registered("a")["id"]
    # The agent hears of it after the master knows, and writes it down then.
    until((cluster.base / "a/meta/slaves/latest").is_symlink)
    cluster.agents[0].stop()
    again = cluster.agent("a", *flags, f"--resources={then}", port=port)
    if told:
        code, said = again.ended()
        assert code == 1
        assert told in said
        (cluster.base / "a/meta/slaves/latest").unlink()
        cluster.agent("a", *flags, f"--resources={then}", port=port)
        until(lambda: cluster.slave("a")["id"] != old)
    until(lambda: cluster.slave("a")["resources"]["gpus"] == float(then[-1]))


def test_only_who_says_gpu_resources_is_offered_an_agent_with_gpus(cluster):
    cluster.agent("a", GPU, gpus="ok,ok")
    cluster.registered("a")
    plain, able = cluster.framework(), cluster.framework("GPU_RESOURCES")
    assert cluster.ask("/stand-in/offers", {"framework_id": plain}) == []
    assert cluster.ask("/stand-in/offers", {"framework_id": able})[0]["resources"]["gpus"] == 2


def test_a_drain_waits_for_the_task_and_outlives_a_restart_of_both(cluster):
    port = free_port()
    cluster.agent("a", port=port)
    agent_id = cluster.registered("a")["id"]
    cluster.launch(cluster.framework(), agent_id, "job", "trap '' TERM; while :; do sleep 0.1; done")
    assert status(cluster, call("DRAIN_AGENT", agent_id, max_grace_period={"seconds": 600})) == 200
    row = cluster.slave("a")
    assert (row["drain_info"]["state"], row["active"], row["deactivated"]) == ("DRAINING", False, True)
    assert row["drain_info"]["config"]["max_grace_period"] == {"nanoseconds": 600 * 10**9}
    assert status(cluster, call("REACTIVATE_AGENT", agent_id)) == 400
    cluster.agents[0].stop()
    cluster.master.stop()
    cluster.start_master()
    cluster.agent("a", port=port)
    cluster.registered("a")
    assert cluster.slave("a")["drain_info"]["state"] == "DRAINING"
    # Without seconds nothing is read of the grace period: the task is killed at once.
    assert status(cluster, call("DRAIN_AGENT", agent_id, max_grace_period={"nanoseconds": 10**12})) == 200


def test_drained_after_the_last_task_and_active_again_when_told(cluster):
    cluster.agent("a")
    agent_id = cluster.registered("a")["id"]
    cluster.launch(cluster.framework(), agent_id, "job", "sleep 600")
    assert status(cluster, call("DRAIN_AGENT", agent_id, max_grace_period={"seconds": 5})) == 200
    until(lambda: cluster.slave("a")["drain_info"]["state"] == "DRAINED")
    assert cluster.task("job")["state"] == "TASK_KILLED"
    assert status(cluster, call("REACTIVATE_AGENT", agent_id)) == 200
    assert "drain_info" not in cluster.slave("a")
    assert status(cluster, call("REACTIVATE_AGENT", agent_id)) == 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (call("DRAIN_AGENT", "nobody"), 400),
        (call("DEACTIVATE_AGENT", "nobody"), 400),
        (call("REACTIVATE_AGENT", "nobody"), 400),
        (call("MARK_AGENT_GONE", "7f6d0c53-2a6b-4a43-9d57-0a4a3f0e8c11-S99"), 404),
        (call("MARK_AGENT_GONE", "x"), 400),
        (call("DRAIN_AGENT", "nobody", max_grace_period="10mins"), 400),
        ({"type": "DRAIN_AGENT"}, 400),
        ({}, 400),
    ],
)
def test_calls_that_the_real_master_refuses(cluster, body, code):
    assert status(cluster, body) == code


def test_an_agent_that_is_gone_exits_and_stays_out(cluster):
    agent = cluster.agent("a")
    agent_id = cluster.registered("a")["id"]
    assert [status(cluster, call("MARK_AGENT_GONE", agent_id)) for _ in range(2)] == [200, 200]
    assert agent.ended()[0] == 0
    assert cluster.agent("a").ended()[0] == 1  # the port is another one, which the checkpoint does not allow


def test_a_machine_in_the_schedule_cannot_be_drained_and_down_means_out(cluster):
    agent = cluster.agent("a")
    agent_id = cluster.registered("a")["id"]
    machine = {"hostname": "a", "ip": "127.0.0.1"}
    window = {"machine_ids": [machine], "unavailability": {"start": {"nanoseconds": 1}}}
    cluster.ask("/maintenance/schedule", {"windows": [window]})
    assert status(cluster, call("DRAIN_AGENT", agent_id)) == 400
    assert status(cluster, call("DEACTIVATE_AGENT", agent_id)) == 200
    cluster.ask("/machine/down", [machine])
    assert agent.ended()[0] == 0
    for wrong in ({}, {"windows": [window, window]}, {"windows": [{**window, "machine_ids": []}]}):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            cluster.ask("/maintenance/schedule", wrong)
    cluster.ask("/machine/up", [machine])
    assert cluster.ask("/maintenance/schedule") == {"windows": []}


def test_a_master_that_does_not_lead_names_the_leader_without_a_protocol(tmp_path):
    one = Cluster(tmp_path, env={"STAND_IN_LEADER": "127.0.0.1:1"})
    try:
        with pytest.raises(urllib.error.HTTPError) as told:
            one.ask("/api/v1", {"type": "GET_HEALTH"})
        assert (told.value.code, told.value.headers["Location"]) == (307, "//127.0.0.1:1/api/v1")
        assert one.ask("/metrics/snapshot")["master/elected"] == 0
    finally:
        one.stop()


def test_an_agent_with_a_wrong_secret_exits_and_one_without_keeps_trying(tmp_path):
    def file(name: str, document: dict) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    known = file("all", {"credentials": [{"principal": "p", "secret": "s"}]})
    one = Cluster(tmp_path, "--authenticate_agents", f"--credentials={known}")
    try:
        wrong = one.agent("a", f"--credential={file('wrong', {'principal': 'p', 'secret': 'x'})}")
        assert wrong.ended()[0] == 1
        none = one.agent("b")
        one.agent("c", f"--credential={file('right', {'principal': 'p', 'secret': 's'})}")
        one.registered("c")
        assert one.slave("b") is None
        assert none.process.poll() is None
    finally:
        one.stop()


def test_packing_gives_the_same_bytes_again(tmp_path):
    first, second = packed(tmp_path / "a"), packed(tmp_path / "b")
    assert {name: row["sha256"] for name, row in first.items()} == {name: row["sha256"] for name, row in second.items()}
    assert [Path(row["path"]).name for row in first.values()] == [
        "mesos-1.11.0-stand-in.tar.gz",
        "marathon-1.10.26-stand-in.tar.gz",
    ]


ANYBODY = {"principals": {"type": "ANY"}}


@pytest.mark.parametrize(
    ("acls", "denied"),
    [
        ({"drain_agents": [{**ANYBODY, "agents": {"type": "NONE"}}]}, {"drain"}),
        ({"drain_agents": [{"principals": {"values": ["else"]}, "agents": {"type": "NONE"}}]}, set()),
        ({"permissive": False}, {"drain", "flags", "metrics", "agent", "framework"}),
        (
            {"permissive": False, "drain_agents": [{**ANYBODY, "agents": {"type": "ANY"}}]},
            {"flags", "metrics", "agent", "framework"},
        ),
    ],
)
def test_acls_forbid_what_they_say_and_without_permissive_all_that_they_do_not_say(tmp_path, acls, denied):
    one = Cluster(tmp_path, f"--acls={json.dumps(acls)}")
    try:
        agent = one.agent("a")
        if "agent" in denied:
            assert agent.ended()[0] == 0
        else:
            one.registered("a")
        found = {"agent"} & denied
        asked = {
            "drain": lambda: one.ask("/api/v1", call("DRAIN_AGENT", "nobody")),
            "flags": lambda: one.ask("/flags"),
            "metrics": lambda: one.ask("/metrics/snapshot"),
            "framework": lambda: one.framework(),
        }
        for name, ask in asked.items():
            try:
                ask()
            except urllib.error.HTTPError as told:
                found |= {name} if told.code == 403 else set()
        assert found == denied
    finally:
        one.stop()


def test_an_acl_with_a_missing_field_stops_the_master(tmp_path):
    acls = {"drain_agents": [{"principals": {"type": "ANY"}}]}
    code, told = refused("master", f"--work_dir={tmp_path}", "--ip=127.0.0.1", f"--acls={json.dumps(acls)}")
    assert (code, "drain_agents" in told) == (1, True)


def test_an_agent_that_is_told_to_leave_unregisters_and_takes_its_tasks_along(cluster):
    agent = cluster.agent("a")
    framework = cluster.framework()
    cluster.launch(framework, cluster.registered("a")["id"], "job", "sleep 1000")
    assert agent.stop(signal.SIGUSR1) == 0
    assert cluster.slave("a") is None
    assert cluster.task("job")["state"] == "TASK_LOST"
    assert (cluster.base / "a/meta/slaves/latest").is_symlink()
