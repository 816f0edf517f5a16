# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packed stand-ins for Mesos and Marathon as daemons on loopback, over a real ZooKeeper."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.local_zookeeper import LocalZooKeeper
from tests.unit.simulators.mesos_cluster import PROGRAMS, free_port, until

PRINCIPALS = {"agents": "s3cret-a", "marathon": "s3cret-m", "operator": "s3cret-o"}
GPU_FLAGS = {"ISOLATION": "cgroups/devices,filesystem/linux,gpu/nvidia"}


def packed(place: Path, *options: str) -> dict[str, dict[str, str]]:
    """With --origin by default: nothing of these tests is where the loader of this machine looks."""
    words = options or ("--origin",)
    done = subprocess.run(
        [sys.executable, PROGRAMS / "pack", *words, place], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def unpacked(base: Path) -> Path:
    """The archives, packed and unpacked as a role would."""
    for row in packed(base / "archives").values():
        subprocess.run(["tar", "-xzf", row["path"], "-C", base], check=True)
    return base


class Daemon:
    """One program with its settings in variables, as its unit starts it; `before` are words that it is started with."""

    def __init__(self, program: Path, log: Path, variables: dict[str, str], before: Sequence[str] = ()) -> None:
        self.program, self.log, self.variables, self.before = program, log, variables, before
        self.port = int(variables.get("MESOS_PORT") or variables["MARATHON_HTTP_PORT"])
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            env = {"PATH": os.environ["PATH"], "STAND_IN_SASL": "yes", **self.variables}
            self.process = subprocess.Popen([*self.before, self.program], env=env, stdout=log, stderr=log)

    def ended(self, seconds: float = 60.0) -> tuple[int, str]:
        """Exit status and what it said, of one that ends by itself."""
        self.process.wait(seconds)
        return self.process.returncode, self.log.read_text(encoding="utf-8")

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(20)

    def ask(self, path: str, body: Any = None, method: str = "", login: str = "") -> tuple[int, Any, dict[str, str]]:
        """Status, JSON or text, and headers. Redirects are not followed. Status 0 if nobody listens."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method or None)
        asked.add_header("Content-Type", "application/json")
        if login:
            told = base64.b64encode(f"{login}:{PRINCIPALS[login]}".encode()).decode()
            asked.add_header("Authorization", f"Basic {told}")
        try:
            with urllib.request.build_opener(Stay).open(asked, timeout=20) as reply:
                status, text, headers = reply.status, reply.read().decode(), dict(reply.headers)
        except urllib.error.HTTPError as told_:
            status, text, headers = told_.code, told_.read().decode(), dict(told_.headers)
        except OSError:
            return 0, "", {}
        try:
            return status, json.loads(text), headers
        except ValueError:
            return status, text, headers

    def metric(self, name: str) -> float:
        """Raises ConnectionError while it does not answer, for `until`."""
        status, told, _ = self.ask("/metrics/snapshot")
        if status != 200:
            raise ConnectionError(f"{self.program} answers {status}")
        return float(told[name])


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Site:
    """ZooKeeper and three masters; agents and Marathons as they are asked for."""

    # With what agents are started.
    before_agents: Sequence[str] = ()

    def __init__(self, base: Path, masters: int = 3, **settings: str) -> None:
        self.base = unpacked(base)
        self.zookeeper = LocalZooKeeper(base / "zookeeper")
        self.secrets()
        self.masters = [self.master(number, **settings) for number in range(masters)]
        self.agents: dict[str, Daemon] = {}
        self.marathons: list[Daemon] = []

    def file(self, name: str, text: str) -> str:
        path = self.base / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return str(path)

    def secrets(self) -> None:
        rows = [{"principal": name, "secret": secret} for name, secret in PRINCIPALS.items()]
        self.credentials = self.file("credentials.json", json.dumps({"credentials": rows}))
        self.zk = self.file("zk", f"zk://mesos:zk-s3cret@{self.zookeeper.address}/mesos\n")

    def master(self, number: int, **settings: str) -> Daemon:
        variables = {
            "ZK": f"file://{self.zk}",
            "QUORUM": "2",
            "WORK_DIR": f"{self.base}/master{number}",
            "PORT": str(free_port()),
            "IP": "127.0.0.1",
            "HOSTNAME": "127.0.0.1",
            "ZK_SESSION_TIMEOUT": "3secs",
            "REGISTRY_FETCH_TIMEOUT": "20secs",
            "REGISTRY_STORE_TIMEOUT": "10secs",
            "AUTHENTICATE_AGENTS": "true",
            "AUTHENTICATE_FRAMEWORKS": "true",
            "AUTHENTICATE_HTTP_READWRITE": "true",
            "CREDENTIALS": f"file://{self.credentials}",
            **settings,
        }
        mesos = {f"MESOS_{name}": value for name, value in variables.items()}
        return Daemon(self.base / "mesos/sbin/mesos-master", self.base / f"master{number}.log", mesos)

    def agent(self, name: str, gpus: int = 0, secret: str = PRINCIPALS["agents"], **settings: str) -> Daemon:
        low = free_port()
        gpu_settings = {"NVIDIA_GPU_DEVICES": ",".join(map(str, range(gpus))), **GPU_FLAGS} if gpus else {}
        variables = {
            "MASTER": f"file://{self.zk}",
            "WORK_DIR": f"{self.base}/{name}",
            "PORT": str(free_port()),
            "IP": "127.0.0.1",
            "HOSTNAME": name,
            "ZK_SESSION_TIMEOUT": "3secs",
            "RESOURCES": f"cpus:4;mem:2048;ports:[{low}-{low + 9}]" + (f";gpus:{gpus}" if gpus else ""),
            "CREDENTIAL": self.file(f"{name}.json", json.dumps({"principal": "agents", "secret": secret})),
            **gpu_settings,
            **settings,
        }
        mesos = {f"MESOS_{key}": value for key, value in variables.items()}
        mesos["STAND_IN_GPUS"] = ",".join(["ok"] * gpus)
        program, log = self.base / "mesos/sbin/mesos-agent", self.base / f"{name}.log"
        self.agents[name] = Daemon(program, log, mesos, self.before_agents)
        return self.agents[name]

    def marathon(self, secret: str = PRINCIPALS["marathon"], **settings: str) -> Daemon:
        port = str(free_port())
        variables = {
            "MASTER": f"zk://{self.zookeeper.address}/mesos",
            "ZK": f"zk://marathon:zk-other@{self.zookeeper.address}/marathon",
            "ZK_SESSION_TIMEOUT": "3000",
            "HTTP_PORT": port,
            "HTTP_ADDRESS": "127.0.0.1",
            "HOSTNAME": "127.0.0.1",
            "ENABLE_FEATURES": "gpu_resources",
            "MESOS_AUTHENTICATION": "",
            "MESOS_AUTHENTICATION_PRINCIPAL": "marathon",
            "MESOS_AUTHENTICATION_SECRET_FILE": self.file(f"marathon-{port}.secret", secret),
            **settings,
        }
        told = {f"MARATHON_{name}": value for name, value in variables.items()}
        told["MESOS_NATIVE_JAVA_LIBRARY"] = f"{self.base}/mesos/lib/libmesos.so"
        log = self.base / f"marathon-{port}.log"
        one = Daemon(next(self.base.glob("marathon-*/bin/marathon")), log, told)
        self.marathons.append(one)
        return one

    # What is seen.

    def leader(self) -> Daemon:
        """The master that answers for the cluster. Raises ConnectionError while there is none, for `until`."""
        found = [one for one in self.masters if one.ask("/slaves")[0] == 200]
        if len(found) != 1:
            raise ConnectionError("no leader yet")
        return found[0]

    def state(self) -> Any:
        return self.leader().ask("/state")[1]

    def slave(self, name: str) -> Any:
        return next((row for row in self.state()["slaves"] if row["hostname"] == name and row["active"]), None)

    def operate(self, kind: str, agent_id: str, **more: Any) -> int:
        body = {"type": kind, kind.lower(): {"agent_id": {"value": agent_id}, **more}}
        return self.leader().ask("/api/v1", body, login="operator")[0]

    def deploy(self, marathon: Daemon, app: dict[str, Any]) -> list[dict[str, Any]]:
        """The app's tasks once its deployment is over."""
        status, told, _ = marathon.ask("/v2/apps", app)
        assert status == 201, told
        self.settle(marathon)
        return self.tasks(marathon, app["id"])

    def settle(self, marathon: Daemon) -> None:
        until(lambda: marathon.ask("/v2/deployments")[:2] == (200, []))

    def tasks(self, marathon: Daemon, app_id: str) -> list[dict[str, Any]]:
        return list(marathon.ask(f"/v2/apps{app_id}")[1]["app"]["tasks"])

    def pids(self) -> dict[str, int]:
        """Each task that runs, and its process, as the agents have checkpointed them."""
        files = self.base.glob("*/meta/slaves/latest/tasks.json")
        rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8")).values()]
        return {row["id"]: row["pid"] for row in rows if row["state"] in ("TASK_RUNNING", "TASK_KILLING")}

    def stop(self) -> None:
        for one in [*self.marathons, *self.agents.values(), *self.masters]:
            one.stop()
        for pid in self.pids().values():
            if Path(f"/proc/{pid}").exists():
                os.killpg(pid, signal.SIGKILL)
        self.zookeeper.stop()
