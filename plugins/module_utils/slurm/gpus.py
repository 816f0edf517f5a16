# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a job and what the host's agent says of them.

SLURM_JOB_GPUS has positions in the node's list of GPUs, not minors: they are looked up in gres.conf, which lists the
device files in that order.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# Where slurmd keeps what it has from slurmctld, and where an operator's own file would be.
GRES_FILES = ("run/slurm/conf/gres.conf", "etc/slurm/gres.conf")
GRES_AT_MOST = 4 << 20
GPUS_AT_MOST = 64
REASONS_AT_MOST = 3


class Unclear(Exception):
    """Which GPUs the job has cannot be told; the message says why."""


@dataclass(frozen=True)
class Reason:
    """Why a GPU is not to be used: the agent's code, what was seen, and what to do."""

    code: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Gpu:
    """A GPU of a job.

    :ivar name: what users see of it: its UUID, or its device file where that is not known.
    :ivar reasons: of a fatal verdict.
    """

    minor: int
    name: str
    verdict: str
    reasons: tuple[Reason, ...] = ()


def numbers(text: str) -> list[int]:
    """The numbers of a list such as 0-3,8, in its order. Raises Unclear."""
    found: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part.strip())
        if span is None:
            raise Unclear(f"{one_line(text, 60)!r} is no list of GPUs")
        first = int(span[1])
        last = int(span[2] or first)
        if last < first or len(found) + last - first >= GPUS_AT_MOST:
            raise Unclear(f"{one_line(text, 60)!r} is no list of GPUs")
        found += range(first, last + 1)
    return found


def listed_minors(text: str, node: str) -> list[int]:
    """The minors of a node's GPUs in the order of gres.conf. Raises Unclear."""
    found: list[int] = []
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.partition("#")[0].split() if "=" in word)
        # Slurm takes the keys in any letters.
        values = {key.lower(): value for key, value in words.items()}
        if values.get("name") != "gpu" or values.get("nodename", node) != node:
            continue
        device = re.fullmatch(r"/dev/nvidia(?:([0-9]{1,4})|\[([0-9,-]{1,200})\])", values.get("file", ""))
        if device is None:
            raise Unclear("gres.conf lists a GPU without a device file of its own")
        found += numbers(device[1] or device[2])
    return found


def node_minors(node: str, root: str = "/") -> list[int]:
    """The minors of a node's GPUs by position. Raises Unclear."""
    for path in GRES_FILES:
        text = read_text(below(root, path), GRES_AT_MOST)
        if text:
            return listed_minors(text, node)
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
    for path in glob.glob(below(root, "proc/driver/nvidia/gpus/*/information"))[:GPUS_AT_MOST]:
        minor = re.search(r"^Device Minor:\s*(\d{1,4})\s*$", read_text(path, 4096), re.MULTILINE)
        if minor:
            found[int(minor[1])] = normal_address(os.path.basename(os.path.dirname(path)))
    return found


def _reasons(part: Mapping[str, Any]) -> tuple[Reason, ...]:
    fatal = [row for row in part["reasons"] if row.get("verdict") == "fatal"][:REASONS_AT_MOST]
    return tuple(
        Reason(*(one_line(row.get(key, ""), most) for key, most in (("code", 60), ("text", 300), ("remedy", 300))))
        for row in fatal
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


def parts(result: Mapping[str, Any], minors: Sequence[int], root: str = "/") -> list[Mapping[str, Any]]:
    """What a result of the agent says of the GPUs of these minors; empty for one that it does not know."""
    addresses = _addresses(root)
    return [_matching(result["health"], result.get("facts"), minor, addresses) for minor in minors]


def judged(job_minors: Sequence[int], root: str = "/") -> tuple[list[Gpu], str]:
    """The GPUs with the agent's verdicts, and why there are none: empty where they can be relied on.

    A fatal verdict on the node as a whole is one on each of its GPUs.
    """
    try:
        result = agent_result.read(root)
    except agent_result.Unusable as failure:
        return [Gpu(minor, f"/dev/nvidia{minor}", "unknown") for minor in job_minors], one_line(failure, 200)
    of_node = _reasons(result["health"])
    found = []
    for minor, part in zip(job_minors, parts(result, job_minors, root)):
        name = one_line(part.get("uuid") or f"/dev/nvidia{minor}", 60)
        reasons = (*(_reasons(part) if part else ()), *of_node)
        verdict = "fatal" if reasons else part.get("verdict", "unknown")
        found.append(Gpu(minor, name, verdict, reasons[:REASONS_AT_MOST]))
    return found, ""
