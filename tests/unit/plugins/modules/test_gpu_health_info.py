# SPDX-License-Identifier: GPL-3.0-or-later
"""The module on whatever machine the tests run on, and with a look that is made up."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from ansible_collections.baremetal.gpu.plugins.modules import gpu_health_info
from tests.unit.plugins.health_host import Host


def run(capsys, arguments, check_mode=False):
    with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit) as stop:
        gpu_health_info.main()
    return {**json.loads(capsys.readouterr().out), "rc": stop.value.code}


@pytest.fixture
def host(monkeypatch):
    host = Host(gpus=2)
    monkeypatch.setattr(health_probe, "look", lambda *_arguments: host.snapshot())
    return host


@pytest.mark.parametrize("check_mode", [False, True])
def test_it_answers_on_any_machine(capsys, check_mode):
    answer = run(capsys, {}, check_mode)
    assert (answer["rc"], answer["changed"]) == (0, False)
    assert answer["health"]["verdict"] in ("ok", "degraded", "fatal", "unknown")


def test_a_sick_gpu_does_not_fail_the_module(capsys, host):
    host.change("remapped_rows", device=1, failure=True)
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
    assert {row["checks"]["xid_fatal"] for row in answer["health"]["devices"]} == {"unknown"}
    assert answer["health"]["checks"]["sxid_fatal"] in ("unknown", "not_applicable")


def agent_says(monkeypatch, verdict, gpus, error=None):
    devices = [
        {"uuid": row["uuid"], "pci_address": row["pci_address"], "verdict": one}
        for row, one in zip(Host(gpus=3).devices, gpus, strict=False)
    ]
    result = None if error else {"health": {"verdict": verdict, "devices": devices}}
    monkeypatch.setattr(health_facts, "of_agent", lambda: (result, error))


def test_a_host_without_an_agent_has_its_look_only(capsys, host, monkeypatch):
    monkeypatch.setattr(health_facts, "of_agent", lambda: (None, None))
    answer = run(capsys, {"kernel_log": False})
    assert (answer["health"]["verdict"], answer["agent"]) == ("ok", None)


def test_a_look_finds_nothing_well_that_the_agent_does_not(capsys, host, monkeypatch):
    """A third GPU has vanished, and the second had an Xid that the log has no more."""
    agent_says(monkeypatch, "fatal", ["ok", "degraded", "fatal"])
    answer = run(capsys, {"kernel_log": False})
    assert answer["agent"] == {"verdict": "fatal", "error": None}
    assert answer["health"]["verdict"] == "unknown"
    assert [row["verdict"] for row in answer["health"]["devices"]] == ["ok", "unknown"]


def test_what_a_look_finds_wrong_stays_wrong_whatever_the_agent_says(capsys, host, monkeypatch):
    host.change("remapped_rows", device=1, failure=True)
    agent_says(monkeypatch, "ok", ["ok", "ok"])
    answer = run(capsys, {"kernel_log": False})
    assert (answer["health"]["verdict"], answer["agent"]["verdict"]) == ("fatal", "ok")


def test_an_agent_that_cannot_be_heard_is_told(capsys, host, monkeypatch):
    agent_says(monkeypatch, None, [], error="the report cannot be used: it is of another boot")
    answer = run(capsys, {"kernel_log": False})
    assert answer["agent"] == {"verdict": None, "error": "the report cannot be used: it is of another boot"}
    assert answer["health"]["verdict"] == "unknown"
    assert [row["verdict"] for row in answer["health"]["devices"]] == ["unknown", "unknown"]
