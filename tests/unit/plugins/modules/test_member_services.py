# SPDX-License-Identifier: GPL-3.0-or-later
"""What zookeeper_service and mesos_service answer a role; the decision itself is tested with the members of each.

Systemd is hand-made here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import ensemble as zookeeper_ensemble
from ansible_collections.baremetal.gpu.plugins.modules import mesos_service, zookeeper_service

# Nothing listens at port 1.
MEMBERS = {
    "zookeeper": {"id": 1, "servers": [{"id": number, "host": "127.0.0.1", "port": 1} for number in (1, 2, 3)]},
    "master": {
        "program": "master",
        "own": "m1",
        "members": [{"name": name, "url": "http://127.0.0.1:1"} for name in ("m1", "m2")],
    },
}
MODULES = {"zookeeper": zookeeper_service, "master": mesos_service}


@pytest.fixture(params=MEMBERS)
def ask(request, tmp_path, monkeypatch, capsys):
    """Runs the module, with what systemd is to answer to is-active; `ask.done` is what systemd was told to do."""
    config = tmp_path / "config"
    config.write_text("changed\n")

    def one(is_active: int, *, check: bool = False, **more: Any) -> dict[str, Any]:
        def run(argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
            if argv[:2] == ["systemctl", "is-active"]:
                return is_active, "", ""
            if argv[0] == "may-restart":
                return 1, "", "the driver hangs"
            if argv[0] == "systemctl":
                one.done.append(argv[1])
            return 0, "the end of the log", ""

        one.done = []
        monkeypatch.setattr(host_run, "run", run)
        given = {"unit": "x.service", "files": [str(config)], "stamp": str(tmp_path / "started"), "wait": 0}
        arguments = {**given, **MEMBERS[one.kind], **more, "_ansible_check_mode": check}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            MODULES[one.kind].main()
        return dict(json.loads(capsys.readouterr().out))

    one.kind, one.done = request.param, []
    return one


@pytest.mark.parametrize("check", [True, False])
def test_one_that_does_not_run_is_started_and_the_diff_says_so(ask, check):
    told = ask(3, check=check)
    assert (told["changed"], told["action"], told["due"]) == (True, "start", False)
    assert told["diff"] == {"before": "", "after": "started\n"}
    assert ask.done == ([] if check else ["start"])


def test_one_that_does_not_join_fails_with_a_problem_that_has_its_log(ask):
    told = ask(3, join=True)
    assert told["failed"]
    assert "the end of the log" in told["problems"][0]["cause"]
    assert told["msg"].startswith("x.service")


def test_a_restart_that_a_command_holds_fails_with_what_the_command_said(ask, monkeypatch):
    monkeypatch.setattr(zookeeper_ensemble, "ELECTION_S", 0)
    told = ask(0, only="idle", may_restart=["may-restart"])
    assert told["problems"][0]["cause"] == "a restart is due and was not done: the driver hangs"
    assert ask.done == []


def test_a_host_that_is_not_among_the_members_is_named(ask):
    told = ask(3, **({"id": 9} if ask.kind == "zookeeper" else {"own": "m9"}))
    assert "9: list" in told["msg"]
    assert ask.done == []
