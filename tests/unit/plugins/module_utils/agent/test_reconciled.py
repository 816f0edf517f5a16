# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process of its own and a real ZooKeeper: what it publishes there, and what it does when it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from tests.local_zookeeper import LocalZooKeeper, NotHere
from tests.unit.plugins.simulated_host import ROOT, Looker, SimulatedHost
from tests.unit.reconcile import places

XID_79 = "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# The file tree is a plain user's, who can make no device files.
PROGRAM = """
import sys
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
snapshot.device_nodes.is_right = lambda node, root: True
sys.exit(agent_command.main(["--config", sys.argv[1], "agent"]))
"""


class Published:
    """An agent on a simulated host of two GPUs, and its part of ZooKeeper."""

    def __init__(self, base: Path, library: Path) -> None:
        self.server = LocalZooKeeper(base / "zookeeper")
        self.client = places.as_reconciler(self.server.address)
        user, password = places.make(self.client, "/gpus", "n1")
        credentials = places.private(base / "login", {"user": user, "password": password})
        host = SimulatedHost(base / "host", Looker(library, base))
        host.take("busy")
        self.environment = base / "agent.env"
        self.environment.write_text("BAREMETAL_GPU_UUIDS=GPU-1\n")
        self.log = base / "kmsg"
        os.mkfifo(self.log)
        self.writer = os.open(self.log, os.O_RDWR)
        self.state = base / "state"
        self.state.mkdir()
        settings = {
            "state_directory": str(self.state),
            "socket": str(base / "agent.sock"),
            "kernel_log": str(self.log),
            "interval_s": 0.2,
            "root": host.path,
        }
        where = {"servers": [self.server.address], "host": "n1", "path": "/gpus", "session_s": 4}
        where["credentials"] = str(credentials)
        config = base / "agent.json"
        config.write_text(
            json.dumps(
                {
                    "settings": settings,
                    "result": str(base / "gpu.json"),
                    "zookeeper": where,
                    "mesos": {"environment": str(self.environment)},
                }
            )
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, config],
            env={**host.looker.environment, "LD_LIBRARY_PATH": str(library)},
            cwd=ROOT,
            start_new_session=True,
        )

    def verdict(self) -> dict[str, Any]:
        """What is published now; empty without a session."""
        try:
            found: dict[str, Any] = json.loads(self.client.get("/gpus/hosts/n1/verdict")[0])
        except NoNodeError:
            return {}
        return found

    def verdicts(self) -> list[str]:
        return [row["verdict"] for row in self.verdict().get("devices", ())]

    def until(self, wanted: Callable[[], Any], seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := wanted()):
            assert time.monotonic() < end, json.dumps(self.verdict(), indent=1)
            time.sleep(0.05)
        return found

    def fault(self) -> None:
        os.write(self.writer, f"4,1,{int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)},-;{XID_79}\n".encode())

    def say(self, **told: Any) -> None:
        places.say(self.client, "/gpus", "n1", **told)

    def close(self) -> None:
        self.process.poll()
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.writer)
        self.client.stop()
        self.client.close()
        self.server.stop()


@pytest.fixture
def agent(tmp_path: Path, nvml_library: Path) -> Iterator[Published]:
    try:
        one = Published(tmp_path, nvml_library)
    except NotHere as why:
        pytest.skip(str(why))
    yield one
    one.close()


def test_faults_go_to_the_reconciler_and_its_word_comes_back(agent):
    agent.until(lambda: agent.verdicts() and set(agent.verdicts()) == {"ok"})
    assert agent.verdict()["listed"] == ["GPU-1"]
    agent.fault()
    agent.until(lambda: "fatal" in agent.verdicts())
    reasons = [reason for row in agent.verdict()["devices"] for reason in row["reasons"]]
    assert [row["code"] for row in reasons] == ["xid_fatal"]
    order = {"id": "n1-1", "kind": "replace", "agent_id": "S0", "gpus": []}
    agent.say(order=order)
    agent.until((agent.state / "order.json").exists)
    assert json.loads((agent.state / "order.json").read_text()) == order
    agent.say(order=order, clear={"id": "r-1", "device": None})
    agent.until(lambda: set(agent.verdicts()) == {"ok"})


def test_an_agent_that_is_told_to_stop_takes_its_verdict_along_at_once(agent):
    agent.until(agent.verdicts)
    owner = agent.client.exists("/gpus/hosts/n1/verdict").ephemeralOwner
    assert owner
    # As systemd does: the agent and its children.
    os.killpg(agent.process.pid, signal.SIGTERM)
    assert agent.process.wait(30) == 0
    assert agent.verdict() == {}


def test_without_zookeeper_the_agent_looks_on(agent):
    agent.until(agent.verdicts)
    agent.server.stop(signal.SIGKILL)
    result = agent.log.with_name("gpu.json")
    agent.until(lambda: any("ZooKeeper" in text for text in json.loads(result.read_text())["agent"]["problems"]))
    agent.fault()
    agent.until(lambda: "fatal" in [row["verdict"] for row in json.loads(result.read_text())["health"]["devices"]])
    agent.server.start()
    agent.until(lambda: agent.client.connected and "fatal" in agent.verdicts())
    assert agent.process.poll() is None
