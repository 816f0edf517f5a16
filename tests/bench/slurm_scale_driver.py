# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the machine of bench_slurm_scale: the reconciler's driver and its real slurmctld, without ZooKeeper.

Arguments: the directory above ansible_collections, how many nodes there are, and how many of them fail. Prints JSON:
when each node was closed, and when each had its GPU held and was open again, in seconds since they failed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

sys.path.insert(0, sys.argv[1])

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.driver import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.backend import SlurmBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

GPUS = 8
PATIENCE_S = 400.0


class Notes:
    """The store and the journal: keeps nothing but the times of what ended."""

    def __init__(self) -> None:
        self.ended: dict[str, dict[str, float]] = {}

    def write(self, host: str, what: str, **more: Any) -> dict[str, Any]:
        if what == "end" and more["result"] == "done":
            # Nodes that were closed by one order have their guards later.
            kind = "guard" if host == "*" else str(more["kind"])
            for name in more.get("hosts") or [host]:
                self.ended.setdefault(kind, {}).setdefault(name, time.monotonic())
        elif what == "end" or what == "breaker":
            print(host, what, more, file=sys.stderr)
        return {"time": time.time(), "host": host, "what": what, **more}

    def save_node(self, host: str, row: dict[str, Any]) -> None: ...

    def save_fleet(self, row: dict[str, Any]) -> None: ...

    def send(self, host: str, document: dict[str, Any]) -> None: ...

    def sent(self, host: str) -> dict[str, Any]:
        return {}


def verdict(host: str, bad: bool) -> dict[str, Any]:
    devices = []
    for minor in range(GPUS):
        reasons = [{"code": "xid_fatal", "verdict": "fatal", "action": "reboot", "text": "Xid 79"}]
        sick = bad and minor == GPUS - 1
        devices.append(
            {
                "uuid": f"GPU-{host}-{minor}",
                "index": minor,
                "minor": minor,
                "pci_address": f"0000:0{minor}:00.0",
                "verdict": "fatal" if sick else "ok",
                "reasons": reasons if sick else [],
            }
        )
    return {
        "schema": 1,
        "host": host,
        "boot_id": "1",
        "time": time.time(),
        "verdict": "fatal" if bad else "ok",
        "reasons": [],
        "devices": devices,
    }


def main() -> None:
    nodes, failing = int(sys.argv[2]), int(sys.argv[3])
    notes = Notes()
    policy = Policy(mode="act", breaker_share=1.0)
    driver = Driver(notes, SlurmBackend(Slurm()), policy, notes, None, {})  # type: ignore[arg-type]
    names = [f"n{number}" for number in range(1, nodes + 1)]
    driver.verdicts = {name: verdict(name, bad=False) for name in names}
    began = time.monotonic()
    driver.turn()
    look_s = time.monotonic() - began
    bad = names[:failing]
    driver.verdicts = {**driver.verdicts, **{name: verdict(name, bad=True) for name in bad}}
    failed = time.monotonic()
    refused = 0
    while time.monotonic() - failed < PATIENCE_S:
        try:
            driver.turn()
        except CallFailed:
            # As the reconciler does it: slurmctld has too much to do, and is asked again.
            refused += 1
            continue
        if len(notes.ended.get("unguard", ())) == failing and not driver.soon:
            break
    held = {one.node for one in driver.backend.slurm.holders() if one.position == GPUS - 1}  # type: ignore[attr-defined]
    print(
        json.dumps(
            {
                "look_s": look_s,
                "refused": refused,
                "held": len(held & set(bad)),
                **{
                    kind: sorted(at - failed for at in notes.ended.get(kind, {}).values())
                    for kind in ("guard", "hold", "unguard")
                },
            }
        )
    )


if __name__ == "__main__":
    main()
