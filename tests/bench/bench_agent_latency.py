# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to the published verdict: a line in the kernel's log, and an event of NVML, at the agent's own program.

Faults come at random moments of the agent's interval. A verdict is published when gpu_facts and the scheduler can read
it; the clock stops when a program that reads it every millisecond gets it. The simulated library looks for events every
10 ms.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.bench import harness
from tests.bench.watched_host import WatchedHost, missing

INJECTIONS = 100
GOAL_S = 0.2
EVENT_PAUSE_MS = 10
XID = 79
PAUSE_S = (0.05, 0.35)


def _verdict(number: int, verdict: str) -> Callable[[dict[str, Any]], bool]:
    return lambda result: bool(result["health"]["devices"][number]["verdict"] == verdict)


def _mend(host: WatchedHost) -> None:
    """An operator clears every fault. The agent opens NVML anew then, which takes part of a second."""
    host.ask(do="clear")
    before = (host.result() or {})["agent"]["probe_time"]
    host.ask(do="look")
    host.wait(
        lambda result: result["agent"]["probe_time"] != before and result["health"]["verdict"] == "ok",
        "published that the GPUs are well again",
    )
    time.sleep(1.0)


def _injections(host: WatchedHost, inject: Callable[[int], float], count: int) -> list[float]:
    """Seconds for each of `count` faults, each at a GPU that was well."""
    dice, found = random.Random(0), []
    for number in range(count):
        gpu = number % 8
        if gpu == 0 and number:
            _mend(host)
        time.sleep(dice.uniform(*PAUSE_S))
        at = inject(gpu)
        seen, _result = host.wait(_verdict(gpu, "fatal"), f"published the fault of GPU {gpu}")
        found.append(seen - at)
    return found


def run(quick: bool) -> list[harness.Figure]:
    lacking = missing()
    if lacking:
        print(f"agent_latency: not measured: {lacking}")
        return []
    count = 8 if quick else INJECTIONS
    rows = []
    for what in ("a line in the kernel's log", "an event of NVML"):
        # Another agent for each: of one fault that both tell, the second to tell it is not a new one.
        with WatchedHost(EVENT_PAUSE_MS) as host:
            gpus = [gpu["pci"]["address"] for gpu in host.host.scenario["devices"]]

            def log(gpu: int, host: WatchedHost = host, gpus: list[str] = gpus) -> float:
                return host.log(f"NVRM: Xid (PCI:{gpus[gpu][:-2]}): {XID}, GPU has fallen off the bus.")

            def event(gpu: int, host: WatchedHost = host) -> float:
                return host.event(gpu, XID)

            seconds = _injections(host, log if "kernel" in what else event, count)
        what = f"{what} → published fatal verdict"
        rows.append(
            harness.Figure(
                what, "wall", "s", statistics.median(seconds), max(seconds), count, None if quick else GOAL_S
            )
        )
    return rows
