# SPDX-License-Identifier: GPL-3.0-or-later
"""A made-up site for the page of GPUs: what node_exporter gives on each host at a time. The text is that of the agent's
and Slurm's own programs; the readings, nodes and jobs are hand-made."""

from __future__ import annotations

import math
import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import metrics
from tests.unit.plugins.health_host import Host, uuid

MARKUP = '<img src=x onerror="document.title=1">'
GPUS = 8
NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
SILENT = "gpu5"
HEAD = "head1"
# Job, its name, its user, node, minors, seconds for which it runs, and whether it computes.
JOBS = (
    ("101", "pretrain-7b", "alice", "gpu1", range(8), 200_000, True),
    ("102", "finetune", "bob", "gpu2", range(2), 4_000, True),
    ("103", "notebook", "carol", "gpu2", range(4, 5), 90_000, False),
    ("104", MARKUP, 'dave"\\', "gpu3", range(4), 7_000, True),
    ("105", "eval", "alice", "gpu4", range(2), 600, True),
)


def uuid_of(node: str, minor: int) -> str:
    return uuid(minor).replace("-4000-", f"-4{(*NODES, SILENT).index(node):03d}-")


def agent_page(node: str, time: float, now: float, looks: int = 60) -> str:
    """What the agent of a node writes at a time. Jobs have run for so long until `now`."""
    host = Host(gpus=GPUS)
    for minor in range(GPUS):
        host.devices[minor]["uuid"] = uuid_of(node, minor)
        busy = any(
            computes and on == node and minor in minors and time >= now - ran
            for _id, _name, _user, on, minors, ran, computes in JOBS
        )
        wave = math.sin(time / 900 + minor)
        use = round(88 + 10 * wave) if busy else 0
        memory = (36 << 30) + round(wave * (1 << 30)) if busy else 0
        host.read("utilization_percent", {"gpu": use, "memory": use // 2}, minor)
        host.read("temperature_c", round(34 + use / 3 + minor), minor)
        host.change("pcie", minor, generation=4 if busy else 1)
        host.read("power_w", 52 + use * 3.2, minor)
        host.read(
            "memory_bytes", {"total": 40 << 30, "used": memory, "free": (40 << 30) - memory, "reserved": 0}, minor
        )
    if node == "gpu2":
        host.read("ecc_volatile", {"corrected": 0, "uncorrected": 4}, gpu=3)
    if node == "gpu3":
        host.change("pcie", 5, width=8, generation=4)
        host.read("clocks_event_reasons", 0x40, gpu=1)
        host.read("temperature_c", 91, gpu=1)
    host.look(looks)
    result = {
        "agent": {
            "probe_error": None,
            "probe_seconds": 0.02,
            "probe_time": time,
            "stuck": 0,
            "problems": [],
            "xids": [],
        },
        "snapshot": host.snapshot(),
        "health": host.report,
    }
    return publish.page(result, "none")


def _slurm_node(name: str, used: int, state: str, reason: str = "") -> dict[str, Any]:
    takes_jobs = name != SILENT and "DRAIN" not in state
    return {
        "name": name,
        "state": state,
        "reason": reason,
        "takes_jobs": takes_jobs,
        "gpus_free": GPUS - used if takes_jobs else 0,
        "gpus_held": 0,
        "fenced": [],
        "reason_by": "root",
        "reason_since": "",
        "in_service": name != SILENT,
        "drained": "DRAIN" in state,
        "cpus": 64,
        "free_cpus": 60 - used,
        "memory_mib": 500_000,
        "free_memory_mib": 400_000,
        "gpus": GPUS,
        "gpus_used": used,
    }


def slurm_page(time: float, now: float) -> str:
    """What the exporter of Slurm writes at a time."""
    used = {node: sum(len(job[4]) for job in JOBS if job[3] == node) for node in NODES}
    nodes = [_slurm_node(node, used[node], "MIXED") for node in NODES]
    nodes[1] = _slurm_node("gpu2", used["gpu2"], "MIXED+DRAIN", "GPU 3 has memory errors")
    nodes.append(_slurm_node(SILENT, 0, "DOWN+NOT_RESPONDING", "Not responding"))
    jobs = [
        {
            "id": number,
            "name": name,
            "user": user,
            "partition": "batch",
            "account": "default",
            "state": "RUNNING",
            "waits": False,
            "holder": False,
            "started": now - ran,
            "nodes": [{"name": node, "minors": list(minors)}],
        }
        for number, name, user, node, minors, ran, _computes in JOBS
        if time >= now - ran
    ]
    found = {
        "nodes": nodes,
        "partitions": [{"name": "batch", "state": "UP"}],
        "jobs": jobs,
        "stuck": {},
        "waiting": {("batch", "Resources"): 7, ("batch", "Priority"): 3},
    }
    samples = [("slurm_controller_up", {}, 1.0), *metrics.samples(found)]
    return exposition(samples, metrics.METRICS)


def pages(time: float, now: float) -> dict[str, str]:
    """What each host gives."""
    return {**{node: agent_page(node, time, now) for node in NODES}, HEAD: slurm_page(time, now)}


def target(host: str) -> dict[str, str]:
    """The labels of a host's target."""
    return {"host": host, "instance": f"{host}:9100", "job": "node"}


def history(now: float, hours: float, step: float) -> str:
    """What Prometheus has had until now, as OpenMetrics; the silent node fell silent half an hour ago."""
    kept = re.compile(r"((?:gpu_(?:utilization|memory|temperature|power_watts|probe_success))\w*)(?:{(.*)})? (\S+)")
    rows: dict[str, list[str]] = {}
    for number in range(int(hours * 3600 / step), 0, -1):
        time = int(now - number * step)
        for host in (*NODES, *([SILENT] if time < now - 1800 else [])):
            own = ",".join(f'{key}="{value}"' for key, value in target(host).items())
            for found in filter(None, map(kept.fullmatch, agent_page(host, time, now, looks=1).splitlines())):
                name, labels, value = found.groups()
                rows.setdefault(name, []).append(f"{name}{{{own}{',' + labels if labels else ''}}} {value} {time}\n")
    return "".join(f"# TYPE {name} gauge\n{''.join(lines)}" for name, lines in rows.items()) + "# EOF\n"
