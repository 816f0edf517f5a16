# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role gpu_device_nodes, without a host."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.gpu_device_nodes import desired
from tests.unit.plugins.plugin_utils.desired.recorded_plans import canonical, plan_by_ansible, recorded
from tests.unit.project.tree import ROOT

ROLE = ROOT / "roles" / "gpu_device_nodes"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
PROGRAM = "/usr/libexec/baremetal-gpu/device-nodes"
SOURCE = ROOT / "plugins" / "module_utils" / "gpu" / "device_nodes.py"
# Unless they are set, they are the driver's.
SHARED = {"state": "present", "start": True}
RECORDED = recorded("gpu_device_nodes")


def plan_with(**changed: Any) -> dict[str, Any]:
    params = {**{name.removeprefix("gpu_device_nodes_"): value for name, value in DEFAULTS.items()}, **SHARED}
    assert changed.keys() <= params.keys()
    return desired({**params, **changed}, {}, {}).as_dict()


def files(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in plan["desired"]["files"]}


@pytest.mark.parametrize("case", RECORDED)
def test_the_plan_is_the_recorded_one(case: str):
    plan = plan_with(**RECORDED[case]["params"])
    for row in plan["desired"]["files"]:
        if row["path"] == PROGRAM and "content" in row:
            # The record does not repeat the program.
            row["content"] = "PROGRAM"
    parts = {name: value for name, value in plan.items() if name != "finished"}
    assert canonical(parts) == canonical(RECORDED[case]["plan"])


def test_the_tasks_of_the_role_read_this_plan_and_go_with_the_driver(tmp_path):
    driver = {"nvidia_driver_load": False}
    plan, finished = plan_by_ansible(tmp_path, "gpu_device_nodes", {}, {}, **driver)
    assert canonical(plan) == canonical(plan_with(start=False))
    assert finished == plan["finished"]


def test_the_program_on_the_host_is_the_file_that_the_modules_use():
    assert files(plan_with())[PROGRAM]["content"] == SOURCE.read_text()


@pytest.mark.parametrize(
    ("params", "nodes"),
    [({}, True), ({"start": "yes"}, True), ({"start": "no"}, False), ({"state": "absent"}, False)],
)
def test_a_finished_host_has_its_nodes_where_they_are_made_now(params: dict[str, Any], nodes: bool):
    plan = plan_with(**params)
    assert plan["finished"] == {**plan["desired"], "device_nodes": nodes}
