# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-ins do what a real master and agent of ClusterD 1.11.0 were seen to do where they did otherwise before."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import tasks_of_agent
from tests.unit.simulators.mesos_cluster import Cluster, Program, free_port, until
from tests.unit.simulators.mesos_daemons import Stay, packed

SCHEDULE = "/maintenance/schedule"
MACHINE = {"hostname": "a", "ip": "127.0.0.1"}
WINDOW = {"machine_ids": [MACHINE], "unavailability": {"start": {"nanoseconds": 1}}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    one = Cluster(tmp_path_factory.mktemp("seen"))
    yield one
    one.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A master that wants a login of agents and of who changes something."""
    base = tmp_path_factory.mktemp("guarded")
    known = base / "credentials"
    rows = [{"principal": name, "secret": "s"} for name in ("agents", "operator")]
    known.write_text(json.dumps({"credentials": rows}))
    one = Cluster(base, "--authenticate_agents", "--authenticate_http_readwrite", f"--credentials={known}")
    yield one
    one.stop()


def credential(base: Path, secret: str = "s") -> str:
    path = base / f"credential-{secret}"
    path.write_text(json.dumps({"principal": "agents", "secret": secret}))
    return f"--credential={path}"


def answer(cluster: Cluster, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, str]:
    try:
        told = cluster.ask(path, body, {"Content-Type": kind})
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    return 200, json.dumps(told)


def call(name: str, agent_id: str, **more: Any) -> dict[str, Any]:
    return {"type": name, name.lower(): {"agent_id": {"value": agent_id}, **more}}


def metric(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/snapshot", timeout=10) as reply:
        return float(json.load(reply)["slave/registered"])


# --- what an agent tells of itself -----------------------------------------------------------------------------------


def test_the_metric_of_an_agent_says_that_a_leader_is_known_and_no_more(guarded):
    port = free_port()
    guarded.agent("stranger", port=port)
    assert until(lambda: metric(port)) == 1
    assert guarded.slave("stranger") is None


@pytest.mark.parametrize("without", ["agent", "master"])
def test_without_the_plugin_of_sasl_nobody_is_let_in_and_the_agent_tries_on(tmp_path, without):
    known = tmp_path / "credentials"
    known.write_text(json.dumps({"credentials": [{"principal": "agents", "secret": "s"}]}))
    missing = {"STAND_IN_SASL": "no"}
    one = Cluster(
        tmp_path,
        "--authenticate_agents",
        f"--credentials={known}",
        env=missing if without == "master" else None,
    )
    port = free_port()
    words = [f"--master=127.0.0.1:{one.port}", f"--work_dir={tmp_path}/a", f"--port={port}", "--ip=127.0.0.1"]
    agent = Program("agent", [*words, credential(tmp_path)], missing if without == "agent" else None)
    one.agents.append(agent)
    try:
        until(lambda: metric(port))
        assert one.ask("/slaves")["slaves"] == []
        assert agent.process.poll() is None
        if without == "agent":
            agent.stop(signal.SIGKILL)
            assert "SASL(-4): no mechanism available" in agent.told
    finally:
        one.stop()


def test_an_agent_with_a_static_master_is_not_back_at_once(tmp_path):
    one = Cluster(tmp_path)
    for name, seconds in (("soon", "0.1"), ("late", "3600")):
        words = [f"--master=127.0.0.1:{one.port}", f"--work_dir={tmp_path}/{name}", f"--port={free_port()}"]
        more = ["--ip=127.0.0.1", f"--hostname={name}"]
        one.agents.append(Program("agent", [*words, *more], {"STAND_IN_RETURN_S": seconds}))
    try:
        before = {name: one.registered(name)["id"] for name in ("soon", "late")}
        one.master.stop()
        # An agent knows at its next word to the master.
        until(lambda: all("Lost connection" in agent.so_far() for agent in one.agents))
        one.start_master()
        assert one.registered("soon")["id"] == before["soon"]
        assert one.slave("late") is None
    finally:
        one.stop()


def test_a_restarted_agent_is_told_apart_from_one_that_went_on(cluster):
    port = free_port()
    agent = cluster.agent("twice", port=port)
    assert "reregistered_time" not in cluster.registered("twice")
    until((cluster.base / "twice/meta/slaves/latest").is_symlink)
    agent.stop()
    cluster.agent("twice", port=port)
    until(lambda: "reregistered_time" in cluster.slave("twice"))


def test_an_agent_tells_of_its_frameworks_and_nothing_of_where_it_is(cluster):
    port = free_port()
    cluster.agent("telling", port=port)
    agent_id, framework = cluster.registered("telling")["id"], cluster.framework()

    def state():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as reply:
            return json.load(reply)

    assert state()["frameworks"] == []
    assert not {"ip", "port"} & set(state())
    cluster.launch(framework, agent_id, "told", "sleep 600")
    (one,) = until(lambda: state()["frameworks"])
    (executor,) = one["executors"]
    assert (one["id"], executor["id"]) == (framework, "told")
    assert [(task["id"], task["state"]) for task in executor["tasks"]] == [("told", "TASK_RUNNING")]
    # As the product reads it.
    assert tasks_of_agent(f"http://127.0.0.1:{port}") == ["told"]
    cluster.ask("/stand-in/kill", {"task_id": "told", "grace_s": 0})
    until(lambda: state()["frameworks"] == [])
    assert state()["completed_frameworks"][0]["completed_executors"][0]["id"] == "told"


def test_slaves_tells_resources_as_protobufs_too(cluster):
    cluster.agent("whole", "--resources=cpus:2;mem:64;disk:10;ports:[1-3,5-7];disks:{a,b}")
    row = cluster.registered("whole")
    assert row["resources"]["ports"] == "[1-3, 5-7]"
    found = {one["name"]: one for one in row["unreserved_resources_full"]}
    assert found["cpus"] == {"name": "cpus", "role": "*", "type": "SCALAR", "scalar": {"value": 2.0}}
    assert found["ports"]["ranges"] == {"range": [{"begin": 1, "end": 3}, {"begin": 5, "end": 7}]}
    assert found["disks"]["set"] == {"item": ["a", "b"]}
    assert (row["used_resources_full"], row["offered_resources_full"], row["reserved_resources_full"]) == ([], [], {})
    (shown,) = [one for one in cluster.ask("/state")["slaves"] if one["id"] == row["id"]]
    assert not [name for name in shown if name.endswith("_full")]


def test_an_agent_that_a_new_leader_knows_again_has_reregistered(tmp_path):
    one = Cluster(tmp_path)
    words = [f"--master=127.0.0.1:{one.port}", f"--work_dir={tmp_path}/a", f"--port={free_port()}"]
    more = ["--ip=127.0.0.1", "--hostname=a"]
    one.agents.append(Program("agent", [*words, *more], {"STAND_IN_RETURN_S": "0.1"}))
    try:
        assert "reregistered_time" not in one.registered("a")
        one.master.stop()
        until(lambda: "Lost connection" in one.agents[0].so_far())
        one.start_master()
        row = one.registered("a")
        assert row["reregistered_time"] >= row["registered_time"]
    finally:
        one.stop()


def test_an_agent_with_a_domain_does_not_register_with_a_master_without_one(tmp_path):
    domain = json.dumps({"fault_domain": {"region": {"name": "r"}, "zone": {"name": "z"}}})
    one = Cluster(tmp_path)
    port = free_port()
    agent = one.agent("far", f"--domain={domain}", port=port)
    try:
        until(lambda: metric(port))
        one.agent("near")
        one.registered("near")
        assert one.slave("far") is None
        assert agent.process.poll() is None
    finally:
        one.stop()
    both = Cluster(tmp_path / "both", f"--domain={domain}")
    try:
        both.agent("far", f"--domain={domain}")
        assert both.registered("far")
    finally:
        both.stop()


# --- tasks and libraries ---------------------------------------------------------------------------------------------


def test_a_task_gets_nothing_of_the_agents_own_environment(tmp_path):
    one = Cluster(tmp_path)
    words = [f"--master=127.0.0.1:{one.port}", f"--work_dir={tmp_path}/a", f"--port={free_port()}", "--hostname=a"]
    given = {"LD_LIBRARY_PATH": "/nowhere", "HOME": "/root", "LIBPROCESS_IP": "127.0.0.1"}
    one.agents.append(Program("agent", words, given))
    try:
        one.launch(one.framework(), one.registered("a")["id"], "job", "env; sleep 600")
        printed = next(tmp_path.glob("a/slaves/*/job/stdout"))
        names = {line.partition("=")[0] for line in until(printed.read_text).splitlines()}
        assert {"PATH", "LIBPROCESS_IP", "MESOS_TASK_ID"} <= names
        # The last two are the shell's own.
        assert {name for name in names if not name.startswith(("MESOS_", "STAND_IN_"))} <= {
            *("PATH", "LIBPROCESS_IP", "PWD", "SHLVL", "_", "OLDPWD"),
        }
    finally:
        one.stop()


@pytest.fixture(scope="module")
def without_rpath(tmp_path_factory):
    """The archive as programs that were built without an rpath, unpacked somewhere."""
    base = tmp_path_factory.mktemp("packed")
    path = packed(base, "--bin")["mesos"]["path"]
    subprocess.run(["tar", "-xzf", path, "-C", base], check=True)
    return base / "mesos"


def test_clusterds_layout_has_all_programs_in_bin(without_rpath):
    assert {path.name for path in (without_rpath / "bin").iterdir()} == {"mesos-agent", "mesos-master", "mesos-execute"}
    assert not (without_rpath / "sbin").exists()
    assert (without_rpath / "libexec/mesos/mesos-executor").exists()


def test_a_program_without_an_rpath_needs_to_be_shown_its_library(without_rpath):
    agent = without_rpath / "bin/mesos-agent"
    lost = subprocess.run([agent], env={}, capture_output=True, text=True, check=False)
    assert lost.returncode == 127
    assert "libmesos.so.0: cannot open shared object file" in lost.stderr
    # The loader itself has said so, of a program that is really linked.
    assert "error while loading shared libraries" in lost.stderr
    said = subprocess.run(["ldd", agent], env={}, capture_output=True, text=True, check=True).stdout
    assert "libmesos.so.0 => not found" in said
    found = {"LD_LIBRARY_PATH": str(without_rpath / "lib")}
    shown = subprocess.run([agent], env=found, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr.strip()) == (1, "Missing required option: --master")


def test_programs_of_an_archive_with_an_rpath_find_their_libraries_by_themselves(tmp_path):
    subprocess.run(["tar", "-xzf", packed(tmp_path)["mesos"]["path"], "-C", tmp_path], check=True)
    for program in ("sbin/mesos-agent", "sbin/mesos-master", "bin/mesos-execute", "libexec/mesos/mesos-executor"):
        said = subprocess.run(
            ["ldd", tmp_path / "mesos" / program], env={}, capture_output=True, text=True, check=True
        ).stdout
        assert "not found" not in said
        assert f"libmesos.so.0 => {tmp_path}/mesos/" in said
    ended = subprocess.run([tmp_path / "mesos/libexec/mesos/mesos-executor"], env={}, check=False)
    assert ended.returncode == 0


def test_a_program_gets_its_words_and_its_environment_and_keeps_its_name(without_rpath, tmp_path):
    port = free_port()
    words = ["--master=127.0.0.1:1", f"--work_dir={tmp_path}/a b", f"--port={port}", "--ip=127.0.0.1"]
    environment = {"LD_LIBRARY_PATH": str(without_rpath / "lib"), "PATH": os.environ["PATH"], "MESOS_HOSTNAME": "given"}
    agent = subprocess.Popen([without_rpath / "bin/mesos-agent", *words], env=environment)
    try:

        def state():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as reply:
                return json.load(reply)

        told = until(state)
        assert (told["hostname"], told["flags"]["work_dir"]) == ("given", f"{tmp_path}/a b")
        assert Path(f"/proc/{agent.pid}/comm").read_text() == "mesos-agent\n"
    finally:
        agent.kill()
        agent.wait()


def test_a_variable_of_the_agent_lets_the_agent_start_and_its_tasks_fail(without_rpath, tmp_path):
    one = Cluster(tmp_path)
    words = [f"--master=127.0.0.1:{one.port}", f"--work_dir={tmp_path}/a", f"--port={free_port()}"]
    environment = {"LD_LIBRARY_PATH": str(without_rpath / "lib"), "STAND_IN_SASL": "yes", "PATH": os.environ["PATH"]}
    log = (tmp_path / "log").open("w")
    agent = subprocess.Popen(
        [without_rpath / "bin/mesos-agent", *words, "--hostname=a", "--ip=127.0.0.1"],
        env=environment,
        stderr=log,
    )
    try:
        agent_id = one.registered("a")["id"]
        framework = one.framework()
        task = {"id": "job", "name": "job", "cmd": "true", "resources": {"cpus": 0.1, "mem": 32}}
        one.ask("/stand-in/launch", {"framework_id": framework, "agent_id": agent_id, "task": task})
        until(lambda: one.task("job")["state"] == "TASK_FAILED")
        told = one.ask("/stand-in/tasks", {"framework_id": framework})["tasks"]
        assert "libmesos.so.0: cannot open shared object file" in told[0]["message"]
    finally:
        agent.kill()
        agent.wait()
        one.stop()


def test_the_library_is_one_that_ldconfig_takes(without_rpath, tmp_path):
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    assert ldconfig
    # Without a cache, and with the links that it makes for names.
    copy = tmp_path / "lib"
    copy.mkdir()
    shutil.copy(without_rpath / "lib/libbundled.so.7", copy)
    shutil.copy(without_rpath / "lib/libmesos.so", copy / "libmesos-1.so")
    subprocess.run([ldconfig, "-n", "-N", copy], check=True)
    subprocess.run([ldconfig, "-n", copy], check=True)
    assert (copy / "libmesos.so.0").resolve() == copy / "libmesos-1.so"
    tried = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libmesos.so.0')"]
    assert subprocess.run(tried, env={"LD_LIBRARY_PATH": str(copy)}, check=False).returncode == 0


# --- maintenance and the operator API --------------------------------------------------------------------------------


def test_maintenance_is_told_to_everybody_and_the_schedule_is_not(guarded):
    assert answer(guarded, "/maintenance/status")[0] == 200
    assert answer(guarded, SCHEDULE)[0] == 401
    assert answer(guarded, SCHEDULE, {"windows": []})[0] == 401


def test_machines_are_known_again_whatever_the_case_of_their_names(cluster):
    agent = cluster.agent("Upper")
    agent_id = cluster.registered("Upper")["id"]
    lower = {"hostname": "upper", "ip": "127.0.0.1"}
    cluster.ask(SCHEDULE, {"windows": [{**WINDOW, "machine_ids": [lower]}]})
    status, told = answer(cluster, "/api/v1", call("DRAIN_AGENT", agent_id))
    assert status == 400
    assert "is part of a maintenance schedule under Machine Upper (127.0.0.1)" in told
    cluster.ask("/machine/down", [{"hostname": "UPPER", "ip": "127.0.0.1"}])
    assert agent.ended()[0] == 0
    cluster.ask("/machine/up", [lower])
    # Empty lists are left out.
    assert cluster.ask("/maintenance/status") == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (["no schedule"], "Failed to convert JSON into Schedule protobuf: "),
        ({"windows": [{"machine_ids": [MACHINE]}]}, "Missing required fields: windows[0].unavailability"),
        ({"windows": [{**WINDOW, "unavailability": {}}]}, "windows[0].unavailability.start"),
        (
            {"windows": [{**WINDOW, "unavailability": {"start": {"seconds": 1790000000}}}]},
            "windows[0].unavailability.start.nanoseconds",
        ),
    ],
)
def test_a_window_that_does_not_say_when_is_refused(cluster, body, words):
    status, told = answer(cluster, SCHEDULE, body)
    assert (status, words in told) == (400, True)


def test_a_machine_outside_the_schedule_is_neither_taken_down_nor_up(cluster):
    stranger = [{"hostname": "nobody", "ip": "10.0.0.9"}]
    for way in ("down", "up"):
        status, told = answer(cluster, f"/machine/{way}", stranger)
        machine = '{"hostname":"nobody","ip":"10.0.0.9"}'
        assert (status, f"Machine '{machine}' is not part of a maintenance schedule" in told) == (400, True)


@pytest.fixture(scope="module")
def agent_id(cluster):
    cluster.agent("drained")
    return cluster.registered("drained")["id"]


@pytest.mark.parametrize(
    ("grace", "kept"),
    [
        ({}, None),
        ({"max_grace_period": None}, None),
        ({"max_grace_period": {"seconds": 5}}, 5 * 10**9),
        # 64 bits are not enough, and nobody says so.
        ({"max_grace_period": {"seconds": 99999999999999}}, 99999999999999 * 10**9 % 2**64),
    ],
    ids=["none", "null", "5 s", "too long"],
)
def test_the_grace_of_a_drain_is_kept_as_it_was_told(cluster, agent_id, grace, kept):
    assert answer(cluster, "/api/v1", call("DRAIN_AGENT", agent_id, **grace))[0] == 200
    found = cluster.slave("drained")["drain_info"]["config"].get("max_grace_period")
    assert (found and found["nanoseconds"] % 2**64) == kept
    assert found is None or -(2**63) <= found["nanoseconds"] < 2**63
    until(lambda: cluster.slave("drained")["drain_info"]["state"] == "DRAINED")
    assert answer(cluster, "/api/v1", call("REACTIVATE_AGENT", agent_id))[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"type": "NOPE"}, 400, "NOPE"),
        ({"type": None}, 400, "Missing required fields: type"),
        (call("DEACTIVATE_AGENT", "x"), 400, "Unknown agent"),
        (call("MARK_AGENT_GONE", "x"), 400, "Unknown agent"),
        ({"type": "DRAIN_AGENT", "drain_agent": {}}, 400, "Missing required fields: drain_agent.agent_id.value"),
    ],
)
def test_calls_are_refused_in_the_words_of_the_real_master(cluster, body, status, words):
    found, told = answer(cluster, "/api/v1", body)
    assert (found, words in told) == (status, True)


def test_another_content_type_is_refused_with_both_that_are_taken(cluster):
    status, told = answer(cluster, "/api/v1", {"type": "GET_HEALTH"}, "text/plain")
    assert (status, "x-protobuf" in told) == (415, True)


def test_a_follower_sends_on_to_the_masters_own_path_and_asks_for_the_login_first(tmp_path):
    known = tmp_path / "credentials"
    known.write_text(json.dumps({"credentials": [{"principal": "operator", "secret": "s"}]}))
    one = Cluster(
        tmp_path,
        "--authenticate_http_readwrite",
        f"--credentials={known}",
        env={"STAND_IN_LEADER": "127.0.0.1:1"},
    )
    login = {"Authorization": "Basic " + base64.b64encode(b"operator:s").decode()}
    try:
        for path, headers, status, location in (
            ("/slaves", {}, 307, "//127.0.0.1:1/master/slaves"),
            ("/master/slaves", {}, 307, "//127.0.0.1:1/master/slaves"),
            ("/api/v1", {}, 401, None),
            ("/api/v1", login, 307, "//127.0.0.1:1/api/v1"),
        ):
            body = {"type": "GET_HEALTH"} if path == "/api/v1" else None
            data = json.dumps(body).encode() if body else None
            asked = urllib.request.Request(one.url + path, data, {"Content-Type": "application/json", **headers})
            with pytest.raises(urllib.error.HTTPError) as told:
                urllib.request.build_opener(Stay).open(asked, timeout=10)
            assert (told.value.code, told.value.headers["Location"]) == (status, location)
    finally:
        one.stop()


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag",
    [
        "--isolation=cgroups/cpu,cgroups/nope",
        "--default_role=",
        "--domain={}",
        '--domain={"fault_domain": {"region": {"name": "r"}}}',
        '--executor_environment_variables={"A": 1}',
        '--executor_environment_variables={"A": null}',
        "--resources=ports:[32000-31000]",
    ],
)
def test_what_ends_the_real_agent_ends_this_one(tmp_path, flag):
    code, told = Program("agent", ["--master=a:1", f"--work_dir={tmp_path}", flag]).ended()
    assert code == 1
    assert told


GPU = "--isolation=filesystem/linux,cgroups/devices,gpu/nvidia"


def test_what_the_real_agent_takes_this_one_takes(cluster):
    devices = [GPU, "--resources=gpus:2;disks:{a,b}", "--nvidia_gpu_devices=0,2,"]
    told = "minus:-3;much:1e400;number:1.23456;ranges:[1-3,5-7]"
    cluster.agent("lenient", *devices, f"--attributes={told}", gpus="ok,ok,ok")
    row = cluster.registered("lenient")
    assert row["resources"]["gpus"] == 2
    assert row["resources"]["disks"] == "{a, b}"
    assert row["attributes"] == {"minus": "-3", "much": "1e400", "number": 1.23456, "ranges": "[1-3, 5-7]"}


@pytest.mark.parametrize(
    ("flag", "first", "then", "taken"),
    [
        ("resources", "ports:[31000-31999]", "ports:[31000-32999]", True),
        ("resources", "ports:[31000-31999]", "ports:[30000-31500,31501-33000]", True),
        ("resources", "ports:[31000-31999]", "ports:[31000-31998]", False),
        ("resources", "ports:[31000-31999]", "ports:[33000-33999]", False),
        ("attributes", "span:[1-3]", "span:[1-5]", True),
        ("attributes", "span:[1-3]", "span:[2-5]", False),
        ("attributes", "name:x", "name:xy", False),
    ],
)
def test_additive_takes_more_of_ranges_and_nothing_less(cluster, request, flag, first, then, taken):
    name, port = f"r{request.node.callspec.indices['flag']}", free_port()
    words = ["--reconfiguration_policy=additive"]
    agent = cluster.agent(name, *words, f"--{flag}={first}", port=port)
    before = cluster.registered(name)["id"]
    until((cluster.base / name / "meta/slaves/latest").is_symlink)
    agent.stop()
    again = cluster.agent(name, *words, f"--{flag}={then}", port=port)
    if taken:
        shown, value = then.partition(":")[::2]
        until(lambda: cluster.slave(name)[flag][shown] == value.replace(",", ", "))
        assert cluster.slave(name)["id"] == before
    else:
        code, told = again.ended()
        assert (code, "not permitted under 'additive' policy" in told) == (1, True)
