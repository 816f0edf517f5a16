# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a job and what the host's agent says of them.

SLURM_JOB_GPUS has positions in the node's list of GPUs, not minors: they are looked up in gres.conf, which lists the
device files in that order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import (
    BYTES_AT_MOST,
    GPUS_AT_MOST,
    Gres,
    Unclear,
    numbers,
)

# Where slurmd keeps what it has from slurmctld, and where an operator's own file would be.
GRES_FILES = ("run/slurm/conf/gres.conf", "etc/slurm/gres.conf")
REASONS_AT_MOST = 3


class Reason(NamedTuple):
    """Why a GPU is not to be used: the agent's code, what was seen, what to do, and since when, if that is known."""

    code: str
    text: str
    remedy: str
    since: float | None


class Gpu(NamedTuple):
    """A GPU of a job.

    :ivar name: what users see of it: its UUID, or its device file where that is not known.
    :ivar reasons: of a fatal verdict.
    """

    minor: int
    name: str
    verdict: str
    reasons: tuple[Reason, ...] = ()

    @property
    def is_fatal(self) -> bool:
        return self.verdict == FATAL


def node_minors(node: str, root: str = "/") -> list[int]:
    """The minors of a node's GPUs by position. Raises Unclear."""
    for path in GRES_FILES:
        text = read_text(below(root, path), BYTES_AT_MOST)
        if text:
            return Gres(text, node).minors(node)
    raise Unclear("the node has no gres.conf")


def minors(job_gpus: str, node: str, root: str = "/") -> list[int]:
    """The minors of a job's GPUs. Raises Unclear."""
    listed = node_minors(node, root)
    positions = numbers(job_gpus)
    if max(positions) >= len(listed):
        raise Unclear(f"the job has the GPUs {one_line(job_gpus, 60)}, and gres.conf lists {len(listed)}")
    return [listed[position] for position in positions]


def _addresses(root: str) -> dict[int, str]:
    """Minor -> PCI address, as the driver has written it down: also of a GPU that answers no more."""
    found = {}
    directory = below(root, "proc/driver/nvidia/gpus")
    for address in os.listdir(directory)[:GPUS_AT_MOST] if os.path.isdir(directory) else ():
        text = read_text(os.path.join(directory, address, "information"), 4096)
        minor = re.search(r"^Device Minor:\s*(\d{1,4})\s*$", text, re.MULTILINE)
        if minor:
            found[int(minor[1])] = normal_address(address)
    return found


def _reasons(part: Mapping[str, Any]) -> tuple[Reason, ...]:
    """Those of a fatal verdict, the oldest first, as the agent has them."""
    fatal = [row for row in part.get("reasons", ()) if row.get("verdict") == FATAL]
    return tuple(map(_reason, fatal[:REASONS_AT_MOST]))


def _reason(row: Mapping[str, Any]) -> Reason:
    evidence = row.get("evidence")
    since = agent_result.number(evidence.get("since")) if isinstance(evidence, dict) else None
    return Reason(
        one_line(row.get("code", ""), 60),
        one_line(row.get("text", ""), 300),
        one_line(row.get("remedy", ""), 300),
        since,
    )


def _matching(report: Mapping[str, Any], facts: Any, minor: int, addresses: Mapping[int, str]) -> Mapping[str, Any]:
    """The part of a report that is about the GPU of a minor; empty without one."""
    rows = facts.get("devices") if isinstance(facts, dict) else None
    rows = rows if isinstance(rows, list) else []
    uuids = {row.get("uuid") for row in rows if isinstance(row, dict) and row.get("minor") == minor} - {None}
    for part in report["devices"]:
        address = part.get("pci_address")
        if part.get("uuid") in uuids or (
            isinstance(address, str) and normal_address(address) == addresses.get(minor, "-")
        ):
            return dict(part)
    return {}


def read(minors: Sequence[int], root: str = "/") -> tuple[tuple[Reason, ...], list[Gpu]]:
    """What the agent says: the fatal reasons of the node as a whole, and its GPUs of these minors.

    Raises agent_result.Unusable.
    """
    result, addresses = agent_result.read(root), _addresses(root)
    found = []
    for minor in minors:
        part = _matching(result["health"], result.get("facts"), minor, addresses)
        name = one_line(part.get("uuid") or f"/dev/nvidia{minor}", 60)
        reasons = _reasons(part)
        found.append(Gpu(minor, name, FATAL if reasons else part.get("verdict", UNKNOWN), reasons))
    return _reasons(result["health"]), found


def judged(job_minors: Sequence[int], root: str = "/") -> tuple[list[Gpu], str]:
    """The GPUs with the agent's verdicts, and why there are none: empty where they can be relied on.

    A fatal verdict on the node as a whole is one on each of its GPUs.
    """
    try:
        of_node, found = read(job_minors, root)
    except agent_result.Unusable as failure:
        return [Gpu(minor, f"/dev/nvidia{minor}", UNKNOWN) for minor in job_minors], one_line(failure, 200)
    if not of_node:
        return found, ""
    return [gpu._replace(verdict=FATAL, reasons=(*gpu.reasons, *of_node)[:REASONS_AT_MOST]) for gpu in found], ""
