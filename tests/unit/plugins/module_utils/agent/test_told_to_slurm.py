# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process of its own, a real munged, and what the reconciler of Slurm hears and says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.store import FileStore
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge
from tests.local_munge import LocalMunge, NotHere
from tests.local_zookeeper import free_port
from tests.unit.plugins.module_utils.agent.test_reconciled import PROGRAM, XID_79
from tests.unit.plugins.simulated_host import ROOT, Looker, SimulatedHost
from tests.unit.simulators.mesos_cluster import until

WITH_MUNGE = "import importlib; importlib.import_module({!r}).MUNGE = {!r}"


class Told:
    """An agent on a simulated host of two GPUs, and the host of slurmctld."""

    def __init__(self, base: Path, library: Path) -> None:
        self.munged = LocalMunge("127.0.0.2")
        (base / "slurm.conf").write_text("NodeName=n1 CPUs=4 NodeAddr=127.0.0.2\n")
        self.settings = Settings(
            scheduler="slurm",
            state_directory=str(base / "slurm"),
            port=free_port(),
            slurm_conf=str(base / "slurm.conf"),
            munge=self.munged.socket,
            journal=str(base / "own" / "journal.jsonl"),
        )
        self.listen()
        host = SimulatedHost(base / "host", Looker(library, base))
        host.take("busy")
        self.log, self.result = base / "kmsg", base / "gpu.json"
        os.mkfifo(self.log)
        self.writer = os.open(self.log, os.O_RDWR)
        (base / "state").mkdir()
        settings = {
            "state_directory": str(base / "state"),
            "socket": str(base / "agent.sock"),
            "kernel_log": str(self.log),
            "interval_s": 0.2,
            "root": host.path,
        }
        heads = [f"127.0.0.1:{self.settings.port}"]
        where = {"controllers": heads, "host": "n1", "heartbeat_s": 3, "munge": self.munged.socket}
        config = base / "agent.json"
        config.write_text(json.dumps({"settings": settings, "result": str(self.result), "slurm": where}))
        self.process = subprocess.Popen(
            [sys.executable, "-c", WITH_MUNGE.format(munge.__name__, munge.MUNGE) + PROGRAM, config],
            env={**host.looker.environment, "LD_LIBRARY_PATH": str(library)},
            cwd=ROOT,
            start_new_session=True,
        )

    def listen(self) -> None:
        self.store = FileStore(self.settings, lambda: True)
        self.store.open()
        self.store.prepare()
        self.store.serve()
        self.place = self.store.place("head1:1")
        assert self.store.take(self.place, 5.0)

    def away(self) -> None:
        self.store.close()
        self.place.release()

    def verdicts(self) -> set[str]:
        told = self.store.verdict("n1")
        return {row["verdict"] for row in told["devices"]} if isinstance(told, dict) else set()

    def problems(self) -> str:
        return " ".join(json.loads(self.result.read_text())["agent"]["problems"])

    def fault(self) -> None:
        os.write(self.writer, f"4,1,{int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)},-;{XID_79}\n".encode())

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.writer)
        self.away()
        self.munged.remove()


@pytest.fixture
def told(tmp_path: Path, nvml_library: Path) -> Iterator[Any]:
    try:
        one = Told(tmp_path, nvml_library)
    except NotHere as why:
        pytest.skip(str(why))
    yield one
    one.close()


def test_faults_go_to_the_reconciler_and_what_is_mended_comes_back(told):
    until(lambda: told.verdicts() == {"ok"})
    told.fault()
    until(lambda: "fatal" in told.verdicts())
    (reason,) = (reason for row in told.store.verdict("n1")["devices"] for reason in row["reasons"])
    assert reason["code"] == "xid_fatal"
    told.store.send("n1", {"order": None, "clear": {"id": "r-1", "device": None}})
    until(lambda: told.verdicts() == {"ok"}, 20)


def test_a_reconciler_that_is_away_is_named_and_hears_of_the_fault_when_it_is_back(told):
    until(lambda: told.verdicts() == {"ok"})
    told.away()
    told.fault()
    until(lambda: "no host of slurmctld has the verdict" in told.problems(), 20)
    told.listen()
    until(lambda: "fatal" in told.verdicts(), 20)
    until(lambda: "slurmctld" not in told.problems(), 20)


def test_an_agent_that_is_told_to_stop_says_so_at_once(told):
    until(lambda: told.verdicts() == {"ok"})
    # As systemd does: the agent and its children.
    os.killpg(told.process.pid, signal.SIGTERM)
    assert told.process.wait(30) == 0
    assert told.store.verdict("n1") is None
