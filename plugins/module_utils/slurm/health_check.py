# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HealthCheckProgram of slurmd: a node with a bad GPU that nobody has fenced is drained.

To fence a GPU is the reconciler's. Where none runs, the node is drained with a reason like the reconciler's, so that
one that runs again takes the node over. Nothing is asked of the GPUs: the verdicts are those that the agent has
published.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import HEALTH_CHECK_MARK, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Unclear


@dataclass(frozen=True)
class Fault:
    """What is fatal.

    :ivar position: of the GPU, in the order of gres.conf; None for a fault of the whole host.
    :ivar age_s: seconds for which it has been, since the boot at most.
    """

    text: str
    position: int | None
    age_s: float


def _fault(name: str, reasons: Sequence[gpus.Reason], position: int | None) -> Fault | None:
    known = [reason.since for reason in reasons if reason.since is not None]
    if not known:
        return None
    codes = ", ".join(dict.fromkeys(reason.code for reason in reasons))
    return Fault(f"{name} ({codes})", position, min(time.time() - min(known), agent_result.uptime()))


def faults(node: str, root: str = "/") -> list[Fault]:
    """Those of a node and of its GPUs. Raises Unclear and agent_result.Unusable."""
    minors = gpus.node_minors(node, root)
    if not minors:
        return []
    of_node, judged = gpus.read(minors, root)
    found = [_fault(node, of_node, None)]
    found += [_fault(gpu.name, gpu.reasons, position) for position, gpu in enumerate(judged)]
    return [fault for fault in found if fault is not None]


def check(node: str, grace_s: float, slurm: Slurm, root: str = "/") -> dict[str, Any]:
    """Drains the node where it has to be, and answers what is logged: nothing where nothing was done.

    A node that is drained or down, or has a reason of somebody's, stays as it is. Raises CallFailed.

    :param grace_s: seconds that a fault has to last.
    """
    try:
        found = [fault for fault in faults(node, root) if fault.age_s > grace_s]
    except (Unclear, agent_result.Unusable):
        # Without verdicts nothing is known, which the agent's own service tells.
        return {}
    if not found:
        return {}
    row = slurm.nodes(node).get(node)
    if row is None or row["drained"] or row["down"] or node in slurm.guards():
        return {}
    fenced = {position for one in slurm.holders() if one.node == node for position in one.keeps}
    still = [fault for fault in found if fault.position is None or fault.position not in fenced]
    if not still:
        return {}
    texts = "; ".join(f"{fault.text} for {fault.age_s:.0f} s" for fault in still)
    if row["reason"]:
        return {"why": f"not drained, because it has a reason: {row['reason']}", "fatal": texts}
    slurm.drain(node, f"{HEALTH_CHECK_MARK}fatal and not fenced: {texts}")
    return {"drained": texts}
