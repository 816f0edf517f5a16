# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles of Mesos and Marathon write on a host, and what they refuse. Hosts and facts are made up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import node as mesos_node
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members
from tests.unit.plugins.mesos_params import (
    ADDRESS,
    SOURCE,
    agent,
    file,
    gpu,
    gpu_device,
    marathon,
    master,
    node,
    plan,
    sentences,
    variables,
)

AGENT, MASTER, MARATHON = "/etc/agent.env", "/etc/master.env", "/etc/marathon.env"


def good(params: dict[str, Any], *more: Any) -> dict[str, Any]:
    found = plan(params, *more)
    assert found["problems"] == []
    return found


def refused(params: dict[str, Any], *more: Any) -> str:
    found = plan(params, *more)
    assert found["problems"]
    assert all(problem.remedy for problem in found["problems"])
    return " | ".join(sentences(found))


# --- agents ----------------------------------------------------------------------------------------------------------


def test_an_agent_gives_out_the_healthy_gpus_of_its_facts():
    gpus = gpu(gpu_device(0), gpu_device(1, "fatal"), gpu_device(2, "degraded"), gpu_device(3))
    found = good(agent(gpu=gpus, exclude_gpus=["GPU-3"], rack="r7", attributes={"zone": "a"}))
    told = variables(found, AGENT)
    assert told["MESOS_RESOURCES"] == "cpus:15;mem:62976;disk:494880;ports:[31000-32000];gpus:2"
    assert told["MESOS_NVIDIA_GPU_DEVICES"] == "0,2"
    assert told["BAREMETAL_GPU_UUIDS"] == "GPU-0,GPU-2"
    assert {"gpu/nvidia", "cgroups/devices", "filesystem/linux"} <= set(told["MESOS_ISOLATION"].split(","))
    attributes = dict(pair.split(":") for pair in told["MESOS_ATTRIBUTES"].split(";"))
    assert attributes["gpu_count_class"] == "4"
    assert attributes["gpu_model"] == "A100-SXM4-40GB"
    assert (attributes["rack"], attributes["zone"]) == ("r7", "a")
    assert found["gpus"] == 2


def test_a_host_without_gpus_gets_nothing_that_has_to_do_with_any():
    told = file(good(agent()), AGENT)["content"].lower()
    assert "gpus" not in told
    assert "nvidia" not in told
    assert "mesos_isolation" in told


def test_a_reserve_that_a_template_made_is_a_number():
    told = variables(good(agent(reserve={"cpus": "1", "mem": "1024", "disk": 5120})), AGENT)
    assert told["MESOS_RESOURCES"].startswith("cpus:15;mem:62976;disk:494880;")


def test_an_agent_whose_operator_keeps_the_gpus_looks_for_none():
    told = variables(good(agent(gpu=gpu(gpu_device(0)), gpus="none")), AGENT)
    assert told["MESOS_RESOURCES"].endswith(";gpus:0")
    assert "gpu/nvidia" not in told["MESOS_ISOLATION"]


def test_a_gpu_that_is_gone_after_a_boot_changes_no_attribute():
    four = variables(good(agent(gpu=gpu(*[gpu_device(number) for number in range(4)]))), AGENT)
    three = gpu(*[gpu_device(number) for number in range(3)])
    # As the exchange of the list leaves it, which is what a host goes through whose GPU is gone.
    exchanged = {**four, "BAREMETAL_GPU_UUIDS": "GPU-0,GPU-1,GPU-2", "MESOS_NVIDIA_GPU_DEVICES": "0,1,2"}
    exchanged["MESOS_RESOURCES"] = four["MESOS_RESOURCES"].replace("gpus:4", "gpus:3")
    registered = node(environment=exchanged, agent_id="S1", running=True)
    assert variables(good(agent(gpu=three, node=registered)), AGENT)["MESOS_ATTRIBUTES"] == four["MESOS_ATTRIBUTES"]
    said = refused(agent(gpu=three, node=registered, gpu_slots="3"))
    assert "attribute gpu_count_class changes from 4 to 2" in said
    assert "drain the agent" in said
    # Drained, and its checkpoint removed.
    drained = agent(gpu=three, node=node(environment=exchanged), gpu_slots="3")
    assert "gpu_count_class:2" in variables(good(drained), AGENT)["MESOS_ATTRIBUTES"]


def test_gpus_that_do_not_answer_are_not_taken_for_none():
    silent = {**gpu(gpu_device(0)), "devices": []}
    assert "has 1 GPUs, and none answers" in refused(agent(gpu=silent))
    assert plan(agent(gpu=silent, gpus="none"))["problems"] == []


@pytest.mark.parametrize(
    ("flavour", "version", "cgroups", "words"),
    [
        ("apache", "1.11.0", "v1", ""),
        ("apache", "1.11.0", "hybrid", ""),
        ("apache", "1.11.0", "v2", "knows only v1 and hybrid"),
        ("apache", "1.12.0", "v2", ""),
        ("apache", "1.12.0", "hybrid", "Found cgroups2 mount at an unexpected location"),
        ("clusterd", "1.11.0", "v1", ""),
        ("clusterd", "1.11.0", "v2", ""),
        ("clusterd", "1.11.0", "hybrid", "Found cgroups2 mount at an unexpected location"),
        ("clusterd", "1.11.0", "none", "no cgroups are mounted"),
    ],
)
def test_cgroups_are_those_that_the_flavour_lives_with(flavour, version, cgroups, words):
    params = agent(flavour=flavour, version=version, node=node(cgroups=cgroups))
    if words:
        said = refused(params)
        assert words in said
        assert "systemd.unified_cgroup_hierarchy=" in said
    else:
        told = variables(good(params), AGENT)
        assert ("MESOS_SYSTEMD_ENABLE_SUPPORT" in told) is (cgroups == "v2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flags": {"no_such_flag": 1}}, "has no flag no_such_flag"),
        ({"flags": {"containerizers": "mesos,rkt"}}, "agent flag containerizers is 'mesos,rkt'"),
        ({"flags": {"attributes": "a:b"}}, "mesos_agent_flags has attributes"),
        ({"libprocess": {"LIBPROCESS_SLL_ENABLED": "true"}}, "nothing reads LIBPROCESS_SLL_ENABLED"),
        ({"attributes": {"site": "x[1]"}}, "attribute site: 'x[1]'"),
        ({"attributes": {"serial": "0042"}}, "Mesos makes another number"),
        ({"rack": "row 7"}, "attribute rack: 'row 7'"),
        ({"reserve": {"cpus": 16, "mem": 0, "disk": 0}}, "16 are reserved"),
        ({"reserve": {"cpus": "one"}}, "mesos_agent_reserve.cpus is 'one'"),
        ({"ports": ["high"]}, "mesos_agent_ports has 'high'"),
        ({"gpu_slots": "four"}, "mesos_agent_gpu_slots is 'four'"),
        ({"exclude_gpus": ["GPU-9"]}, "GPU-9, not on this host"),
        ({"zookeeper": []}, "ZooKeeper servers [] are not host:port"),
        ({"sources": [{**SOURCE, "sha256": "abc"}]}, "mesos_common_sha256 is 'abc'"),
        ({"sources": [{**SOURCE, "url": ""}]}, "one of mesos_common_url and mesos_common_path"),
        ({"sources": [{**SOURCE, "method": "image", "image": "m@sha256:" + "0" * 64}]}, "takes its tasks down"),
        ({"sources": [{**SOURCE, "method": "image", "image": "mesos:latest"}]}, "by its digest"),
        ({"sources": [{**SOURCE, "method": "repository"}]}, "mesos_common_repository is empty"),
        ({"node": node(held_ports={"5051": "nginx (pid 7)"})}, "port 5051 is held by nginx (pid 7)"),
        ({"node": node(resolved={"zk1": []})}, "zk1 does not resolve"),
        ({"node": node(own_ip={ADDRESS: None})}, "none by which others reach it"),
        (
            {"gpu": gpu(gpu_device(0)), "node": node(device_directories=["/dev/nvidia-fs"])},
            "/dev/nvidia-fs is a directory",
        ),
    ],
)
def test_what_an_agent_cannot_live_with_is_refused(changes, words):
    assert words in refused(agent(**changes))


def test_all_problems_of_a_host_are_told_at_once():
    said = refused(agent(flags={"no_such_flag": 1}, rack="[x]", node=node(cgroups="v2")))
    assert said.count("To do: ") == 3


# --- masters ---------------------------------------------------------------------------------------------------------


def test_three_masters_need_two_and_show_what_they_are_told():
    found = good(master())
    told = variables(found, MASTER)
    assert told["MESOS_QUORUM"] == "2"
    assert told["MESOS_ZK"] == "zk://zk1:2181/mesos"
    assert told["BAREMETAL_GPU_MASTERS"] == "m1,m2,m3"
    assert told["MESOS_IP"] == ADDRESS
    for name in ("AGENTS", "FRAMEWORKS", "HTTP_READWRITE"):
        assert told[f"MESOS_AUTHENTICATE_{name}"] == "true"
    credentials = json.loads(file(found, "/etc/credentials.json")["content"])
    assert {row["principal"] for row in credentials["credentials"]} == {"mesos-agent", "marathon", "operator"}


def test_the_password_of_the_masters_node_is_in_a_file_and_nobody_else_has_it():
    login = {"user": "mesos", "password": "zk-password"}
    found = good(master(login=login))
    assert variables(found, MASTER)["MESOS_ZK"] == "file:///etc/master.zk"
    assert file(found, "/etc/master.zk")["content"] == "zk://mesos:zk-password@zk1:2181/mesos"
    # Agents and Marathon read that node, which everybody may.
    assert "zk-password" not in json.dumps(good(agent(login=login))["files"])
    assert variables(good(marathon(login=login)), MARATHON)["MARATHON_MASTER"] == "zk://zk1:2181/mesos"


def test_only_those_who_have_to_may_register_drain_and_maintain():
    acls = json.loads(
        file(good(master(secrets={**master()["secrets"], "spark": "s" * 8})), "/etc/acls.json")["content"]
    )

    def who(name: str) -> list[str]:
        first, last = acls[name]
        assert last["principals"] == {"type": "ANY"}
        return first["principals"]["values"]

    assert who("register_agents") == ["mesos-agent"]
    assert who("register_frameworks") == ["marathon", "spark"]
    assert who("drain_agents") == who("mark_agents_gone") == who("start_maintenances") == ["operator"]


def test_logins_of_marathon_are_no_principals():
    found = good(master(secrets={**master()["secrets"], "http:operator": "s" * 8}))
    assert "http:operator" not in file(found, "/etc/credentials.json")["content"]
    assert "http:operator" not in file(found, "/etc/acls.json")["content"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"members": [{"name": "m1"}, {"name": "m2"}], "quorum": 2}, "2 masters (m1, m2) are not better than 1"),
        ({"quorum": 1}, "quorum 1 of 3 masters"),
        ({"login": {"user": "mesos", "password": ""}}, "user without a password"),
        ({"acls": {"no_such": ["x"]}}, "no ACL no_such"),
        ({"flags": {"quorum": 3}}, "mesos_master_flags has quorum"),
    ],
)
def test_masters_that_could_split_are_refused(changes, words):
    assert words in refused(master(**changes))


def known(*names: str, log: bool = True) -> dict[str, Any]:
    return node(has_log=log, environment={"BAREMETAL_GPU_MASTERS": ",".join(names)})


def grown(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Three masters that become five, as the first of them sees it."""
    rows = {name: {"mesos_master_node": known("m1", "m2", "m3")} for name in ("m2", "m3")}
    rows.update({name: {"mesos_master_node": node()} for name in ("m4", "m5")})
    five = [{"name": f"m{number}"} for number in range(1, 6)]
    return master(members=five, node=known("m1", "m2", "m3"), **changes), rows


def test_other_masters_are_refused_until_that_is_confirmed_and_join_last():
    params, rows = grown()
    assert "mesos_master_confirm_members: true" in refused(params, rows)
    params, rows = grown(confirmed=True)
    found = good(params, rows)
    assert found["joining"] == ["m4", "m5"]
    assert variables(found, MASTER)["MESOS_QUORUM"] == "3"


def test_a_single_master_does_not_grow_even_if_confirmed():
    rows = {name: {"mesos_master_node": node()} for name in ("m2", "m3")}
    params = master(node=known("m1"), confirmed=True)
    assert "the log of a single master cannot grow" in refused(params, rows)


def test_empty_masters_never_become_a_majority():
    rows = {name: {"mesos_master_node": node()} for name in ("m2", "m3", "m4", "m5")}
    five = [{"name": f"m{number}"} for number in range(1, 6)]
    params = master(members=five, node=known("m1", "m2", "m3", "m4", "m5"))
    assert "1 of 5 masters have the replicated log" in refused(params, rows)


# --- Marathon --------------------------------------------------------------------------------------------------------


def test_marathon_knows_of_gpus_and_its_secrets_are_its_own():
    found = good(marathon(login={"user": "marathon", "password": "zk-password"}))
    told = variables(found, MARATHON)
    assert told["MARATHON_ENABLE_FEATURES"] == "gpu_resources"
    assert told["MARATHON_GPU_SCHEDULING_BEHAVIOR"] == "restricted"
    assert told["MARATHON_MASTER"] == "zk://zk1:2181/mesos"
    assert told["LIBPROCESS_IP"] == ADDRESS
    assert found["arguments"] == ["--mesos_authentication"]
    for path in (MARATHON, "/etc/marathon.secret"):
        assert (file(found, path)["mode"], file(found, path)["sensitive"]) == ("0600", True)
    assert file(found, "/etc/marathon.secret")["content"] == "secret-marathon"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flags": {"gpu_scheduling": "restricted"}}, "has no flag gpu_scheduling"),
        ({"features": ["no_such"]}, "marathon flag enable_features"),
        ({"chroot": "marathon"}, "is not /name"),
        ({"http_user": "a:b"}, "marathon_http_user is 'a:b'"),
    ],
)
def test_what_marathon_would_stop_at_is_refused(changes, words):
    assert words in refused(marathon(**changes))


# --- all -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [agent, master, marathon])
def test_a_secret_is_only_in_files_that_are_closed(params):
    found = good(params(login={"user": "me", "password": "zk-password"}))
    for row in found["files"]:
        if "secret-" in row.get("content", "") or "zk-password" in row.get("content", ""):
            assert row["mode"] == "0600"
            assert row["sensitive"] is True
    assert "secret-" not in json.dumps(found["arguments"] + found["variables"])


def test_no_secret_is_told_where_something_is_refused():
    said = refused(marathon(login={"user": "me", "password": "zk/password"}, flags={"no_such": 1}))
    assert "zk/password" not in said
    assert "secret-" not in said


@pytest.mark.parametrize(("params", "path"), [(agent, AGENT), (master, MASTER), (marathon, MARATHON)])
def test_what_was_written_can_be_read_again_without_its_secrets(params, path):
    found = good(params(login={"user": "me", "password": "zk-password"}))
    read = mesos_node.environment(file(found, path)["content"])
    assert "secret-" not in json.dumps(read)
    assert "zk-password" not in json.dumps(read)
    hidden = {"MARATHON_HTTP_CREDENTIALS", "MARATHON_ZK"}
    assert read == {name: value for name, value in variables(found, path).items() if name not in hidden}


def test_members_are_reached_as_their_roles_ask():
    rows = {
        "m1": {"mesos_master_params": {"address": "10.1.0.1", "port": 6050}, "ansible_host": "192.0.2.1"},
        "m2": {"ansible_host": "192.0.2.2"},
        "m3": {"mesos_common_address": "master3"},
        "m4": {},
    }
    assert [row["url"] for row in members(list(rows), rows, "master", 5050)] == [
        "http://10.1.0.1:6050",
        "http://192.0.2.2:5050",
        "http://master3:5050",
        "http://m4:5050",
    ]
    zookeeper = {"z1": {"zookeeper_params": {"address": "10.1.0.9", "client_port": 2182}}}
    assert [(row["address"], row["port"]) for row in members(["z1"], zookeeper, "zookeeper", 2181)] == [
        ("10.1.0.9", 2182)
    ]
