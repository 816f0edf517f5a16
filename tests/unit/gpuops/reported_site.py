# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a made-up site."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from gpuops.report import collect
from gpuops.run import host_reports, records
from gpuops.site import Site
from tests.unit.gpuops.test_status import GROUPS, REASON, facts, ok, read, well

HOSTILE = "<script>alert(1)</script>"
TOPOLOGY = {
    "scores": [[None, 1250], [1250, None]],
    "kinds": {"1250": {"nvlinks": 12, "pcie": "pix"}},
}


def verified(gpu, good=True):
    return {
        "uuid": gpu["uuid"],
        "ok": good,
        "memory_clock_mhz": 1215,
        "memory_bus_bits": 5120,
        "copy": {"host_to_device_gb_s": 24.1, "device_to_host_gb_s": 25.2, "device_to_device_gb_s": 640.0},
        "kernel": {"ok": good},
    }


def made_up(directory: Path) -> dict[str, Any]:
    """A site of which one run is remembered: g1 passed, g2 failed in cuda. Proofs of GPUs may lie in its directory."""
    events = well()
    events[0] = ok("g1", "gpu_facts", **facts("fatal", **REASON))
    gpu = {
        event["event_data"]["host"]: copy.deepcopy(event["event_data"]["res"]["ansible_facts"]["gpu"])
        for event in events[:2]
    }
    gpu["g1"]["topology"] = TOPOLOGY
    run = records.begin(directory / ".gpuops", set())
    run.event(
        {
            "event": "failure",
            "host": "g2",
            "kind": "failed",
            "stage": "cuda",
            "task": HOSTILE,
            "reasons": [{"cause": "the mirror was away", "remedy": "try again"}],
        }
    )
    run.document(
        host_reports.FILE,
        {
            "g1": {
                "plan": {"steps": ["install driver 570"], "os": {"key": "debian13"}},
                "verify": {"ok": True, "causes": [], "devices": [verified(gpu) for gpu in gpu["g1"]["devices"]]},
            }
        },
    )
    run.save(
        records.Record(
            "baremetal.gpu.site",
            started=1000.0,
            seconds=100.0,
            rc=2,
            stages={"preflight": 5.0, "cuda": 90.0},
            hosts={"g1": "done", "g2": "failed"},
            cells={"g1": {"preflight": "ok", "cuda": "skipped"}, "g2": {"preflight": "ok", "cuda": "failed"}},
            spans={"g1": {"preflight": [0, 5], "cuda": [5, 100]}, "g2": {"preflight": [0, 5], "cuda": [5, 100]}},
        )
    )
    run.close()
    return collect.gather(Site(directory), read(events, GROUPS), gpu, [directory])
