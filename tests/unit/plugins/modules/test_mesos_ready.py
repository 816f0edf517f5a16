# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an agent counts as ready, asked as the role asks it, of agents that a master takes and that it does not.

Each of them knows of the leader, and says `slave/registered` 1.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.units import Unit
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
