# SPDX-License-Identifier: GPL-3.0-or-later
"""The real pynvml on the simulated NVML library, with the file tree that the scenario's host would have."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.unit.plugins.fake_host import FakeHost

ROOT = Path(__file__).resolve().parents[3]
SIMULATORS = ROOT / "tests" / "simulators"
MAJOR, UVM_MAJOR = 195, 511


LOOKER = """
import json, os, sys, pynvml
from ansible_collections.baremetal.gpu.plugins.module_utils import nvml_session, snapshot
nvml_session.RETRY_S = float(sys.argv[1])
reader = snapshot.Reader(pynvml, os.environ["SIMULATED_ROOT"])
for line in sys.stdin:
    print(json.dumps(reader.read(slow=line == "slow\\n")), flush=True)
"""


def scenario(name: str, **changes: Any) -> dict[str, Any]:
    """A scenario that stands alone: without a simulated kernel it says itself that the module is loaded."""
    found: dict[str, Any] = json.loads((SIMULATORS / "scenarios" / f"{name}.json").read_text(encoding="utf-8"))
    found["kernel"] = "assume-loaded"
    found.update(changes)
    return found


class SimulatedHost(FakeHost):
    """A host with the cards of a scenario. Its device files are there and right, as far as its user may make any."""

    def __init__(self, root: Path, library: Path) -> None:
        super().__init__(root)
        self.library = library
        self.scenario: dict[str, Any] = {}
        self.path_of_scenario = root / "scenario.json"

    def take(self, name: str, **changes: Any) -> None:
        self.scenario = scenario(name, **changes)
        self.save()
        self.write("proc/sys/kernel/random/boot_id", "5c3a1f2e-8f6b-4c1d-9e2a-000000000001\n")
        self.write("proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 - Live 0x0\n")
        self.write("proc/devices", f"Character devices:\n{MAJOR} nvidia\n{UVM_MAJOR} nvidia-uvm\n\nBlock devices:\n")
        self.loaded(self.scenario["driver"]["version"])
        for card in (*self.scenario["devices"], *self.scenario["switches"]):
            pci = card["pci"]
            if card.get("state") == "gone":
                continue
            self.pci(pci["address"], pci["device"], pci_class=pci["class"], driver="nvidia", numa=pci["numa_node"])
            self.write(f"sys/bus/pci/devices/{pci['address']}/local_cpulist", f"{pci['cpus']}\n")
        for card in self.scenario["devices"]:
            self.write(
                f"proc/driver/nvidia/gpus/{card['pci']['address']}/information",
                f"Model: \t\t {card['name']}\nGPU UUID: \t {card['uuid']}\nDevice Minor: \t {card['minor']}\n",
            )

    def save(self) -> None:
        """What is changed in the scenario holds from here on."""
        fresh = self.path_of_scenario.with_suffix(".new")
        fresh.write_text(json.dumps(self.scenario), encoding="utf-8")
        fresh.replace(self.path_of_scenario)

    def restore(self, before: dict[str, Any]) -> None:
        self.scenario = copy.deepcopy(before)
        self.save()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library),
            "NVML_SIMULATOR_SCENARIO": str(self.path_of_scenario),
            "SIMULATED_ROOT": self.path,
        }

    @contextlib.contextmanager
    def looking(self, retry_s: float = 0.0) -> Iterator[Callable[..., dict[str, Any]]]:
        """A process that keeps NVML open and takes a look whenever it is called; `slow` takes a slow one."""
        with subprocess.Popen(
            [sys.executable, "-c", LOOKER, str(retry_s)],
            env=self.environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:

            def look(slow: bool = False) -> dict[str, Any]:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("slow\n" if slow else "quick\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line, f"the process ended with {process.wait()}"
                return json.loads(line)  # type: ignore[no-any-return]

            yield look

    def python(self, code: str, *arguments: str) -> Any:
        """What a program with the simulated library in its search path prints as JSON."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self.environment,
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
