# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler needs of a scheduler. Mesos and Slurm are the two that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.shapes import Decision, Node, Policy, Step

# Told of a subject: what of it cannot be used, and why.
Say = Callable[[str, str], None]
Memory = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """What a scheduler has under the name of one host.

    :ivar rows: its agents or nodes; more than one is a problem, and none of them is touched.
    :ivar scheduled: whether others have planned maintenance for it.
    """

    rows: tuple[Mapping[str, Any], ...] = ()
    scheduled: bool = False


class Backend(Protocol):
    """A scheduler as the driver uses it. Its decisions are pure; `look` and `perform` raise CallFailed."""

    def look(
        self, verdicts: Mapping[str, Mapping[str, Any]], memories: Mapping[str, Memory], say: Say
    ) -> dict[str, Seen]:
        """What there is of each host that the scheduler knows. `verdicts` are those that can be used."""

    def observe(self, memory: Memory, node: Node, policy: Policy, now: float) -> dict[str, Any]:
        """The memory with what is seen now."""

    def decide(self, memory: Memory, node: Node, policy: Policy, held: str, now: float) -> Decision:
        """The next step on a node; `held` says why nothing that takes a node out may begin."""

    def waits(self, memory: Memory, node: Node, policy: Policy, now: float) -> bool:
        """Whether a node that nobody has fenced is to be."""

    def closing(self, memory: Memory, node: Node, policy: Policy, now: float) -> Step | None:
        """What closes a node with others by one order, in the place of its next step; None where nothing does."""

    def close(self, hosts: Sequence[str], step: Step) -> None:
        """Take the step on all of them by one order."""

    def perform(self, host: str, step: Step) -> None:
        """Take a step that is the scheduler's. Others are the driver's."""
