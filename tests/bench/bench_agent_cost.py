# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent costs a host with eight GPUs: CPU and memory of it and its child, at its default interval.

The agent writes all metrics that it can: its own, and both sets with the names of the DCGM exporter. It is watched for
ten minutes, or for BENCH_AGENT_SECONDS seconds. The cost includes the work of the simulated library, which reads its
scenario from a file but does not wait for a GPU.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from tests.bench import harness
from tests.bench.watched_host import WatchedHost, missing

SECONDS = 600.0
SAMPLE_S = 5.0
GOAL_PERCENT = 0.5
GOAL_MB = 40.0
# A real library sleeps until there is an event. The simulated one has to look, and need not here.
EVENT_PAUSE_MS = 2000


def cpu_s(processes: list[int]) -> float:
    """Seconds on a CPU of all threads of the processes so far."""
    files = [file for number in processes for file in Path(f"/proc/{number}/task").glob("*/schedstat")]
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in files) / 1e9


def memory_mb(processes: list[int]) -> float:
    """Proportional set size: what the agent and its child share counts once."""
    found = 0
    for number in processes:
        pss = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{number}/smaps_rollup").read_text("ascii"), re.MULTILINE)
        found += int(pss[1]) if pss else 0
    return found * 1024 / 1e6


def run(quick: bool) -> list[harness.Figure]:
    lacking = missing()
    if lacking:
        print(f"agent_cost: not measured: {lacking}")
        return []
    seconds = float(os.environ.get("BENCH_AGENT_SECONDS", "20" if quick else SECONDS))
    with WatchedHost(EVENT_PAUSE_MS, {"dcgm_names": "both"}) as host:
        start_s = cpu_s(host.processes())
        begun, before = time.monotonic(), start_s
        memory = []
        looked, processes = set(), host.processes()
        while time.monotonic() < begun + seconds:
            time.sleep(SAMPLE_S)
            if host.processes() != processes:
                raise SystemExit("the agent's child is another one than before: it was killed, or it crashed")
            memory.append(memory_mb(processes))
            result = host.result()
            looked.add(result["agent"]["probe_time"] if result else None)
        took = time.monotonic() - begun
        share = 100 * (cpu_s(processes) - before) / took
        host.is_well()
    what = f"8 GPUs, {took:.0f} s, a look every 15 s"
    goals = (None, None) if quick else (GOAL_PERCENT, GOAL_MB)
    return [
        harness.Figure(what, "CPU of one core", "%", share, share, len(looked), goals[0]),
        harness.Figure.of(what, "memory (PSS of both)", "MB", memory, goals[1]),
        harness.Figure("start, with the first look", "CPU", "s", start_s, start_s, 1),
    ]
