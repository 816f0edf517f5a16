# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a node as the host's agent reports them, for what gives them to pods.

A GPU may be given out once the agent has seen it well, and until it reports a fatal verdict for it or for the host.
What it cannot tell changes nothing, and neither does a report that is missing, damaged or too old.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# More GPUs than any host has.
GPUS_AT_MOST = 256


@dataclass(frozen=True)
class Gpu:
    """:ivar code: of the fatal verdict that withholds it, `not_seen_well` before its first good one, empty if it may
    be given out.
    :ivar numa: the NUMA node, None where the host does not have the GPU at one.
    :ivar minor: the number of its device file.
    :ivar scores: how near each other GPU is, by UUID; see gpu/topology.py.
    """

    uuid: str
    code: str
    text: str = ""
    numa: int | None = None
    index: int | None = None
    minor: int | None = None
    model: str = ""
    address: str = ""
    architecture: str = ""
    memory_mib: int = 0
    scores: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        return not self.code


NOT_SEEN_WELL, NOT_ASKED = "not_seen_well", "not_asked"


class Gpus:
    """`refresh` reads the report where it is another than before. `held` are the GPUs that the reconciler withholds,
    UUID -> code; None until it is known, and until then no GPU is given out."""

    def __init__(self, root: str = "/", held: Mapping[str, str] | None = MappingProxyType({})) -> None:
        self.root, self.held = root, held
        self.found: dict[str, Gpu] = {}
        # The last report that could be used; None while there is none.
        self.result: dict[str, Any] | None = None
        self._own: dict[str, Gpu] = {}
        # Why the report cannot be used; empty if it can.
        self.problem = "the agent has not reported yet"
        self._seen: tuple[int, ...] = ()
        self._changed, self._number = threading.Condition(), 0

    def refresh(self) -> bool:
        """Whether anything changed."""
        before = self.found, self.problem
        try:
            seen = self._stat()
            if seen == self._seen and not self.problem and self.result is not None:
                # One that is written no more gets old.
                agent_result.check_age(self.result)
                result = None
            else:
                result = agent_result.read(self.root)
                self._seen = seen
            self.problem = ""
        except (OSError, agent_result.Unusable) as why:
            self.problem, result, self.result = one_line(why, 300), None, None
        if result is not None:
            self.result, self._own = result, judged(result, self._own)
        self.found = {uuid: withheld(gpu, self.held) for uuid, gpu in self._own.items()}
        if before == (self.found, self.problem):
            return False
        with self._changed:
            self._number += 1
            self._changed.notify_all()
        return True

    def wait(self, number: int, timeout_s: float) -> int:
        """The number of the last change; waits so long for one after that of `number`. From any thread."""
        with self._changed:
            if self._number == number:
                self._changed.wait(timeout_s)
            return self._number

    def _stat(self) -> tuple[int, ...]:
        status = os.stat(os.path.join(self.root, agent_result.path(self.root).lstrip("/")))
        return status.st_ino, status.st_mtime_ns, status.st_size


def withheld(gpu: Gpu, held: Mapping[str, str] | None) -> Gpu:
    """The GPU as it is given out, by its own verdict and by the reconciler's word."""
    if not gpu.is_well or (held is not None and gpu.uuid not in held):
        return gpu
    if held is None:
        return dataclasses.replace(gpu, code=NOT_ASKED, text="the API server was not asked yet what is held back")
    return dataclasses.replace(gpu, code=held[gpu.uuid], text="the reconciler holds it back")


def judged(result: Mapping[str, Any], before: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """UUID -> GPU, by a report that can be relied on and what was known before."""
    report = result["health"]
    of_host = _fatal(report)
    facts = result.get("facts")
    rows = _rows(facts, "devices")
    found: dict[str, Gpu] = {}
    for part in report["devices"][:GPUS_AT_MOST]:
        uuid = part.get("uuid")
        if not isinstance(uuid, str) or not uuid.startswith("GPU-") or len(uuid) > 63:
            continue
        known = before.get(uuid)
        code, text = _fatal(part) or of_host or ("", "")
        if not code and part["verdict"] == UNKNOWN:
            code, text = (known.code, known.text) if known else (NOT_SEEN_WELL, "the agent cannot tell yet")
        row = next((row for row in rows if row.get("uuid") == uuid), {})
        found[uuid] = Gpu(
            uuid,
            code,
            text,
            numa=_number(row.get("numa_node"), 4096),
            index=_number(row.get("index"), GPUS_AT_MOST),
            minor=_number(row.get("minor"), 1 << 16),
            model=one_line(row.get("name") or "", 64),
            address=one_line(row.get("pci_address") or "", 32),
            architecture=one_line(row.get("architecture") or "", 32),
            memory_mib=_number(row.get("memory_mib"), 1 << 30) or 0,
            scores=_scores(facts, rows, uuid),
        )
    for uuid, gpu in before.items():
        # A GPU that fell off the bus may be reported without its UUID, or not at all.
        if uuid not in found:
            found[uuid] = gpu if gpu.code else dataclasses.replace(gpu, code="not_reported", text="it is not reported")
    return found


def _number(value: Any, limit: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def _fatal(part: Mapping[str, Any]) -> tuple[str, str] | None:
    """(code, text) of the first fatal reason."""
    for row in part["reasons"]:
        if row.get("verdict") == FATAL:
            return one_line(row.get("code") or "fatal", 60), one_line(row.get("text") or "", 300)
    return None


def _rows(facts: Any, name: str) -> list[dict[str, Any]]:
    rows = facts.get(name) if isinstance(facts, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _scores(facts: Any, rows: list[dict[str, Any]], uuid: str) -> dict[str, int]:
    topology = facts.get("topology") if isinstance(facts, dict) else None
    scores = topology.get("scores") if isinstance(topology, dict) else None
    place = next((place for place, row in enumerate(rows) if row.get("uuid") == uuid), None)
    mine = scores[place] if isinstance(scores, list) and place is not None and place < len(scores) else None
    if not isinstance(mine, list):
        return {}
    return {
        str(row.get("uuid")): score
        for row, score in zip(rows, mine)
        if isinstance(score, int) and not isinstance(score, bool)
    }
