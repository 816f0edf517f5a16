# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS in two passes: what a host is told, and what is refused. Hosts are made up."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import node as mesos_node
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import replace as mesos_replace
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import tls as mesos_tls
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members
from tests.unit.plugins.mesos_params import agent, file, marathon, master, node, plan, sentences, variables

ENVIRONMENTS = {"agent": "/etc/agent.env", "master": "/etc/master.env", "marathon": "/etc/marathon.env"}
MAKE = {"agent": agent, "master": master, "marathon": marathon}
HOSTS = {"master": ["m1"], "agent": ["gpu1", "gpu2"], "marathon": ["m1"]}
ON = {"LIBPROCESS_SSL_ENABLED": "true"}
MODES = {
    "off": {},
    "downgrade": {**ON, "LIBPROCESS_SSL_SUPPORT_DOWNGRADE": "true"},
    "required": {**ON, "LIBPROCESS_SSL_SUPPORT_DOWNGRADE": "false"},
}


def pair(name: str) -> dict[str, str]:
    base = f"/site/.secrets/mesos-tls/{name}"
    return {
        "certificate": f"{base}.pem",
        "certificate_sha256": "1" * 64,
        "key": f"{base}-key.pem",
        "key_sha256": "2" * 64,
    }


def params(program: str, mode: str, **changes: Any) -> dict[str, Any]:
    host = "gpu1" if program == "agent" else "m1"
    tls = {"mode": mode, "version": "1.11.0", "hosts": HOSTS, "whole": True, "directory": "/etc/tls", "group": "tasks"}
    made = {
        "authority": {"path": "/site/.secrets/mesos-tls/ca.pem", "sha256": "3" * 64},
        "certificates": {name: pair(name) for name in (host, f"{host}-executor")},
    }
    wanted = {"host": host, "tls": tls, "certificates": made, **changes}
    if program == "master":
        wanted = {"members": [{"name": "m1"}], **wanted}
    return MAKE[program](**wanted)


def runs(mode: str, **changes: Any) -> dict[str, Any]:
    """A host on which the program runs with a mode."""
    return node(running=True, environment={"MESOS_PORT": "5050", **MODES[mode]}, stale=False, executors={}, **changes)


def around(**modes: str) -> dict[str, dict[str, Any]]:
    """All of HOSTS, each running as told, with downgrade where nothing is."""
    found: dict[str, dict[str, Any]] = {}
    for program, hosts in HOSTS.items():
        for host in hosts:
            mode = modes.get(f"{program}_{host}", modes.get("all", "downgrade"))
            found.setdefault(host, {})[mesos_tls.NODES[program]] = runs(mode)
    return found


def said(program: str, mode: str, before: str, hosts: dict[str, Any], **changes: Any) -> str:
    problems = sentences(plan(params(program, mode, node=runs(before, **changes)), hosts))
    assert all("To do: " in one for one in problems)
    return " | ".join(problems)


@pytest.mark.parametrize("program", ["master", "agent", "marathon"])
def test_both_are_spoken_first_and_then_only_tls_and_only_with_those_who_prove_themselves(program: str) -> None:
    for mode in ("downgrade", "required"):
        found = plan(params(program, mode))
        assert found["problems"] == []
        told = variables(found, ENVIRONMENTS[program])
        assert mesos_replace.tls_mode(told) == mode
        assert (told["LIBPROCESS_SSL_CERT_FILE"], told["LIBPROCESS_SSL_KEY_FILE"], told["LIBPROCESS_SSL_CA_FILE"]) == (
            "/etc/tls/certificate.pem",
            "/etc/tls/key.pem",
            "/etc/tls-ca.pem",
        )
        assert ("LIBPROCESS_SSL_VERIFY_SERVER_CERT" in told) == (mode == "required")
        # None of what libprocess offers by itself is taken by today's clients.
        assert "ECDHE-RSA-AES128-GCM-SHA256" in told["LIBPROCESS_SSL_CIPHERS"]
        key = file(found, "/etc/tls/key.pem")
        assert (key["mode"], key["sensitive"]) == ("0600", True)
        assert file(found, "/etc/tls")["mode"] == "0750"
        assert file(found, "/etc/tls-ca.pem")["mode"] == "0644"
    assert "SSL" not in str(plan(params(program, "off"))["files"])


def test_an_old_mesos_knows_the_old_name() -> None:
    assert "LIBPROCESS_SSL_VERIFY_CERT" in mesos_tls.libprocess("required", "/d", "1.9.0")
    assert "LIBPROCESS_SSL_VERIFY_SERVER_CERT" not in mesos_tls.libprocess("required", "/d", "1.9.0")


def test_no_key_is_in_what_is_written_or_shown() -> None:
    found = plan(params("agent", "required"))
    assert "PRIVATE KEY" not in json.dumps(found)
    assert all("content" not in row for row in found["files"] if row["path"].endswith("key.pem"))


def test_executors_get_a_key_that_tasks_may_read_and_not_the_agents() -> None:
    found = plan(params("agent", "required"))
    line = next(row for row in file(found, "/etc/agent.env")["content"].splitlines() if "EXECUTOR_ENV" in row)
    told = json.loads(line.partition("=")[2].strip('"').replace('\\"', '"'))
    assert mesos_replace.tls_mode(told) == "required"
    assert told["LIBPROCESS_SSL_KEY_FILE"] == "/etc/tls/executor-key.pem"
    key = file(found, "/etc/tls/executor-key.pem")
    assert (key["mode"], key["group"], key["owner"], key["sensitive"]) == ("0640", "tasks", "root", True)
    assert key["source"].endswith("gpu1-executor-key.pem")
    assert file(found, "/etc/tls")["group"] == "tasks"


def test_what_the_operator_says_himself_does_not_contradict() -> None:
    by_hand = {"LIBPROCESS_SSL_ENABLED": "true", "LIBPROCESS_SSL_CERT_FILE": "/c", "LIBPROCESS_SSL_KEY_FILE": "/k"}
    # As it was before there was a variable for it.
    assert plan(params("agent", "off", libprocess=by_hand, node=runs("required")))["problems"] == []
    problems = " | ".join(sentences(plan(params("agent", "downgrade", libprocess=by_hand))))
    assert "LIBPROCESS_SSL_KEY_FILE follows from mesos_common_tls" in problems
    assert plan(params("agent", "downgrade", libprocess={"LIBPROCESS_SSL_CIPHERS": "AES256-SHA"}))["problems"] == []
    lacking = {"executor_environment_variables": '{"LANG": "C"}'}
    problems = " | ".join(sentences(plan(params("agent", "required", flags=lacking))))
    assert "has no LIBPROCESS_SSL_CA_FILE" in problems
    whole = {**mesos_tls.libprocess("required", "/etc/tls", "1.11.0", "executor-"), "LANG": "C"}
    assert plan(params("agent", "required", flags={"executor_environment_variables": whole}))["problems"] == []


@pytest.mark.parametrize("program", ["master", "agent", "marathon"])
@pytest.mark.parametrize(("before", "after"), [("off", "required"), ("required", "off")])
def test_nobody_goes_from_one_end_to_the_other_in_one_step(program: str, before: str, after: str) -> None:
    text = said(program, after, before, around())
    assert f"{program} runs with {before}" in text
    assert f"set mesos_common_tls: downgrade, run `gpuops up --tags scheduler` for all hosts, then set {after}" in text
    # What does not run meets nobody.
    assert plan(params(program, after, node=node(environment=MODES[before])), around(all=after))["problems"] == []


@pytest.mark.parametrize("after", ["off", "required"])
@pytest.mark.parametrize("program", ["master", "agent", "marathon"])
def test_by_way_of_downgrade_all_is_well(program: str, after: str) -> None:
    assert said(program, "downgrade", "off", around(all="off")) == ""
    assert said(program, "downgrade", "required", around(all="required")) == ""
    assert said(program, after, "downgrade", around()) == ""
    # Some are there already, and this one was cut after its files were written.
    assert said(program, after, "downgrade", around(master_m1=after)) == ""
    assert said(program, after, after, around(agent_gpu2="downgrade")) == ""


@pytest.mark.parametrize(
    ("program", "there"),
    [("master", "agent_gpu2"), ("master", "marathon_m1"), ("agent", "master_m1"), ("marathon", "master_m1")],
)
def test_one_that_lags_behind_holds_those_who_talk_with_it(program: str, there: str) -> None:
    kind, _, host = there.partition("_")
    assert f"{kind} on {host} runs with off" in said(program, "required", "downgrade", around(**{there: "off"}))


def test_a_part_of_the_cluster_does_not_go_on_alone() -> None:
    only = {"m1": around()["m1"]}
    text = said("master", "required", "downgrade", only)
    assert "it is unknown how gpu1, gpu2 runs" in text
    assert "without --limit" in text
    # One that is there needs the others no more; agents need only the masters.
    assert said("master", "required", "required", only) == ""
    assert said("agent", "required", "downgrade", only) == ""
    # The first look at the masters comes before that at the agents.
    first = params("master", "required", node=runs("downgrade"))
    first["tls"]["whole"] = False
    assert plan(first, only)["problems"] == []


def test_settings_that_no_program_was_started_with_do_not_count() -> None:
    late = {**runs("downgrade"), "stale": True}
    (text,) = sentences(plan(params("master", "required", node=late), around()))
    assert "master was not restarted since its settings changed" in text
    others = around()
    others["gpu2"]["mesos_agent_node"]["stale"] = True
    assert "agent on gpu2 was not restarted" in said("master", "required", "downgrade", others)
    # Those of a run to the same end that was cut do.
    cut = {**runs("required"), "stale": True}
    assert plan(params("master", "required", node=cut), around())["problems"] == []


def test_tasks_that_an_agent_could_not_reach_any_more_hold_it() -> None:
    for before, after in (("off", "required"), ("required", "off")):
        old = {**runs("downgrade"), "executors": {before: 2, "downgrade": 1}}
        (text,) = sentences(plan(params("agent", after, node=old), around()))
        assert f"2 executors were started with {before}" in text
        assert "drain the agent" in text
        assert plan(params("agent", "downgrade", node=old), around())["problems"] == []
        new = {**runs("downgrade"), "executors": {"downgrade": 3, after: 1}}
        assert plan(params("agent", after, node=new), around())["problems"] == []


def test_what_yaml_makes_of_a_word_without_quotes_is_refused() -> None:
    (text,) = sentences(plan(params("agent", False)))  # type: ignore[arg-type]
    assert 'mesos_common_tls is False. To do: give "off", with quotes' in text
    for program in ("master", "agent", "marathon"):
        (text,) = sentences(plan(params(program, "off", authentication=False)))
        assert 'mesos_common_authentication is False. To do: give "off", with quotes, or required or offered' in text


def test_an_agent_outside_of_the_group_is_told_so() -> None:
    lacking = {"authority": {"path": "/ca", "sha256": "3" * 64}, "certificates": {"gpu1": pair("gpu1")}}
    (text,) = sentences(plan(params("agent", "downgrade", certificates=lacking)))
    assert "gpu1-executor has no certificate. To do: add the host to the group mesos_agents" in text


def test_masters_have_another_url_once_they_speak_nothing_else() -> None:
    hosts = {"m1": {"mesos_common_tls": "required"}, "m2": {"mesos_master_params": {"tls": {"mode": "downgrade"}}}}
    urls = [row["url"] for row in members(["m1", "m2"], hosts, "master", 5050)]
    assert urls == ["https://m1:5050", "http://m2:5050"]
    assert members(["m1"], hosts, "marathon", 8080)[0]["url"] == "http://m1:8080"


def test_executors_are_known_by_the_variables_of_their_processes(tmp_path: Any) -> None:
    work, proc = tmp_path / "work", tmp_path / "proc"
    for number, environ in enumerate(["A=b", "LIBPROCESS_SSL_ENABLED=true\0X=y", ""], 101):
        run = work / f"meta/slaves/S1/frameworks/f/executors/e{number}/runs/r"
        (run / "pids").mkdir(parents=True)
        (run / "pids/forked.pid").write_text(str(number))
        (proc / str(number) / "task" / str(number)).mkdir(parents=True)
        (proc / str(number) / "environ").write_text(environ)
    # The last is a helper, and what it helps has the variables.
    (proc / "103/task/103/children").write_text("104 ")
    (proc / "104").mkdir()
    (proc / "104/environ").write_text("LIBPROCESS_SSL_ENABLED=true\0LIBPROCESS_SSL_SUPPORT_DOWNGRADE=true")
    assert mesos_node.executors(str(work), "S1", str(proc)) == {"off": 1, "required": 1, "downgrade": 1}
    assert mesos_node.executors(str(work), None, str(proc)) == {}


def test_a_program_is_stale_when_it_was_started_with_other_settings(tmp_path: Any) -> None:
    settings, stamp = tmp_path / "master.env", tmp_path / "started"
    settings.write_text("A=1\n")
    assert mesos_node.is_stale(str(settings), str(stamp))
    stamp.write_text(f"{hashlib.sha256(settings.read_bytes()).hexdigest()}  {settings}\n")
    assert not mesos_node.is_stale(str(settings), str(stamp))
    settings.write_text("A=2\n")
    assert mesos_node.is_stale(str(settings), str(stamp))
