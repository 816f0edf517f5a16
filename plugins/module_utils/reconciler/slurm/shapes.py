# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of Slurm as the reconciler sees it, and the steps that there are on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import KINDS as CORE_KINDS
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Holder, Job

KINDS = ("guard", "hold", "cancel", "unguard", "signal", "requeue", "drain_node", "resume", *CORE_KINDS)
FENCES = ("guard", "drain_node")


@dataclass(frozen=True)
class SlurmNode:
    """Positions of GPUs are in the order of gres.conf; `minors` is None where that does not list those that slurmctld
    gives out. `guard` is when the guard ends, in Unix seconds, None without one. `users` are the jobs there if a bad
    GPU is in use, and none otherwise. `faults` is what `plan.faults_of` makes of the verdict."""

    id: str
    minors: Sequence[int] | None
    used: Sequence[int]
    free_cpus: int
    drained: bool
    silent: bool
    reason: str
    guard: float | None
    holders: Sequence[Holder]
    users: Sequence[Job]
    faults: Mapping[str, Any]

    @property
    def takes_jobs(self) -> bool:
        return not self.drained and not self.silent


@dataclass(frozen=True)
class SlurmStep(Step):
    # Jobs, positions of GPUs and how many holders.
    details: Mapping[str, Any] = field(default_factory=dict)

    KINDS: ClassVar[tuple[str, ...]] = KINDS

    @property
    def fences(self) -> bool:
        return self.kind in FENCES

    def told(self) -> dict[str, Any]:
        return {**super().told(), **({"details": dict(self.details)} if self.details else {})}
