# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of ready-made apps and of an operator: the recorded answers, through Ansible."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.mesos_operator import desired
from tests.unit.plugins.plugin_utils.desired.role_site import canonical, documents, evaluate

CASES = documents("marathon_apps")


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    sites = [{**case, "values": {"m1": {"plan": "__marathon_apps_plan"}}} for case in CASES.values()]
    return dict(zip(CASES, evaluate(["marathon_apps", "mesos_common"], sites), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_role_gives_the_recorded_plan(name: str, plans: dict[str, Any]) -> None:
    plan, recorded = plans[name]["m1"]["plan"], CASES[name]["plans"]["m1"]
    for app in plan["apps"]:
        if "GPU_QUERY" in app.get("env", {}):
            # As long as the file itself.
            with open(cuda_driver.__file__, encoding="utf-8") as file:
                assert app["env"]["GPU_QUERY"] == file.read()
            app["env"]["GPU_QUERY"] = "(the query)"
    assert canonical({key: plan[key] for key in recorded}) == canonical(recorded)


def operator(**changes: Any) -> dict[str, Any]:
    params = {
        "masters": [],
        "masters_group": "mesos_masters",
        "principal": "operator",
        "secret": "",
        "credentials": {},
        "kept": {"operator": "of the file"},
        **changes,
    }
    hostvars = {"m1": {"ansible_host": "192.0.2.11", "mesos_master_port": 5055}}
    return desired(params, {}, {"groups": {"mesos_masters": ["m1"]}, "hostvars": hostvars}).as_dict()


def test_an_operator_asks_the_masters_of_the_group_or_those_that_are_given() -> None:
    assert operator()["masters"] == ["http://192.0.2.11:5055"]
    assert operator(masters=["http://x:5050"])["masters"] == ["http://x:5050"]


def test_the_secret_is_that_of_the_variable_then_of_the_inventory_then_of_the_file() -> None:
    credentials = {"operator": "of the inventory"}
    assert operator(secret="given", credentials=credentials)["secret"] == "given"
    assert operator(credentials=credentials)["secret"] == "of the inventory"
    assert operator()["secret"] == "of the file"
    assert operator(kept={})["principal"] == ""


def test_an_operator_without_masters_is_refused_with_the_remedy() -> None:
    (problem,) = operator(masters_group="nobody")["problems"]
    assert "no host is in the group nobody" in problem["cause"]
    assert "URLs of the masters" in problem["remedy"]
