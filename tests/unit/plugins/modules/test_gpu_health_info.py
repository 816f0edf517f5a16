# SPDX-License-Identifier: GPL-3.0-or-later
"""The module on whatever machine the tests run on, and with a look that is made up."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils import health_probe
from ansible_collections.baremetal.gpu.plugins.modules import gpu_health_info
from tests.unit.plugins.health_host import Host


def run(capsys, arguments, check_mode=False):
    with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit) as stop:
        gpu_health_info.main()
    return {**json.loads(capsys.readouterr().out), "rc": stop.value.code}


@pytest.fixture
def host(monkeypatch):
    host = Host(cards=2)
    monkeypatch.setattr(health_probe, "look", lambda *_arguments: host.snapshot())
    return host


@pytest.mark.parametrize("check_mode", [False, True])
def test_it_answers_on_any_machine(capsys, check_mode):
    answer = run(capsys, {}, check_mode)
    assert (answer["rc"], answer["changed"]) == (0, False)
    assert answer["health"]["verdict"] in ("ok", "degraded", "fatal", "unknown")


def test_a_sick_card_does_not_fail_the_module(capsys, host):
    host.change("remapped_rows", card=1, failure=True)
    answer = run(capsys, {"kernel_log": False})
    assert answer["rc"] == 0
    assert answer["health"]["verdict"] == "fatal"
    (reason,) = answer["health"]["devices"][1]["reasons"]
    assert (reason["code"], reason["action"]) == ("row_remap_failed", "rma")


def test_the_policy_counts(capsys, host):
    host.change("pcie", width=8)
    assert run(capsys, {})["health"]["verdict"] == "degraded"
    checks = {"pcie_width": {"verdict": "ignore"}}
    assert run(capsys, {"policy": {"checks": checks}})["health"]["verdict"] == "ok"


def test_a_wrong_policy_is_refused_with_key_value_and_remedy(capsys):
    answer = run(capsys, {"policy": {"expected": {"gpus": "eight"}}})
    assert answer["failed"] is True
    assert "expected.gpus is 'eight': give a whole number of 0 or more" in answer["msg"]


def test_a_log_that_cannot_be_read_is_told(capsys, host, monkeypatch):
    def refuse(_path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(health_probe.kernel_log, "read", refuse)
    assert run(capsys, {"kernel_log": False})["log_error"] is None
    answer = run(capsys, {})
    assert answer["log_error"] == (
        "/dev/kmsg cannot be read (Operation not permitted), so Xids are not judged; ask as root"
    )
    assert answer["health"]["verdict"] == "ok"
