# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole way on loopback but Slurm: the agent's publisher, munged of two hosts, the reconciler and its files.

slurmctld is the model of tests/unit/plugins/module_utils/reconciler/slurm/slurm_world.py, which makes a pass over its
queue at each look.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import slurm as agent_slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import command
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import settings as reconciler_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.service import Service
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Settings, Wrong
from tests.local_munge import LocalMunge, NotHere
from tests.local_zookeeper import free_port
from tests.unit.plugins.module_utils.reconciler.slurm.slurm_world import NODE, SlurmWorld
from tests.unit.simulators.mesos_cluster import until


def service(settings: Settings) -> Service:
    slurm = reconciler_settings.SCHEDULERS["slurm"]
    return Service(settings, slurm.backend(settings, {}), slurm.store(settings, {}))


class World(SlurmWorld):
    """At the time that it is."""

    @property  # type: ignore[override]
    def now(self) -> float:
        return time.time()

    @now.setter
    def now(self, _value: float) -> None:
        return

    def nodes(self) -> dict[str, dict[str, Any]]:
        self.schedule()
        return super().nodes()


class Site:
    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.munged = LocalMunge("127.0.0.2")
        self.world = World(gpus=2)
        backend = self.world.backend
        slurm = dataclasses.replace(reconciler_settings.SCHEDULERS["slurm"], backend=lambda *_settings: backend)
        monkeypatch.setitem(reconciler_settings.SCHEDULERS, "slurm", slurm)
        (base / "slurm.conf").write_text(f"NodeName={NODE} CPUs=8 NodeAddr=127.0.0.2\n")
        self.config = base / "reconciler.json"
        self.state = base / "state"
        told = {
            "scheduler": "slurm",
            "state_directory": str(self.state),
            "port": free_port(),
            "slurm_conf": str(base / "slurm.conf"),
            "munge": self.munged.socket,
            "journal": str(base / "own" / "journal.jsonl"),
            "poll_s": 0.2,
            "policy": {"mode": "act", "settle_s": 1.0},
        }
        self.config.write_text(json.dumps(told))
        self.agent = agent_slurm.SlurmController(
            agent_slurm.Settings([f"127.0.0.1:{told['port']}"], NODE, heartbeat_s=3.0, munge=self.munged.socket),
            lambda told: told,
        )
        self.running: Service | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        settings = reconciler_settings.load(self.config)
        self.running = service(settings)
        self.thread = threading.Thread(target=self.running.run)
        self.thread.start()
        # What is published once is heard.
        until(lambda: self.running.store._receiver)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.thread.join(30)
            assert not self.thread.is_alive()
            self.running = None

    def publish(self) -> str:
        self.agent.hear()
        try:
            self.agent.publish(self.world.verdict())
        except OSError as why:
            return str(why)
        return ""

    def status(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        assert command.status(self.config, as_json=True) == 0
        return json.loads(capsys.readouterr().out)

    def fenced(self) -> bool:
        return self.world.held() == {1} and self.world.guard_ends is None


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    try:
        one = Site(tmp_path, monkeypatch)
    except NotHere as why:
        pytest.skip(str(why))
    yield one
    one.stop()
    one.agent.close()
    one.munged.remove()


def test_a_fatal_gpu_is_fenced_and_comes_back_when_it_is_well(site, capsys):
    site.start()
    site.publish()
    until(lambda: (site.state / "verdicts" / f"{NODE}.json").exists())
    site.world.fault(1)
    site.publish()
    until(site.fenced)
    assert site.publish() == ""
    found = site.status(capsys)
    assert found["leader"]
    assert found["nodes"][NODE]["verdict"] == "fatal"
    assert command.status(site.config, as_json=False) == 0
    assert "1 held back" in capsys.readouterr().out
    site.world.mend(1)
    site.publish()
    until(lambda: site.world.held() == set())
    assert site.world.wrong == []


@pytest.mark.parametrize("forgets", [False, True], ids=["", "with an empty directory"])
def test_a_fence_outlasts_its_reconciler(site, forgets):
    site.start()
    site.world.fault(1)
    site.publish()
    until(site.fenced)
    site.stop()
    site.agent.close()
    if forgets:
        for path in sorted(site.state.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    before = len(site.world.calls)
    site.start()
    time.sleep(1.0)
    # Its agent has not been heard yet.
    assert "cancel" not in site.world.calls[before:]
    assert site.world.held() == {1}
    site.publish()
    until(site.fenced)
    time.sleep(0.5)
    assert site.fenced()
    assert "hold" not in site.world.calls[before:]
    assert site.world.wrong == []


def test_a_fault_while_the_reconciler_is_away_is_fenced_when_it_is_back(site):
    site.world.fault(1)
    site.publish()
    until(lambda: "no host of slurmctld" in site.publish())
    site.start()
    until(site.fenced, 20)


def test_an_operator_clears_a_node_and_its_agent_hears_it(site, capsys):
    site.start()
    site.world.fault(1)
    site.publish()
    until(site.fenced)
    site.agent.hear()
    assert command.clear(site.config, f"{NODE}:GPU-1", breaker=False) == 0
    assert capsys.readouterr().out.startswith("asked ")
    heard: list[dict[str, Any]] = []

    def told() -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            heard.extend(site.agent.hear())
        return heard

    assert until(told, 20)[0]["clear"]["device"] == "GPU-1"


def test_an_operator_who_names_a_node_of_which_nothing_was_heard_is_told(site, capsys):
    site.start()
    assert command.clear(site.config, "nowhere", breaker=False) == command.USAGE_ERROR
    assert "nowhere" in capsys.readouterr().err


def test_a_port_that_is_another_programs_is_named(site, capsys):
    site.start()
    config = json.loads(site.config.read_text())
    until(lambda: site.status(capsys)["leader"])
    other = service(
        reconciler_settings.settings_of({**config, "journal": f"{site.state}/journal.jsonl"}, "the settings")
    )
    with pytest.raises(Wrong, match=str(config["port"])):
        other.run()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"state_directory": "state"}, "state_directory"),
        ({"zookeeper": "zk1:2181"}, "zookeeper"),
        ({"scheduler": "mesos", "masters": ["http://m:5050"]}, "state_directory"),
        ({"port": 70000}, "port"),
        ({"port": "6821"}, "port"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings_that_do_not_go_together_are_refused(change, named):
    told = {"scheduler": "slurm", "state_directory": "/state", **change}
    with pytest.raises(Wrong, match=named):
        reconciler_settings.settings_of(told, "the settings")
