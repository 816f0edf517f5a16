# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's own program at work on a simulated host of eight A100, beside the benchmark that watches it.

The program is the one file that a host gets. It runs as root in a mount namespace of its own, where /sys, /proc/driver
and /dev are those of the simulated host and the NVML library is the simulated one; nothing else is changed, and nothing
outside the namespace. The kernel's log is a pipe.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import bundle
from tests.unit.plugins.simulated_host import MAJOR, SIMULATORS, UVM_MAJOR, Looker, SimulatedHost

SCENARIO = "a100-sxm4-40gb-x8"
# What a benchmark sees of a publication, it sees this late at most.
GLANCE_S = 0.001
PATIENCE_S = 60.0

# $1 is the directory of the simulated host, the rest the program.
NAMESPACE = f"""
set -e
root=$1
shift
mount -t tmpfs -o mode=755 dev /dev
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 /dev/"${{node%:*}}" c 1 "${{node#*:}}"
done
for minor in 0 1 2 3 4 5 6 7; do
    mknod -m 666 /dev/nvidia"$minor" c {MAJOR} "$minor"
done
mknod -m 666 /dev/nvidiactl c {MAJOR} 255
mknod -m 666 /dev/nvidia-uvm c {UVM_MAJOR} 0
mknod -m 666 /dev/nvidia-uvm-tools c {UVM_MAJOR} 1
mount --bind "$root/proc/driver" /proc/driver
mount --bind "$root/proc/devices" /proc/devices
mount --rbind "$root/sys" /sys
mount --bind "$root/run" /run
exec "$@"
"""


def missing() -> str | None:
    """What this machine lacks to run it; None if nothing."""
    if os.geteuid() != 0:
        return "the agent's benchmarks need root, for a mount namespace with the simulated host's devices"
    if shutil.which("unshare") is None:
        return "the agent's benchmarks need unshare (util-linux)"
    return None


def python() -> str:
    """The distribution's, which the agent runs with on a host."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


class WatchedHost:
    """A context in which the agent runs with its default interval. `result()` is what it has published last.

    `more` is added to the agent's configuration.
    """

    def __init__(self, event_pause_ms: int, more: dict[str, Any] | None = None) -> None:
        self.event_pause_ms, self.more = event_pause_ms, more or {}
        self._directory = tempfile.TemporaryDirectory(prefix="bench-agent-")
        self.place = Path(self._directory.name)

    def __enter__(self) -> WatchedHost:
        subprocess.run(["make", "-s", "-C", SIMULATORS, "build/libnvidia-ml.so.1"], check=True)
        root = self.place / "host"
        self.host = SimulatedHost(root, Looker(SIMULATORS / "build", self.place))
        self.host.take(SCENARIO)
        for gpu in self.host.scenario["devices"]:
            # The socket of nvidia-persistenced belongs to a whole machine.
            gpu["persistence"] = 1
        self.host.save()
        self.host.write("run/nvidia-fabricmanager/nv-fabricmanager.pid", "1\n")
        (root / "run/baremetal-gpu").mkdir()
        (root / "run/textfile").mkdir()
        (self.place / "state").mkdir()
        self.published = root / "run/baremetal-gpu/gpu.json"
        self.socket = root / "run/baremetal-gpu/agent.sock"
        log = self.place / "kmsg"
        os.mkfifo(log)
        # Open for reading too, so that opening does not wait and the pipe never ends.
        self._log = os.open(log, os.O_RDWR | os.O_CLOEXEC)
        self._sequence = 0
        program = self.place / "gpu-agent"
        program.write_text(bundle.bundle("agent.command"), encoding="utf-8")
        config = self.place / "agent.json"
        settings = {"state_directory": str(self.place / "state"), "kernel_log": str(log)}
        told = {"settings": settings, "textfile": "/run/textfile/gpu.prom", **self.more}
        config.write_text(json.dumps(told), encoding="utf-8")
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "namespace", str(root)]
        command += [python(), "-I", str(program), "--config", str(config), "agent"]
        environment = {
            **self.host.looker.environment,
            "NVML_SIMULATOR_EVENT_PAUSE_MS": str(self.event_pause_ms),
        }
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, env=environment, cwd="/")
        try:
            self.wait(lambda result: result["agent"]["probe_time"] is not None, "looked at the GPUs")
            self.is_well()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_why: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)
        os.close(self._log)
        self._directory.cleanup()

    def result(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.published.read_bytes())
        except FileNotFoundError:
            return None
        return found

    def wait(self, true: Callable[[dict[str, Any]], bool], what: str) -> tuple[float, dict[str, Any]]:
        """The time by CLOCK_MONOTONIC at which a result was published of which this holds, and the result."""
        end = time.monotonic() + PATIENCE_S
        seen = None
        while time.monotonic() < end:
            try:
                now = os.stat(self.published)
                fresh = (now.st_ino, now.st_mtime_ns)
            except FileNotFoundError:
                fresh = None
            if fresh != seen:
                at = time.monotonic()
                seen = fresh
                result = self.result()
                if result is not None and true(result):
                    return at, result
            elif self.process.poll() is not None:
                raise SystemExit(f"the agent ended with {self.process.returncode}")
            time.sleep(GLANCE_S)
        raise SystemExit(f"the agent has not {what} within {PATIENCE_S:g} s: {(self.result() or {}).get('agent')}")

    def log(self, text: str) -> float:
        """Writes a record as the kernel does; the value is when."""
        self._sequence += 1
        microseconds = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        record = f"4,{self._sequence},{microseconds},-;{text}\n".encode()
        at = time.monotonic()
        os.write(self._log, record)
        return at

    def event(self, device: int, xid: int) -> float:
        """NVML reports an Xid; the value is when."""
        events = self.host.scenario["events"]
        events.append({"id": len(events) + 1, "device": device, "xid": xid})
        at = time.monotonic()
        self.host.save()
        return at

    def ask(self, **request: Any) -> dict[str, Any]:
        """What an operator's command asks the agent."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
            to.settimeout(10.0)
            to.connect(str(self.socket))
            to.sendall(json.dumps(request).encode())
            with to.makefile(encoding="utf-8") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        return answer

    def is_well(self) -> None:
        """Ends the benchmark if the host is not what it is meant to be before anything is injected."""
        found = self.result()
        health = found["health"] if found else None
        if health is None or health["verdict"] != "ok":
            raise SystemExit(f"the simulated host is not well: {health}")

    def processes(self) -> list[int]:
        """The agent and its children."""
        found, waiting = [], [self.process.pid]
        while waiting:
            process = waiting.pop()
            found.append(process)
            children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
            waiting += map(int, children.split())
        return found
