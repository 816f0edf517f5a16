# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler tells Prometheus, in a file for the textfile collector of node_exporter.

Whoever leads tells of the fleet. The others tell that they do not lead, so that each series comes once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Metrics, Sample, exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.driver import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy

# The file is written when it changes, and otherwise so often: its age tells whether the reconciler still looks.
INTERVAL_S = 15.0
# A step that fails again and again is tried within `retry_s`. One that failed longer ago is not tried any more.
LATE_S = 60.0

METRICS: Metrics = {
    "gpuops_reconciler_leader": ("gauge", (), "Whether this reconciler leads. Only the leader has the others."),
    "gpuops_reconciler_fence_timestamp_seconds": (
        "gauge",
        ("node", "uuid", "step"),
        "When a fence that is in effect began, with the step that it is at; without uuid for a whole host.",
    ),
    "gpuops_reconciler_breaker_waiting_hosts": (
        "gauge",
        (),
        "Hosts that the fleet breaker keeps from being taken out.",
    ),
    "gpuops_reconciler_quarantine_info": ("gauge", ("node", "uuid"), "A GPU in quarantine; the value is always 1."),
    "gpuops_reconciler_problems": (
        "gauge",
        (),
        "Hosts for which the reconciler cannot do its work, and one more where ZooKeeper or the scheduler fails.",
    ),
}
STANDBY: tuple[Sample, ...] = (("gpuops_reconciler_leader", {}, 0.0),)


def leader(driver: Driver, refused: Iterable[str], complaint: str) -> Iterator[Sample]:
    """What whoever leads tells.

    :param refused: hosts whose nodes in ZooKeeper cannot be used.
    :param complaint: what is wrong with ZooKeeper or the scheduler; empty if nothing is.
    """
    yield "gpuops_reconciler_leader", {}, 1.0
    now = driver.clock()
    wrong = {*refused, *driver.apart, *(host for host, node in driver.nodes.items() if node.problem)}
    for host, memory in sorted(driver.memories.items()):
        if memory["fenced"]:
            for uuid, step in driver.plan.fences(memory, driver.nodes.get(host)):
                labels = {"node": host, "uuid": uuid or None, "step": step}
                yield "gpuops_reconciler_fence_timestamp_seconds", labels, memory["fenced"]["at"]
        for uuid, row in sorted(memory["gpus"].items()):
            if row.get("quarantine"):
                yield "gpuops_reconciler_quarantine_info", {"node": host, "uuid": uuid}, 1.0
        if _fails(memory, driver.policy, now):
            wrong.add(host)
    yield "gpuops_reconciler_breaker_waiting_hosts", {}, float(len(driver.waiting) if driver.held else 0)
    yield "gpuops_reconciler_problems", {}, float(len(wrong) + bool(complaint))


def _fails(memory: Mapping[str, Any], policy: Policy, now: float) -> bool:
    failed = memory["failed"]
    return bool(failed) and now - failed["at"] < 2 * policy.retry_s + LATE_S


class Textfile:
    """Writes `path`, nothing without one. What goes wrong is told once; the reconciler goes on."""

    def __init__(self, path: str | None, complain: Callable[[str], object]) -> None:
        self._path, self._complain = path, complain
        self._problem = ""
        self._text, self._due = "", 0.0
        self._lock = threading.Lock()

    def write(self, samples: Iterable[Sample]) -> None:
        """From any thread."""
        if self._path is None:
            return
        text = exposition(samples, METRICS)
        with self._lock:
            if text != self._text or time.monotonic() >= self._due:
                self._replace(self._path, text)

    def _replace(self, path: str, text: str) -> None:
        # One that cannot be written is not tried at every turn either.
        self._text, self._due = text, time.monotonic() + INTERVAL_S
        problem = ""
        try:
            host_files.write(path, text, durable=False)
        except (OSError, ValueError) as why:
            problem = f"{path} cannot be written: {one_line(getattr(why, 'strerror', None) or why)}"
            # An old file would pass for what is there now.
            self.remove()
        if problem and problem != self._problem:
            self._complain(f"{problem}. To do: see the directory and its disk")
        self._problem = problem

    def remove(self) -> None:
        """Without a reconciler there is nobody to keep the series true, so they end."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
