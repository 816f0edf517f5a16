# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether nodes of Slurm take jobs of every kind.

`hosts` are {name: {"jobs": what accept_jobs returns, or None for a host that is no node of Slurm}}; what hosts send is
untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    NOT_APPLICABLE,
    NOT_TESTABLE,
    SCHEDULER,
    Item,
    judged,
    row_of,
)

# What a kind of job that fails is mended with.
REMEDIES = {
    "batch": "see `journalctl -u slurmd` on {host}, and `gpuops doctor {host}`",
    "array": "see `journalctl -u slurmd` on {host}, and `gpuops doctor {host}`",
    "interactive": "let the nodes reach the host of srun on all ports, or set SrunPortRange",
    "gpu": "set ConstrainDevices=yes: run `gpuops up --tags slurm`",
    "memory": "set ConstrainRAMSpace=yes, and let the kernel account memory: run `gpuops up --tags slurm`",
    "accounting": "see `journalctl -u slurmdbd` on its host, and `sacctmgr show cluster`",
}
OURS = "operator"


def _state(name: str, row: Mapping[str, Any]) -> Item:
    told = f"{row.get('state')}{': ' if row.get('reason') else ''}{row.get('reason') or ''}"
    if row.get("owner") == OURS:
        remedy = f"`gpuops restore {name}`, then `gpuops accept --stages {SCHEDULER} --limit {name}`"
        return Item("scheduler.state", SCHEDULER, name, NOT_TESTABLE, told, remedy)
    good = row.get("in_service") is True and row.get("drained") is False
    remedy = f"see who took it out, and why: `gpuops doctor {name}`"
    return judged("scheduler.state", SCHEDULER, name, good, told, remedy)


def items(hosts: Mapping[str, Mapping[str, Any]]) -> list[Item]:
    """All items of the stage. A row may have "why": what kept the node from being asked."""
    found = []
    for name, host in hosts.items():
        row = row_of(host.get("jobs"))
        if not row:
            if host.get("why") or "jobs" not in host:
                why = str(host.get("why") or "the host did not answer")
                found.append(Item("scheduler.state", SCHEDULER, name, NOT_TESTABLE, why))
            else:
                found.append(Item("scheduler.state", SCHEDULER, name, NOT_APPLICABLE, "the host is no node of Slurm"))
            continue
        found.append(_state(name, row))
        kinds = row_of(row.get("kinds"))
        if row.get("why") or not kinds:
            found.append(Item("scheduler.batch", SCHEDULER, name, NOT_TESTABLE, f"{row.get('why')}"))
        for kind, remedy in REMEDIES.items():
            told = row_of(kinds.get(kind))
            if told:
                good = told.get("ok") if isinstance(told.get("ok"), bool) else None
                text = str(told.get("text"))
                found.append(judged(f"scheduler.{kind}", SCHEDULER, name, good, text, remedy.format(host=name)))
    return found
