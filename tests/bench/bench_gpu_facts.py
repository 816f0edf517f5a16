# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_facts costs, against running `nvidia-smi -q -x` and reading its XML, in turns in one run.

Both are a Python process on the simulated library that has loaded what every Ansible module loads: one does what
gpu_facts does, the other starts the real nvidia-smi and takes the same facts from its XML. Both include the start of
such a process, which is also shown alone.

The simulated GPUs answer at once, unlike a real driver, so a plain comparison would show how fast Python and C start.
The goal therefore uses the one cost of a call that NVIDIA documents: to read PCIe throughput takes 20 ms
(nvmlDeviceGetPcieThroughput in the NVML API reference), and nvidia-smi does it twice for each GPU. The goal is for the
time beyond a module's start, which is measured in the same rounds.

nvidia-smi is Debian's, see nvidia_smi.py.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding
from tests.bench import harness, nvidia_smi
from tests.unit.plugins.simulated_host import ROOT, SIMULATORS, Looker, SimulatedHost

SCENARIO = "a100-sxm4-40gb-x8"
THROUGHPUT = [{"call": "nvmlDeviceGetPcieThroughput", "delay_ms": 20}]
# At most a third of nvidia-smi's time.
GOAL = 3.0
GPUS = (1, 2, 8)

# What every module has loaded before it begins.
MODULE = "import json, sys\nimport ansible.module_utils.basic\n"
FACTS = f"""{MODULE}
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdicts as gpu_verdicts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
if "health" in sys.argv[2]:
    # The file tree has no device files.
    from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
    device_nodes.is_right = lambda node, root: True
subset, binding = sys.argv[2].split(","), nvml.unpack(sys.stdin.read())
facts = gpu_facts.gather(subset, binding, 60.0, sys.argv[1], verdicts=gpu_verdicts)
json.dump(facts, sys.stdout)
"""
XML = f"""{MODULE}
import subprocess
import xml.etree.ElementTree as tree
told = subprocess.run([sys.argv[1], "-q", "-x"], check=True, capture_output=True).stdout
gpus = []
for index, gpu in enumerate(tree.fromstring(told).iter("gpu")):
    def text(path):
        value = gpu.findtext(path)
        return None if value in (None, "N/A") else value
    gpus.append({{
        "index": index, "uuid": text("uuid"), "minor": text("minor_number"), "pci_address": gpu.get("id"),
        "name": text("product_name"), "architecture": text("product_architecture"), "serial": text("serial"),
        "memory_mib": text("fb_memory_usage/total"),
        "ecc": [text("ecc_mode/current_ecc"), text("ecc_mode/pending_ecc")],
        "mig": [text("mig_mode/current_mig"), text("mig_mode/pending_mig")],
        "pcie": [text("pci/pci_gpu_link_info/" + path) for path in (
            "pcie_gen/current_link_gen", "pcie_gen/max_link_gen", "link_widths/current_link_width",
            "link_widths/max_link_width")],
        "uncorrected": text("ecc_errors/volatile/dram_uncorrectable"),
        "processes": len(gpu.findall("processes/process_info")),
    }})
json.dump(gpus, sys.stdout)
"""


START = f"{MODULE}json.dump([], sys.stdout)"
PYTHON = "print('[]')"


class Cost(NamedTuple):
    """Seconds, children included, and what was told: the number of GPUs and the bytes of JSON."""

    wall_s: float
    cpu_s: float
    gpus: int
    size: int


class Way:
    """One way to learn of the GPUs: a program, and what it is told on its standard input."""

    def __init__(self, name: str, command: list[str], given: str = "") -> None:
        self.name, self.command, self.given = name, command, given

    def run(self, environment: dict[str, str]) -> Cost:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.perf_counter()
        done = subprocess.run(
            self.command, input=self.given, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        wall = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{self.name}: {done.stderr.strip() or done.stdout.strip()}")
        found = json.loads(done.stdout)
        gpus = found["devices"] if isinstance(found, dict) else found
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Cost(wall, cpu, len(gpus), len(json.dumps(found, separators=(",", ":"))))


def _took(rounds: Sequence[list[Cost]], key: str, beyond: bool) -> tuple[float, float]:
    """What nvidia-smi and ours took, whole or beyond a module's start, each the median of the rounds."""
    theirs, ours, start = (statistics.median(getattr(costs[place], key) for costs in rounds) for place in range(3))
    return (theirs - start, ours - start) if beyond else (theirs, ours)


def _row(
    what: str, key: str, rounds: list[list[Cost]], beyond: bool = False, goal: float | None = None
) -> harness.Comparison:
    """The ratio of the medians, with an interval of 95 % from rounds drawn anew."""
    quantity = {"wall_s": "wall", "cpu_s": "CPU"}[key]
    theirs, ours = _took(rounds, key, beyond)
    dice, drawn = random.Random(0), []
    for _time in range(1000):
        a, b = _took(dice.choices(rounds, k=len(rounds)), key, beyond)
        drawn.append(a / b)
    drawn.sort()
    low, high = drawn[25], drawn[974]
    return harness.Comparison(what, quantity, "s", theirs, ours, theirs / ours, low, high, len(rounds), goal)


def compare(
    what: str,
    ways: tuple[Way, ...],
    environment: dict[str, str],
    gpus: int,
    count: int,
    delayed: bool,
    goal: float | None,
) -> tuple[list[harness.Row], list[list[Cost]]]:
    """Rows for wall and CPU from `count` rounds, after one to warm up, in which the ways take turns at going first.

    The ways are nvidia-smi, ours, a module's start and Python's.
    """
    rounds = []
    for number in range(count + 1):
        measured = {way.name: way.run(environment) for way in (ways if number % 2 else ways[::-1])}
        told = {measured[way.name].gpus for way in ways[:2]}
        if told != {gpus}:
            raise SystemExit(f"{what}: {told} GPUs were found, and there are {gpus}")
        if number:
            rounds.append([measured[way.name] for way in ways])
    what = f"{what} ({rounds[0][1].size / 1000:.1f} kB)"

    rows: list[harness.Row] = [_row(what, "wall_s", rounds), _row(what, "cpu_s", rounds)]
    if delayed:
        rows.append(_row(f"{what}, beyond the start", "wall_s", rounds, beyond=True, goal=goal))
    return rows, rounds


def _starts(rounds: list[list[Cost]]) -> list[harness.Row]:
    """What the starts themselves took, and ours whole."""
    rows: list[harness.Row] = []
    for what, place in (("Python's start", 3), ("a module's start", 2), ("gpu_facts of 8 GPUs, with the start", 1)):
        for quantity, key in (("wall", "wall_s"), ("CPU", "cpu_s")):
            values = [getattr(costs[place], key) for costs in rounds]
            rows.append(harness.Figure.of(what, quantity, "s", values))
    return rows


def run(quick: bool) -> list[harness.Row]:
    """nvidia-smi's time divided by ours. Raises harness.NotHere without an nvidia-smi."""
    smi = nvidia_smi.find()
    if isinstance(smi, str):
        raise harness.NotHere(smi)
    subprocess.run(["make", "-s", "-C", SIMULATORS, "build/libnvidia-ml.so.1"], check=True)
    rows: list[harness.Row] = []
    with tempfile.TemporaryDirectory() as name:
        looker = Looker(SIMULATORS / "build", Path(name))
        binding = nvml_binding.packed_source() or ""
        theirs = Way("nvidia-smi", [sys.executable, "-c", XML, str(smi.path)])
        starts = Way("module", [sys.executable, "-c", START]), Way("Python", [sys.executable, "-c", PYTHON])
        host = SimulatedHost(Path(name) / "root", looker)
        host.take(SCENARIO, driver={"version": smi.driver, "library_version": None, "cuda_version": None})
        for gpu in host.scenario["devices"]:
            # The socket of nvidia-persistenced belongs to a whole machine.
            gpu["persistence"] = 1
        every, rounds = host.scenario["devices"], []

        def measure(what: str, gpus: int, subset: tuple[str, ...], delayed: bool = False) -> list[list[Cost]]:
            host.scenario["devices"] = every[:gpus]
            host.save()
            ours = Way("gpu_facts", [sys.executable, "-c", FACTS, host.path, ",".join(subset)], binding)
            ways = (theirs, ours, *starts)
            what = f"{gpus} GPU{'s' * (gpus > 1)}: {what}"
            count, goal = (3, None) if quick else (11, GOAL)
            found, costs = compare(what, ways, looker.environment, gpus, count, delayed, goal)
            rows.extend(found)
            return costs

        for gpus in GPUS:
            rounds = measure("what there is", gpus, gpu_facts.HARDWARE)
        measure("what there is, and the verdicts", 8, gpu_facts.COMPACT)
        measure("everything", 8, gpu_facts.SUBSETS)
        host.scenario["faults"] = THROUGHPUT
        measure("what there is, PCIe throughput in 20 ms", 8, gpu_facts.HARDWARE, delayed=True)
        measure("what there is, and the verdicts, PCIe throughput in 20 ms", 8, gpu_facts.COMPACT, delayed=True)
        rows += _starts(rounds)
    return rows
