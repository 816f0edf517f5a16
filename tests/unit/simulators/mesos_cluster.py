# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A master and agents of the stand-ins as processes on loopback, for the tests that talk to them over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[2] / "simulators/mesos"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `what` gives once it is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = what()
        except OSError:
            # Nothing listens yet, or it began to between being asked by https and by http.
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"did not come about in {seconds} s: {what}"
        time.sleep(0.05)


class Program:
    """One stand-in. `env` adds to an environment that has nothing of the caller's but PATH, and SASL's plugin."""

    def __init__(self, name: str, arguments: list[str], env: dict[str, str] | None = None) -> None:
        self.name = name
        self.told = ""
        # A file takes all that is written; a pipe that nobody empties would stop the program some day.
        descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
        self._file = Path(path)
        self.process = subprocess.Popen(
            [sys.executable, PROGRAMS / f"{name}.py", *arguments],
            env={"PATH": os.environ["PATH"], "STAND_IN_SASL": "yes", **(env or {})},
            stderr=descriptor,
        )
        os.close(descriptor)

    def so_far(self) -> str:
        """What it has told on stderr while it runs."""
        return self._file.read_text(encoding="utf-8")

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it has told; what it told is shown with a test that fails, too."""
        status = self.process.wait(timeout=60)
        if self._file.exists():
            self.told = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            print(f"{self.name} ended with {status}: {self.told}", file=sys.stderr)
        return status, self.told

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()[0]


class Cluster:
    def __init__(self, base: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.base, self.port = base, free_port()
        self.flags = [f"--work_dir={base}/master", f"--port={self.port}", "--ip=127.0.0.1", "--no-hostname_lookup"]
        self.flags += flags
        self.env = env
        self.agents: list[Program] = []
        self.url = f"http://127.0.0.1:{self.port}"
        self.start_master()

    def start_master(self) -> None:
        self.master = Program("master", self.flags, self.env)
        until(lambda: self.ask("/version"))

    def agent(self, name: str, *flags: str, gpus: str = "", port: int = 0) -> Program:
        known = [
            "--ip=127.0.0.1",
            f"--master=127.0.0.1:{self.port}",
            f"--work_dir={self.base}/{name}",
            f"--hostname={name}",
        ]
        program = Program("agent", [*known, f"--port={port or free_port()}", *flags], {"STAND_IN_GPUS": gpus})
        self.agents.append(program)
        return program

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """JSON of the answer, or its text. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(asked, timeout=10) as reply:
            text = reply.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def slave(self, name: str) -> Any:
        return next((row for row in self.ask("/slaves")["slaves"] if row["hostname"] == name), None)

    def registered(self, name: str) -> Any:
        return until(lambda: self.slave(name))

    def framework(self, *capabilities: str) -> str:
        return str(self.ask("/stand-in/framework", {"name": "test", "capabilities": list(capabilities)})["id"])

    def launch(self, framework: str, agent_id: str, name: str, cmd: str, **resources: float) -> None:
        task = {"id": name, "name": name, "cmd": cmd, "resources": {"cpus": 0.1, "mem": 32, **resources}}
        self.ask("/stand-in/launch", {"framework_id": framework, "agent_id": agent_id, "task": task})
        until(lambda: self.task(name)["state"] == "TASK_RUNNING")

    def task(self, name: str) -> Any:
        return next(row for row in self.ask("/tasks")["tasks"] if row["id"] == name)

    def stop(self) -> None:
        for program in [*self.agents, self.master]:
            program.stop(signal.SIGKILL)
        for tasks in self.base.glob("*/meta/slaves/latest/tasks.json"):
            for row in json.loads(tasks.read_text(encoding="utf-8")).values():
                if Path(f"/proc/{row['pid']}").exists():
                    os.killpg(row["pid"], signal.SIGKILL)
