# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm as the reconciler's scheduler: a GPU is held by a job of the operator's, or a node is drained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Memory, Plan, Say, Seen
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.shapes import SlurmNode, SlurmStep
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import FENCE_MARK, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres

# Nodes of one order: the kernel bounds an argument of a program to 128 KiB.
CLOSED_AT_MOST = 1000


def _minors(gres: Gres, row: Mapping[str, Any]) -> list[int] | None:
    """The minors of a node's GPUs by position; None where gres.conf does not tell those that slurmctld gives out."""
    found = gres.known(row["name"])
    return found if len(found) == row["gpus"] else None


class SlurmBackend:
    """See `Backend`. A host's node has the name that the host publishes under."""

    plan: Plan = plan

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm

    def look(
        self, verdicts: Mapping[str, Mapping[str, Any]], memories: Mapping[str, Memory], say: Say
    ) -> dict[str, Seen]:
        # Holders after the nodes: one that started meanwhile has its GPU, and the node has not lost a free core to it.
        gres, guards, nodes = self.slurm.gres(), self.slurm.guards(), self.slurm.nodes()
        holders = self.slurm.holders()
        seen = {}
        for name, row in nodes.items():
            minors = _minors(gres, row)
            mine = [one for one in holders if one.node == name]
            memory = memories.get(name) or plan.empty(name)
            faults = plan.faults_of(memory["slurm"], verdicts.get(name), memory["gpus"])
            bad, _whole = plan.places(faults, minors)
            held = {one.position for one in mine}
            asks = any(position in row["used"] and position not in held for position in bad)
            seen[name] = Seen(
                (
                    SlurmNode(
                        name,
                        minors,
                        **{key: row[key] for key in ("used", "free_cpus", "drained", "silent", "reason")},
                        guard=guards.get(name),
                        holders=mine,
                        users=self.slurm.jobs_on(name) if asks else [],
                        faults=faults,
                    ),
                )
            )
        return seen

    def close(self, hosts: Sequence[str], step: Step) -> None:
        for start in range(0, len(hosts), CLOSED_AT_MOST):
            self.slurm.drain(",".join(hosts[start : start + CLOSED_AT_MOST]), FENCE_MARK + step.why)

    def perform(self, host: str, step: Step) -> None:
        if not isinstance(step, SlurmStep):
            return
        if step.kind == "guard":
            self.slurm.guard(host)
        elif step.kind == "unguard":
            self.slurm.unguard(host)
        elif step.kind == "hold":
            self.slurm.hold(host, **step.details)
        elif step.kind == "cancel":
            self.slurm.cancel(step.details["jobs"])
        elif step.kind == "signal":
            self.slurm.signal(step.details["jobs"], step.why)
        elif step.kind == "requeue":
            self.slurm.requeue(step.details["jobs"])
        elif step.kind == "drain_node":
            self.slurm.drain(host, FENCE_MARK + step.why)
        elif step.kind == "resume":
            self.slurm.resume(host)
