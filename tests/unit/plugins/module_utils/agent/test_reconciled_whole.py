# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole way of a GPU, out and back, with the programs themselves: the agent on a simulated host, a real ZooKeeper,
`gpuops reconcile`, the program that carries out orders, and the stand-ins of Mesos. Only systemd is hand-made.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local_zookeeper import LocalZooKeeper, NotHere
from tests.unit.plugins.simulated_host import ROOT, Looker, SimulatedHost
from tests.unit.reconcile.site import Site
from tests.unit.simulators.mesos_cluster import PROGRAMS, free_port, until

pytestmark = pytest.mark.slow

XID_79 = "NVRM: Xid (PCI:{}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# The file tree is a plain user's, who can make no device files.
PROGRAM = """
import sys
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
snapshot.device_nodes.is_right = lambda node, root: True
sys.exit(agent_command.main(["--config", *sys.argv[1:]]))
"""
WAY = ["deactivate", "drain", "order", "settle", "close"]


class Whole:
    def __init__(self, base: Path, library: Path) -> None:
        self.base = base
        self.server = LocalZooKeeper(base / "zookeeper")
        (base / "site").mkdir()
        self.site = Site(base / "site", self.server)
        self.host = SimulatedHost(base / "host", Looker(library, base))
        self.host.take("busy")
        self.gpus = self.host.scenario["devices"]
        self.log, self.state = base / "kmsg", base / "state"
        self.state.mkdir()
        os.mkfifo(self.log)
        self.writer = os.open(self.log, os.O_RDWR)
        self.environment = base / "agent.env"
        self.config = base / "agent.json"
        self.config.write_text(json.dumps(self.settings()))
        self.env = {
            **self.host.looker.environment,
            "LD_LIBRARY_PATH": str(library),
            "PATH": f"{self.systemd()}:{os.environ['PATH']}",
            "AGENT_SITE": str(base / "systemd.json"),
        }
        self.agent = self.program("agent")
        until(lambda: (base / "gpu.json").exists() and self.devices())
        self.uuids = [row["uuid"] for row in self.devices()]
        self.mesos_agent()
        self.live = True
        self.path_unit = threading.Thread(target=self.obey, daemon=True)
        self.path_unit.start()
        self.site.leading()

    def settings(self) -> dict[str, Any]:
        path = self.site.path
        return {
            "settings": {
                "state_directory": str(self.state),
                "socket": str(self.base / "agent.sock"),
                "kernel_log": str(self.log),
                "interval_s": 0.5,
                "root": self.host.path,
                "answer": str(self.base / "answers/answer.json"),
            },
            "result": str(self.base / "gpu.json"),
            "zookeeper": {"servers": [self.server.address], "host": "n1", "path": path, "session_s": 4},
            "orders": ["replace"],
            "mesos": {
                "environment": str(self.environment),
                "work_dir": str(self.base / "mesos-agent"),
                "url": "http://127.0.0.1:9",
            },
        }

    def systemd(self) -> Path:
        """A directory with a program systemctl that starts and stops the stand-in of the Mesos agent."""
        names = {name: str(self.base / f"systemd-{name}") for name in ("pid", "said", "cut", "log", "playbook")}
        command = [sys.executable, str(PROGRAMS / "agent.py")]
        gpus = ",".join("ok" for _gpu in self.gpus)
        told = {**names, "environment": str(self.environment), "command": command, "gpus": gpus}
        (self.base / "systemd.json").write_text(json.dumps(told))
        place = self.base / "bin"
        place.mkdir()
        program = ROOT / "tests/unit/reconcile/systemctl.py"
        (place / "systemctl").write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        (place / "systemctl").chmod((place / "systemctl").stat().st_mode | stat.S_IXUSR)
        return place

    def mesos_agent(self) -> None:
        numbers = range(len(self.uuids))
        self.environment.write_text(
            f"BAREMETAL_GPU_UUIDS={','.join(self.uuids)}\nMESOS_HOSTNAME=n1\nMESOS_IP=127.0.0.1\n"
            "MESOS_ISOLATION=cgroups/devices,filesystem/linux,gpu/nvidia\n"
            f"MESOS_MASTER=127.0.0.1:{self.site.cluster.port}\n"
            f"MESOS_NVIDIA_GPU_DEVICES={','.join(map(str, numbers))}\nMESOS_PORT={free_port()}\n"
            f"MESOS_RESOURCES=cpus:4;mem:2048;gpus:{len(self.uuids)}\nMESOS_WORK_DIR={self.base}/mesos-agent\n"
        )
        (self.base / "mesos-agent").mkdir()
        subprocess.run([self.base / "bin/systemctl", "start", "mesos-agent.service"], env=self.env, check=True)
        self.site.cluster.registered("n1")

    def program(self, word: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, self.config, word], env=self.env, cwd=ROOT)

    def obey(self) -> None:
        """What baremetal-gpu-order.path does."""
        seen = None
        while self.live:
            file = self.state / "order.json"
            now = file.stat().st_mtime_ns if file.exists() else None
            if now != seen:
                seen = now
                self.program("order").wait()
            time.sleep(0.1)

    def devices(self) -> list[dict[str, Any]]:
        return list(json.loads((self.base / "gpu.json").read_text())["facts"]["devices"])

    def fault(self, gpu: int) -> None:
        address = self.gpus[gpu]["pci"]["address"][:-2]
        uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        os.write(self.writer, f"4,1,{uptime},-;{XID_79.format(address)}\n".encode())

    def gpus(self) -> float:
        row = self.site.cluster.slave("n1")
        return float(row["resources"]["gpus"]) if row and row["active"] else -1.0

    def close(self) -> None:
        self.live = False
        self.path_unit.join(30)
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(20)
        pid = self.base / "systemd-pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)
        os.close(self.writer)
        self.site.stop()
        self.server.stop()


@pytest.fixture
def whole(tmp_path: Path, nvml_library: Path) -> Iterator[Whole]:
    try:
        one = Whole(tmp_path, nvml_library)
    except NotHere as why:
        pytest.skip(str(why))
    yield one
    one.close()


def test_a_gpu_goes_out_under_a_running_job_and_comes_back_when_an_operator_clears_it(whole):
    cluster, site = whole.site.cluster, whole.site
    cluster.launch(cluster.framework("GPU_RESOURCES"), cluster.slave("n1")["id"], "job", "sleep 5", gpus=1)
    whole.fault(1)
    until(lambda: site.way("n1") == WAY, 120)
    assert cluster.task("job")["state"] == "TASK_FINISHED"
    until(lambda: whole.gpus() == 1.0)
    assert f"BAREMETAL_GPU_UUIDS={whole.uuids[0]}\n" in whole.environment.read_text()
    done = site.command("clear", f"n1:{whole.uuids[1]}")
    assert done.returncode == 0, done.stderr
    until(lambda: site.way("n1") == WAY * 2, 120)
    until(lambda: whole.gpus() == 2.0)
