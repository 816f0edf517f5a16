# SPDX-License-Identifier: GPL-3.0-or-later
"""The module: what it tells Ansible, and that nodes follow the instances."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, mig
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.modules import gpu_mig

LAYOUT = {"all": {"1g.10gb": 7}}
BUSY = Problem("instance_in_use", "GPU-1", "1g.10gb at 0 of GPU 0 is in use", "", "end these processes first")


@pytest.fixture
def module(monkeypatch, capsys):
    """module(result) runs with what bring_about gives; `module.made` are the nodes that were made."""
    made: list[list[str]] = []
    monkeypatch.setattr(device_nodes, "expected_nodes", lambda: ["cap12"])
    monkeypatch.setattr(device_nodes, "may_modify", lambda: True)
    monkeypatch.setattr(device_nodes, "compare", lambda nodes: [node for node in nodes if made.count(nodes) == 0])
    monkeypatch.setattr(device_nodes, "create", made.append)

    def run(result, check_mode=False, **arguments):
        def bring_about(*_args, **_options):
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(mig, "bring_about", bring_about)
        given = {"layout": LAYOUT, **arguments, "_ansible_check_mode": check_mode, "_ansible_diff": True}
        with patch_module_args(given), pytest.raises(SystemExit):
            gpu_mig.main()
        return json.loads(capsys.readouterr().out)

    run.made = made
    return run


def test_instances_get_their_nodes_and_a_second_run_changes_nothing(module):
    done = module(mig.Result(True, ["create 1g.10gb at 0"], [], "before\n", "after\n"))
    assert (done["changed"], done["steps"], module.made) == (True, ["create 1g.10gb at 0"], [["cap12"]])
    assert (done["diff"]["before"], done["diff"]["after"]) == ("before\n", "after\n")
    assert module(mig.Result())["changed"] is False
    assert module.made == [["cap12"]]


def test_nodes_that_are_missing_beside_right_instances_are_a_change(module):
    assert module(mig.Result())["changed"] is True


def test_check_mode_makes_no_node(module):
    assert module(mig.Result(True, ["switch MIG on"]), check_mode=True)["changed"] is True
    assert module.made == []


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_is_refused_says_that_nothing_was_changed(module, check_mode):
    answer = module(mig.Result(problems=[BUSY]), check_mode)
    assert (answer["failed"], answer["problems"][0]["code"], module.made) == (True, "instance_in_use", [])
    assert "Nothing was changed." in answer["msg"]
    wrong = module(mig.Result(), check_mode, layout={"all": {"x": 1}})
    assert (wrong["failed"], wrong["problems"][0]["code"]) == (True, "wrong_layout")


def test_without_a_driver_check_mode_announces_and_a_run_fails(module):
    refused = Refused("NVML cannot be used: Driver Not Loaded", "load it", code="nvml_failed")
    announced = module(refused, check_mode=True)
    assert (announced["changed"], announced.get("failed")) == (True, None)
    assert module(refused)["problems"][0]["code"] == "nvml_failed"
