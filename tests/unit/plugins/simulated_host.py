# SPDX-License-Identifier: GPL-3.0-or-later
"""The real pynvml on the simulated NVML library, with the file tree that the scenario's host would have."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulators import generate
from tests.unit.plugins.fake_host import FakeHost

ROOT = Path(__file__).resolve().parents[3]
SIMULATORS = ROOT / "tests" / "simulators"
MAJOR, UVM_MAJOR = 195, 511


# Each line it is given is a question as JSON, see Looker.
LOOKER = """
import json, os, sys, time, pynvml
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import session as nvml_session
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
reader, ahead, missing = None, 0.0, ()
uptime, clock = snapshot.uptime, time.time
snapshot.uptime = lambda: uptime() + ahead
time.time = lambda: clock() + ahead
# The file tree is a plain user's, who can make no device files.
snapshot.device_nodes.is_right = lambda node, root: node.path not in missing
for line in sys.stdin:
    asked = json.loads(line)
    ahead, missing, nvml_session.RETRY_S = asked["ahead_s"], asked["missing"], asked["retry_s"]
    if asked["fresh"]:
        if reader:
            reader.close()
        reader = snapshot.Reader(pynvml, asked["root"])
    if asked["deadline_s"]:
        reader.trace = nvml.Trace()
        answer = nvml.in_child(lambda: {"look": reader.read(slow=asked["slow"])}, asked["deadline_s"], reader.trace)
        look = answer.get("look") or snapshot.without_nvml(answer["error"], asked["root"])
    else:
        look = reader.read(slow=asked["slow"])
    print(json.dumps(look), flush=True)
"""


# Hosts have a Python of their own, which may be older than the controller's.
TARGET_PYTHON = os.environ.get("TARGET_PYTHON", sys.executable)


class Looker:
    """A process with the simulated library, which takes looks at one host after the other.

    The scenario is always at one place, since a process cannot be told another.
    """

    def __init__(self, library: Path, directory: Path) -> None:
        self.scenario = directory / "scenario.json"
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": site.getsitepackages()[0],
            "NVML_SIMULATOR_SCENARIO": str(self.scenario),
        }
        self.process: subprocess.Popen[str] | None = None

    def ask(self, **question: Any) -> dict[str, Any]:
        if self.process is None:
            self.process = subprocess.Popen(
                [TARGET_PYTHON, "-c", LOOKER],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            process, self.process = self.process, None
            raise AssertionError(f"the process ended with {process.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        if self.process is not None:
            with self.process as process:
                assert process.stdin is not None
                process.stdin.close()


def scenario(name: str, **changes: Any) -> dict[str, Any]:
    """A scenario that stands alone: without a simulated kernel it says itself that the module is loaded."""
    found: dict[str, Any] = generate.scenario(name)
    found["kernel"] = "assume-loaded"
    found.update(changes)
    return found


class SimulatedHost(FakeHost):
    """A host with the GPUs of a scenario."""

    def __init__(self, root: Path, looker: Looker) -> None:
        super().__init__(root)
        self.looker = looker
        self.scenario: dict[str, Any] = {}

    def take(self, name: str, **changes: Any) -> None:
        self.scenario = scenario(name, **changes)
        self.save()
        self.write("proc/sys/kernel/random/boot_id", "5c3a1f2e-8f6b-4c1d-9e2a-000000000001\n")
        self.write("proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 - Live 0x0\n")
        self.write("proc/devices", f"Character devices:\n{MAJOR} nvidia\n{UVM_MAJOR} nvidia-uvm\n\nBlock devices:\n")
        self.loaded(self.scenario["driver"]["version"])
        for gpu in (*self.scenario["devices"], *self.scenario["switches"]):
            pci = gpu["pci"]
            if gpu.get("state") == "gone":
                continue
            self.pci(pci["address"], pci["device"], pci_class=pci["class"], driver="nvidia", numa=pci["numa_node"])
            self.write(f"sys/bus/pci/devices/{pci['address']}/local_cpulist", f"{pci['cpus']}\n")
        for gpu in self.scenario["devices"]:
            self.write(
                f"proc/driver/nvidia/gpus/{gpu['pci']['address']}/information",
                f"Model: \t\t {gpu['name']}\nGPU UUID: \t {gpu['uuid']}\nDevice Minor: \t {gpu['minor']}\n",
            )

        pid = self.root / "run/nvidia-fabricmanager/nv-fabricmanager.pid"
        pid.unlink(missing_ok=True)
        if self.scenario["fabric_manager"] == "running":
            self.write(str(pid.relative_to(self.root)), "1\n")
            self.write("proc/1/comm", "nv-fabricmanage\n")

    def records(self, uptime: float) -> list[str]:
        """The scenario's lines of the kernel's log as records of /dev/kmsg."""
        lines = [line for entry in self.scenario.get("kernel_log", []) for line in entry["lines"]]
        return [f"4,{number},{int(uptime * 1e6)},-;{line}" for number, line in enumerate(lines, 1)]

    def save(self) -> None:
        """What is changed in the scenario holds from here on."""
        fresh = self.looker.scenario.with_suffix(".new")
        fresh.write_text(json.dumps(self.scenario), encoding="utf-8")
        fresh.replace(self.looker.scenario)

    def looking(
        self, retry_s: float = 0.0, deadline_s: float = 0.0, missing: tuple[str, ...] = ()
    ) -> Callable[..., dict[str, Any]]:
        """look(slow, ahead_s) takes a look; `ahead_s` is by how much the clocks are ahead.

        From one look to the next NVML stays open, but with a deadline it is asked in a new child each time. `missing`
        are device files.
        """
        fresh = True

        def look(slow: bool = False, ahead_s: float = 0.0) -> dict[str, Any]:
            nonlocal fresh
            if ahead_s != self.scenario.get("clock_offset_s", 0.0):
                self.scenario["clock_offset_s"] = ahead_s
                self.save()
            asked = {"root": self.path, "fresh": fresh, "slow": slow, "ahead_s": ahead_s, "missing": missing}
            fresh = False
            return self.looker.ask(**asked, retry_s=retry_s, deadline_s=deadline_s)

        return look

    def python(self, code: str, *arguments: str) -> Any:
        """What a program with the simulated library in its search path prints as JSON."""
        done = subprocess.run(
            [TARGET_PYTHON, "-c", code, *arguments],
            env={**self.looker.environment, "SIMULATED_ROOT": self.path},
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
