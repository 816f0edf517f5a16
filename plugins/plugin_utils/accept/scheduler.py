# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether nodes of Slurm take jobs of every kind.

`hosts` are {name: {"jobs": what accept_jobs returns, or None for a host that is no node of Slurm}}, `services` {the
host of slurmctld: {"collectives": what accept_collective returns}}; what hosts send is untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    FLEET_LEAST,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    SCHEDULER,
    Item,
    judged,
    outliers,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number

Rows = Mapping[str, Mapping[str, Any]]

# What a kind of job that fails is mended with.
REMEDIES = {
    "batch": "see `sudo journalctl -u slurmd` on {host}, and `gpuops doctor {host}`",
    "array": "see `sudo journalctl -u slurmd` on {host}, and `gpuops doctor {host}`",
    "interactive": "let the nodes reach the host of srun on all ports, or set SrunPortRange",
    "gpu": "set ConstrainDevices=yes: run `gpuops up --tags slurm`",
    "collective": "look at NVLink and PCIe of the GPUs (`gpuops doctor {host}`), and run it with NCCL_DEBUG=INFO",
    "memory": "set ConstrainRAMSpace=yes, and let the kernel account memory: run `gpuops up --tags slurm`",
    "accounting": "see `sudo journalctl -u slurmdbd` on its host, and `sacctmgr show cluster`",
}
OURS = "operator"
# A node whose GPUs add up this much slower than those of the others is named.
TOLERANCE = 0.1
BETWEEN = "let the nodes reach each other on all ports, and run it with NCCL_DEBUG=INFO: it shows which network it uses"


def _state(name: str, row: Mapping[str, Any]) -> Item:
    told = f"{row.get('state')}{': ' if row.get('reason') else ''}{row.get('reason') or ''}"
    if row.get("owner") == OURS:
        remedy = f"`gpuops restore {name}`, then `gpuops accept --stages {SCHEDULER} --limit {name}`"
        return Item("scheduler.state", SCHEDULER, name, NOT_TESTABLE, told, remedy)
    good = row.get("in_service") is True and row.get("drained") is False and row.get("takes_jobs") is not False
    remedy = f"see who took it out, and why: `gpuops doctor {name}`"
    return judged("scheduler.state", SCHEDULER, name, good, told, remedy)


def _fleet(hosts: Rows) -> list[Item]:
    """Nodes whose GPUs together are slower than those of the others."""
    rates = {
        name: number(mapping(mapping(mapping(host.get("jobs")).get("kinds")).get("collective")).get("gb_s"))
        for name, host in hosts.items()
    }
    known = {name: rate for name, rate in rates.items() if rate}
    named = {row.key: row for row in outliers(known, TOLERANCE)}
    items = []
    for name, rate in known.items():
        text = f"an all-reduce over its GPUs has {rate:.1f} GB/s"
        if len(known) < FLEET_LEAST:
            items.append(Item("scheduler.fleet", SCHEDULER, name, NOT_APPLICABLE, f"{text}; there is no fleet"))
            continue
        evidence = f"{text}, {named[name].share:.0%} of the median" if name in named else text
        remedy = REMEDIES["collective"].format(host=name)
        items.append(judged("scheduler.fleet", SCHEDULER, name, name not in named, evidence, remedy))
    return items


def _between(services: Rows) -> list[Item]:
    items = []
    for name, row in services.items():
        told = mapping(row.get("collectives"))
        if told:
            good = told.get("ok") if isinstance(told.get("ok"), bool) else None
            items.append(judged("scheduler.collectives", SCHEDULER, name, good, str(told.get("text")), BETWEEN))
    return items


def items(hosts: Rows, services: Rows) -> list[Item]:
    """All items of the stage. A row may have "why": what kept the node from being asked."""
    found = []
    for name, host in hosts.items():
        row = mapping(host.get("jobs"))
        if not row:
            if host.get("why") or "jobs" not in host:
                why = str(host.get("why") or "the host did not answer")
                found.append(Item("scheduler.state", SCHEDULER, name, NOT_TESTABLE, why))
            else:
                found.append(
                    Item("scheduler.state", SCHEDULER, name, NOT_APPLICABLE, "the host is not a node of Slurm")
                )
            continue
        found.append(_state(name, row))
        kinds = mapping(row.get("kinds"))
        if row.get("why") or not kinds:
            found.append(Item("scheduler.batch", SCHEDULER, name, NOT_TESTABLE, f"{row.get('why')}"))
        for kind, remedy in REMEDIES.items():
            told = mapping(kinds.get(kind))
            if told:
                good = told.get("ok") if isinstance(told.get("ok"), bool) else None
                text = str(told.get("text"))
                found.append(judged(f"scheduler.{kind}", SCHEDULER, name, good, text, remedy.format(host=name)))
    return found + _fleet(hosts) + _between(services)
