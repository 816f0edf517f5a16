# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an agent counts as ready, asked as the role asks it, of agents that a master takes and that it does not.

Each of them knows of the leader, and says `slave/registered` 1.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.units import Unit
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import arguments as mesos_arguments
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Operator, http_transport
from ansible_collections.baremetal.gpu.plugins.modules import mesos_ready_info
from tests.unit.simulators.mesos_cluster import Cluster, Program, free_port, until


class Guarded(Cluster):
    """A master that wants a login of agents, and of who reads."""

    def __init__(self, base):
        rows = [{"principal": "mesos-agent", "secret": "s3cret"}]
        (base / "credentials").write_text(json.dumps({"credentials": rows}))
        flags = ["authenticate_agents", "authenticate_http_readonly", f"credentials={base}/credentials"]
        super().__init__(base, *[f"--{flag}" for flag in flags])

    def one(self, name: str, secret: str, **env: str) -> int:
        """An agent, and its port once it knows of the leader; with no secret it has no login."""
        port, words = free_port(), []
        if secret:
            path = self.base / f"{name}.json"
            path.write_text(json.dumps({"principal": "mesos-agent", "secret": secret}))
            words = [f"--credential={path}"]
        known = [f"--master=127.0.0.1:{self.port}", f"--work_dir={self.base}/{name}", f"--port={port}"]
        self.agents.append(Program("agent", [*known, "--ip=127.0.0.1", f"--hostname={name}", *words], env))
        return port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    one = Guarded(tmp_path_factory.mktemp("ready"))
    yield one
    one.stop()


@pytest.fixture
def ready(cluster, capsys):
    def ask(port: int, **more: Any) -> dict[str, Any]:
        given = {
            "program": "agent",
            "members": [{"name": "gpu1", "url": f"http://127.0.0.1:{port}"}],
            "masters": [cluster.url],
            "masters_user": "mesos-agent",
            "masters_password": "s3cret",
            **more,
        }
        with patch_module_args(given), pytest.raises(SystemExit):
            mesos_ready_info.main()
        return dict(json.loads(capsys.readouterr().out))

    return ask


def test_an_agent_that_the_master_takes_is_ready(cluster, ready):
    port = cluster.one("taken", "s3cret")
    assert ready(port, wait=60)["problems"] == []
    # Who asks the masters shows a login too, and it is not in what is told.
    refused = ready(port, masters_password="guessed")
    assert "check principal and secret" in refused["problems"][0]
    assert "guessed" not in json.dumps(refused["problems"])


@pytest.mark.parametrize(
    ("secret", "env"),
    [("", {}), ("s3cret", {"STAND_IN_SASL": "no"})],
    ids=["without a login", "without the plugin of SASL"],
)
def test_an_agent_that_tries_for_ever_is_not_ready(cluster, ready, request, secret, env):
    port = cluster.one(f"stranger-{request.node.callspec.indices['secret']}", secret, **env)
    # It answers, and knows of a leader.
    (told,) = until(lambda: [text for text in ready(port)["problems"] if "Connection refused" not in text])
    assert "it is not registered with a leading master" in told


def test_an_agent_with_a_wrong_secret_ends_and_is_not_ready(cluster, ready):
    port = cluster.one("wrong", "guessed")
    assert cluster.agents[-1].ended()[0] == 1
    assert ready(port)["complete"] is False


def test_an_agent_that_was_marked_gone_is_named_as_that(cluster, ready, monkeypatch):
    port = cluster.one("lost", "s3cret")
    assert ready(port, wait=60)["complete"]
    work = cluster.base / "lost"
    agent_id = os.readlink(work / "meta/slaves/latest")
    credentials = {"principal": "mesos-agent", "secret": "s3cret"}
    Operator([cluster.url], http_transport(10), *credentials.values()).gone(agent_id)
    status = cluster.agents[-1].ended()[0]
    assert status == 0
    said = f"ActiveState=inactive\nExecMainCode=1\nExecMainStatus={status}\n"
    monkeypatch.setattr(host_run, "run", lambda *_words: (0, said, ""))
    refused, why = ready(port, unit="mesos-agent.service", work_dir=str(work))["problems"]
    assert "Connection refused" in refused
    assert f"mesos-agent.service ended by itself with 0 and kept its id {agent_id}" in why
    assert "marked gone" in why
    assert f"'rm {work}/meta/slaves/latest'" in why


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ActiveState=failed\nExecMainCode=1\nExecMainStatus=127\n", "is failed, and its program ended with 127"),
        ("ActiveState=failed\nExecMainCode=2\nExecMainStatus=9\n", "is failed"),
        # Somebody stopped it, or it never ran.
        ("ActiveState=inactive\nExecMainCode=2\nExecMainStatus=15\n", "is inactive"),
        ("ActiveState=inactive\nExecMainCode=0\nExecMainStatus=0\n", "is inactive"),
        ("ActiveState=active\nExecMainCode=0\nExecMainStatus=0\n", ""),
        ("", ""),
    ],
)
def test_how_a_unit_ended_is_told(tmp_path, said, words):
    (tmp_path / "meta/slaves/S1").mkdir(parents=True)
    (tmp_path / "meta/slaves/latest").symlink_to("S1")
    unit = Unit("x.service", lambda *_words: (0, said, ""))
    assert mesos_arguments.how_ended(unit, str(tmp_path)) == (words and f"x.service {words}")


def test_an_agent_without_a_checkpoint_was_not_marked_gone(tmp_path):
    said = "ActiveState=inactive\nExecMainCode=1\nExecMainStatus=0\n"
    unit = Unit("x.service", lambda *_words: (0, said, ""))
    assert mesos_arguments.how_ended(unit, str(tmp_path)) == "x.service is inactive, and its program ended with 0"


def test_the_end_of_a_log_is_not_what_checks_have_asked():
    asked = [
        "I1129 11:59:01.000000 7 http.cpp:1115] HTTP GET for /slave(1)/state from 127.0.0.1:4711 with User-Agent='x'",
        '127.0.0.1 - - [29/Nov/2026:11:59:01 +0000] "GET /v2/info HTTP/1.1" 200 1024 "-" "Python-urllib"',
        "2026-11-29 11:59:01,000 [myid:1] - INFO  [NIOWorkerThread-1:NIOServerCnxn@518] - Processing srvr command from "
        "/127.0.0.1:4711",
    ]
    said = ["Failed to recover: no quorum", "Aborted (core dumped)"]
    log = "\n".join([*(f"line {number}" for number in range(40)), *said, *(asked * 20)]) + "\n"
    calls = []

    def run(argv, _stdin, _timeout):
        calls.append(argv)
        return 0, log, ""

    told = Unit("mesos-master.service", run).journal()
    assert told.endswith("line 39 | Failed to recover: no quorum | Aborted (core dumped)")
    assert not any(word in told for word in ("HTTP", "srvr"))


def test_the_age_of_a_unit_is_that_of_its_last_start():
    def systemd(since: float, state: str = "active") -> Unit:
        said = f"ActiveState={state}\nActiveEnterTimestampMonotonic={int(since * 1e6)}\n"
        return Unit("x.service", lambda argv, _stdin, _timeout: (0, said, ""))

    age = systemd(time.monotonic() - 30).up_s()
    assert age is not None
    assert 29 < age < 300
    assert systemd(0, "activating").up_s() is None
    assert Unit("x.service", lambda *_: (1, "", "no such unit")).up_s() is None


def test_the_age_of_a_unit_that_systemd_does_not_know_is_none():
    assert Unit("no-such-thing-as-this.service", host_run.run).up_s() is None
