# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Mesos agent as the reconciler sees it, and the steps that there are on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import KINDS as CORE_KINDS
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Step

KINDS = ("deactivate", "drain", "reactivate", *CORE_KINDS)


@dataclass(frozen=True)
class Agent:
    """`gpus` is how many it offers. `tasks` are the ids of those that hold resources. `grace_s` and `drain_since` are
    those of a drain, None where Mesos does not show one."""

    id: str
    state: str
    gpus: float = 0.0
    tasks: Sequence[str] = ()
    grace_s: float | None = None
    drain_since: float | None = None
    ip: str = ""

    @property
    def takes_jobs(self) -> bool:
        return self.state == "active"


@dataclass(frozen=True)
class MesosStep(Step):
    agent_id: str = ""
    # Between SIGTERM and SIGKILL of a drain.
    grace_s: int = 0
    # What others had done to the agent that this one took the place of.
    for_others: bool = False
    # Mesos has no agent of this node.
    unregistered: bool = False

    KINDS: ClassVar[tuple[str, ...]] = KINDS

    @property
    def fences(self) -> bool:
        return (self.kind == "deactivate" and not self.for_others) or self.unregistered

    def told(self) -> dict[str, Any]:
        row = {**super().told(), "for_others": self.for_others}
        if self.agent_id:
            row["agent_id"] = self.agent_id
        if self.kind == "drain":
            row["grace_s"] = self.grace_s
        return row
