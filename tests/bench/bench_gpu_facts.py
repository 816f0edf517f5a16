# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_facts costs for eight cards, against running `nvidia-smi -q -x` and reading its XML, in pairs in one run.

Both are a Python process on the simulated library, as a module on a host is: one does what gpu_facts does, the other
starts the real nvidia-smi and takes the same facts from its XML. The simulated cards answer in no time, which no real
driver does; so the pairs are repeated with the one cost that NVIDIA documents: a question for PCIe throughput takes
20 ms (nvmlDeviceGetPcieThroughput of the NVML API reference). nvidia-smi asks two of them for each card.

    .venv/bin/python -m tests.bench.bench_gpu_facts [--nvidia-smi PATH] [--quick]

Without an nvidia-smi there is nothing to compare with. Debian's package nvidia-smi 535 has one; `dpkg-deb -x` of it is
enough, and `make bench` takes the one in PATH.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils import gpu
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding
from tests.bench import harness
from tests.unit.plugins.simulated_host import ROOT, SIMULATORS, Looker, SimulatedHost

SCENARIO = "a100-sxm4-40gb-x8"
VERSION = "535.261.03"
THROUGHPUT = [{"call": "nvmlDeviceGetPcieThroughput", "delay_ms": 20}]
# At most a third of nvidia-smi's time.
GOAL = 3.0

FACTS = """
import json, sys
from ansible_collections.baremetal.gpu.plugins.module_utils import gpu, nvml
facts = gpu.gather(sys.argv[2].split(","), nvml.unpack(sys.stdin.read()), 60.0, sys.argv[1])
json.dump(facts, sys.stdout)
"""
XML = """
import json, subprocess, sys
import xml.etree.ElementTree as tree
told = subprocess.run([sys.argv[1], "-q", "-x"], check=True, capture_output=True).stdout
cards = []
for index, card in enumerate(tree.fromstring(told).iter("gpu")):
    def text(path):
        value = card.findtext(path)
        return None if value in (None, "N/A") else value
    cards.append({
        "index": index, "uuid": text("uuid"), "minor": text("minor_number"), "pci_address": card.get("id"),
        "name": text("product_name"), "architecture": text("product_architecture"), "serial": text("serial"),
        "memory_mib": text("fb_memory_usage/total"),
        "ecc": [text("ecc_mode/current_ecc"), text("ecc_mode/pending_ecc")],
        "mig": [text("mig_mode/current_mig"), text("mig_mode/pending_mig")],
        "pcie": [text("pci/pci_gpu_link_info/" + path) for path in (
            "pcie_gen/current_link_gen", "pcie_gen/max_link_gen", "link_widths/current_link_width",
            "link_widths/max_link_width")],
        "uncorrected": text("ecc_errors/volatile/dram_uncorrectable"),
        "processes": len(card.findall("processes/process_info")),
    })
json.dump(cards, sys.stdout)
"""


class Cost(NamedTuple):
    """Seconds, children included, and the bytes of what was told."""

    wall_s: float
    cpu_s: float
    size: int


class Way:
    """One way to learn of the cards: a program, and what it is told on its standard input."""

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
        cards = found["devices"] if isinstance(found, dict) else found
        if len(cards) != 8:
            raise SystemExit(f"{self.name} found {len(cards)} cards: {done.stdout[:500]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Cost(wall, cpu, len(json.dumps(found, separators=(",", ":"))))


def _row(what: str, quantity: str, values: list[tuple[float, float]], goal: float | None) -> harness.Comparison:
    ratio, low, high = harness.interval([theirs / ours for theirs, ours in values])
    theirs, ours = (statistics.median(side) for side in zip(*values, strict=True))
    return harness.Comparison(what, quantity, "s", theirs, ours, ratio, low, high, len(values), goal)


def compare(what: str, theirs: Way, ours: Way, environment: dict[str, str], count: int) -> list[harness.Comparison]:
    """A row for wall and one for CPU, from `count` pairs that take turns at going first, after one to warm up."""
    found = []
    for number in range(count + 1):
        ways = (theirs, ours) if number % 2 else (ours, theirs)
        measured = {way.name: way.run(environment) for way in ways}
        if number:
            found.append((measured[theirs.name], measured[ours.name]))
    what = f"{what} ({found[0][1].size} B of facts)"
    return [
        _row(what, "wall", [(a.wall_s, b.wall_s) for a, b in found], GOAL),
        _row(what, "CPU", [(a.cpu_s, b.cpu_s) for a, b in found], None),
    ]


def run(quick: bool, smi: str | None = None) -> list[harness.Comparison]:
    """nvidia-smi's time divided by ours; nothing to compare with without an nvidia-smi, which is said."""
    smi = smi or shutil.which("nvidia-smi")
    if smi is None:
        print("gpu_facts: no nvidia-smi to compare with here; Debian's package of that name has one")
        return []
    subprocess.run(["make", "-s", "-C", SIMULATORS, "build/libnvidia-ml.so.1"], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        looker = Looker(SIMULATORS / "build", Path(name))
        driver = {"version": VERSION, "library_version": None, "cuda_version": None}
        binding = nvml_binding.packed_source() or ""
        theirs = Way("nvidia-smi -q -x", [sys.executable, "-c", XML, smi])
        for cost, faults in (("answers in no time", []), ("PCIe throughput in 20 ms", THROUGHPUT)):
            host = SimulatedHost(Path(name) / f"root{len(faults)}", looker)
            host.take(SCENARIO, driver=driver, faults=faults)
            for what, subset in (("facts", gpu.COMPACT), ("all facts", gpu.SUBSETS)):
                ours = Way("gpu_facts", [sys.executable, "-c", FACTS, host.path, ",".join(subset)], binding)
                rows += compare(f"{what} of 8 cards, {cost}", theirs, ours, looker.environment, 3 if quick else 11)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvidia-smi", help="the real one; default: the one in PATH")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    harness.report("gpu_facts", run(args.quick, args.nvidia_smi))
    return 0


if __name__ == "__main__":
    sys.exit(main())
