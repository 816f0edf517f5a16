# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to the fence: from a fatal line in the kernel's log until Mesos gives no new task to the node.

The agent's own program on a simulated host, a real ZooKeeper, `gpuops reconcile` with its default intervals, and the
stand-in of the Mesos master. The clock stops when a program that asks the master repeatedly reads that the agent is
deactivated. A job runs on a healthy GPU all the time and must survive every fault; an operator clears each fault before
the next.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench import harness
from tests.bench.watched_host import PATIENCE_S, WatchedHost, missing
from tests.local_zookeeper import LocalZooKeeper, NotHere
from tests.unit.reconcile import places
from tests.unit.reconcile.site import ISOLATION, Site

FAULTS = 50
GOAL_S = 1.0
XID = 79
GPUS = 8
PAUSE_S = (0.05, 2.05)


def _until(site: Site, state: str) -> float:
    """When the master tells this of the agent."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        row = site.cluster.slave("n1")
        if row is not None and ("deactivated" if row["deactivated"] else "active") == state:
            return time.monotonic()
        time.sleep(0.001)
    raise SystemExit(f"the agent of Mesos was not {state} within {PATIENCE_S:g} s: {site.entries()[-3:]}")


def _faults(site: Site, host: WatchedHost, count: int) -> list[tuple[float, float]]:
    """(from the line to the fence, from the published verdict to the begun fence) in seconds, of each fault."""
    dice, found = random.Random(0), []
    gpus = [gpu["pci"]["address"] for gpu in host.host.scenario["devices"]]
    for number in range(count):
        time.sleep(dice.uniform(*PAUSE_S))
        gpu = 1 + number % (GPUS - 1)
        at = host.log(f"NVRM: Xid (PCI:{gpus[gpu][:-2]}): {XID}, GPU has fallen off the bus.")
        fenced = _until(site, "deactivated")
        verdict = host.result()
        assert verdict is not None
        row = site.cluster.task("job")
        if row["state"] != "TASK_RUNNING":
            raise SystemExit(f"the job on a healthy GPU is {row['state']}")
        ended = next(row for row in reversed(site.entries("end", "n1")) if row["kind"] == "deactivate")
        found.append((fenced - at, ended["time"] - verdict["health"]["devices"][gpu]["since"]))
        host.ask(do="clear")
        _until(site, "active")
    return found


def _rows(found: list[tuple[float, float]], quick: bool) -> list[harness.Figure]:
    rows = []
    for place, what in enumerate(
        ("fatal line in the kernel's log → no new task on the node", "fatal verdict → DEACTIVATE_AGENT acknowledged")
    ):
        seconds = [row[place] for row in found]
        goal = None if quick else GOAL_S
        rows.append(harness.Figure.of(what, "wall", "s", seconds, goal))
    return rows


def run(quick: bool) -> list[harness.Figure]:
    lacking = missing()
    if lacking:
        raise harness.NotHere(lacking)
    with tempfile.TemporaryDirectory(prefix="bench-fence-") as name:
        base = Path(name)
        try:
            server = LocalZooKeeper(base / "zookeeper")
        except NotHere as why:
            raise harness.NotHere(str(why)) from why
        (base / "site").mkdir()
        policy: dict[str, Any] = {"breaker_count": 1000}
        site = Site(base / "site", server, poll_s=2.0, session_s=10, policy=policy)
        try:
            indices = ",".join(map(str, range(GPUS)))
            flags = [ISOLATION, f"--resources=gpus:{GPUS}", f"--nvidia_gpu_devices={indices}"]
            site.cluster.agent("n1", *flags, gpus=",".join(["ok"] * GPUS))
            agent = site.cluster.registered("n1")
            site.cluster.launch(site.cluster.framework("GPU_RESOURCES"), agent["id"], "job", "sleep 3600", gpus=1)
            site.leading()
            user, password = site.login("n1")
            credentials = str(places.private(base / "login", {"user": user, "password": password}))
            where = {"servers": [server.address], "host": "n1", "path": site.path, "credentials": credentials}
            with WatchedHost(10, {"zookeeper": where}) as host:
                verdicts = f"{site.path}/hosts/n1/verdict"
                while not site.client.exists(verdicts) or json.loads(site.client.get(verdicts)[0])["verdict"] != "ok":
                    time.sleep(0.1)
                found = _faults(site, host, 5 if quick else FAULTS)
        finally:
            site.stop()
            server.stop()
    return _rows(found, quick)
