# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a server of ZooKeeper: the recorded documents, through Ansible, and what it shows to other hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.zookeeper import desired
from tests.unit.plugins.plugin_utils.desired.role_site import canonical, documents, evaluate

CASES = documents("zookeeper")
FACTS = {"zookeeper_params": "__zookeeper_plan['shared'] | default({})"}


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    """The plans of the hosts of each case, as the role makes them."""
    sites = [
        {**case, "facts": FACTS, "values": {host: {"plan": "__zookeeper_plan"} for host in case["plans"]}}
        for case in CASES.values()
    ]
    return dict(zip(CASES, evaluate(["zookeeper"], sites), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_role_gives_the_recorded_plan(name: str, plans: dict[str, Any]) -> None:
    for host, recorded in CASES[name]["plans"].items():
        plan = plans[name][host]["plan"]
        assert canonical({key: plan[key] for key in recorded}) == canonical(recorded)


def plan_of(name: str, *unseen: str) -> dict[str, Any]:
    """The plan of the first host of a case, by the function alone; nobody has looked at the hosts `unseen`."""
    case = CASES[name]
    host = next(iter(case["hosts"]))
    rows = {key: {k: v for k, v in row.items() if key not in unseen} for key, row in case["hosts"].items()}
    defaults = dict.fromkeys(("archive_url", "archive_path", "archive_sha256", "quorum_password", "log_dir"), "")
    given = {key.removeprefix("zookeeper_"): value for key, value in case["hosts"][host].items()}
    params: dict[str, Any] = {
        "state": "present",
        "group": "zookeeper",
        "address": case["hosts"][host]["ansible_host"],
        "id": 0,
        **{key: [] for key in ("removed_ids", "chroots", "words", "jvm_flags")},
        **{key: {} for key in ("users", "options")},
        **dict.fromkeys(("client_auth", "quorum_auth"), "off"),
        **defaults,
        "method": "package",
        "data_dir": "/var/lib/zookeeper",
        "client_address": "",
        "client_port": 2181,
        "peer_port": 2888,
        "election_port": 3888,
        **dict.fromkeys(
            ("heap_mib", "tick_time", "init_limit", "sync_limit", "max_client_connections", "snapshots_kept"), 5
        ),
        "purge_interval": 24,
        **given,
    }
    peers = {"host": host, "groups": case["groups"], "hostvars": rows}
    return desired(params, case["hosts"][host]["ansible_facts"], peers).as_dict()


def test_what_other_hosts_plan_with_holds_no_secret() -> None:
    shared = plan_of("an archive of the controller with users and logins")["shared"]
    text = json.dumps(shared)
    for secret in ("word1", "quorum-secret"):
        assert secret not in text
    assert (shared["user_names"], shared["has_quorum_password"]) == (["mesos"], True)


def test_a_host_has_no_id_before_somebody_has_looked_at_it() -> None:
    plan = plan_of("three Debian hosts with the package", "zk1", "zk2", "zk3")
    assert (plan["id"], plan["desired"], plan["problems"]) == (0, {}, [])
    assert len(plan["members"]) == 3


def test_a_host_that_loses_its_server_needs_no_settings_of_others() -> None:
    params = {"state": "absent", "data_dir": "/data", "log_dir": "", "purge": []}
    plan = desired(params, {}, {"host": "zk1", "groups": {}, "hostvars": {}})
    assert "/data" not in {row["path"] for row in plan.desired["files"]}
