# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of masters, agents and Marathons: the recorded documents, through Ansible, and what they show to others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.mesos_common import desired
from tests.unit.plugins.plugin_utils.desired.role_site import canonical, documents, evaluate

ROLES = ("mesos_master", "mesos_agent", "marathon")
CASES = {role: documents(role) for role in ROLES}
NAMES = [(role, name) for role in ROLES for name in CASES[role]]
SECRETS = ("secret-agent", "secret-marathon", "secret-operator", "secret-http", "zk-password")

Answers = dict[str, dict[str, Any]]


def site(role: str, case: dict[str, Any]) -> dict[str, Any]:
    """What is to be evaluated for a case, after each host has kept its settings for the others."""
    hosts = {name: {**row, "mesos_common_node": row.get(f"{role}_node", {})} for name, row in case["hosts"].items()}
    shared = {} if role == "mesos_agent" else {f"{role}_params": f"__{role}_plan['shared']"}
    task = {"mesos_common_further": ["http:operator"] if role == "marathon" else []}
    expressions = {"plan": f"__{role}_plan", "common": "__mesos_common_plan", "job": f"__{role}_job"}
    return {
        "hosts": hosts,
        "groups": case["groups"],
        "facts": shared,
        "task": task,
        "values": dict.fromkeys(case["plans"], expressions),
    }


@pytest.fixture(scope="module")
def answers() -> dict[str, Answers]:
    """By role and case: the plans of the hosts, as the roles make them."""
    return {
        role: dict(
            zip(
                CASES[role],
                evaluate([role, "mesos_common"], [site(role, case) for case in CASES[role].values()]),
                strict=True,
            )
        )
        for role in ROLES
    }


@pytest.mark.parametrize(("role", "name"), NAMES)
def test_the_role_gives_the_recorded_plan(role: str, name: str, answers: dict[str, Answers]) -> None:
    case = CASES[role][name]
    for host, recorded in case["plans"].items():
        answer = answers[role][name][host]
        assert canonical({key: answer["plan"][key] for key in recorded}) == canonical(recorded)
        common = case["common"].get(host, {})
        assert canonical({key: answer["common"][key] for key in common}) == canonical(common)
        job = answer["job"]
        assert (job["stage"], job["desired"]) == (role, answer["plan"]["desired"])
        for key in ("programs", "libraries", "user", "directory"):
            assert job[key] == answer["plan"][key]


@pytest.mark.parametrize(("changed", "waits"), [({}, True), ({"gpu_reconciler_state": "absent"}, False)])
def test_a_list_of_gpus_is_left_to_a_reconciler_that_is_there(changed: dict[str, str], waits: bool) -> None:
    case = CASES["mesos_agent"]["the reconciler has the list of GPUs"]
    hosts = {**case["hosts"], "m1": {**case["hosts"]["m1"], **changed}}
    (found,) = evaluate(["mesos_agent", "mesos_common"], [site("mesos_agent", {**case, "hosts": hosts})])
    assert any("is left to the reconciler" in text for text in found["gpu1"]["plan"]["remarks"]) == waits


@pytest.mark.parametrize("role", ["mesos_master", "marathon"])
def test_what_other_hosts_plan_with_holds_no_secret(role: str, answers: dict[str, Answers]) -> None:
    for name, hosts in answers[role].items():
        for row in hosts.values():
            shared = json.dumps(row["plan"]["shared"])
            assert not [secret for secret in SECRETS if secret in shared], name


@pytest.mark.parametrize(("role", "name"), NAMES)
def test_a_file_with_a_secret_is_marked_as_one(role: str, name: str) -> None:
    for row in CASES[role][name]["plans"].values():
        for file in row.get("desired", {}).get("files", []):
            if any(secret in str(file.get("content", "")) for secret in SECRETS):
                assert (file["sensitive"], file["mode"]) == (True, "0600")


def common(family: str, **changes: Any) -> dict[str, Any]:
    """The parts of mesos_common alone, for a host of no group."""
    params: dict[str, Any] = {
        "method": "archive",
        "sha256": "ab" * 32,
        "prefix": "/usr",
        "authentication": "required",
        "credentials": {},
        "secrets": {},
        "zookeeper": ["zk1:2181", "zk2:2181", "[2001:db8::1]:2181"],
        "address": "zk1",
        "principals": ["spark"],
        "further": [],
        "tls_files": {},
        "tls_path": "/srv/tls",
        "node": {},
        "agent_hostname": "gpu1",
        **changes,
    }
    peers = {"host": "gpu1", "groups": {}, "hostvars": {}}
    return desired(params, {"os_family": family}, peers).as_dict()


def test_programs_of_an_archive_are_below_their_own_directory() -> None:
    assert common("Debian")["below"] == "/opt/mesos/abababababab"
    assert common("Debian", method="package")["below"] == "/usr"


def test_names_are_those_of_the_servers_without_ports_each_once() -> None:
    assert common("RedHat")["names"] == ["zk1", "zk2", "[2001:db8::1]"]


def test_nobody_logs_in_where_no_secret_is_shown() -> None:
    assert common("Debian", authentication="off")["operator"] == {"user": "", "password": ""}
    assert common("Debian", credentials={"operator": "s"})["operator"] == {"user": "operator", "password": "s"}


def test_certificates_of_the_operator_are_taken_where_he_has_them() -> None:
    mine = common("Debian", tls_files={"authority": "/a.pem", "certificate": "/c.pem", "key": "/k.pem"})
    assert mine["authority"] == "/a.pem"
    assert mine["certificates"] == [
        {"name": "gpu1", "names": ["gpu1", "zk1"], "certificate": "/c.pem", "key": "/k.pem"}
    ]
