# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is given and what it gives back: policy, node, step and decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = ("dry-run", "record", "act")
JOBS = ("finish", "kill")
SILENT = ("watch", "deactivate")
# What Slurm does about a bad GPU: a job of the operator's holds it, or its node is drained.
GPU_FENCES = ("hold", "drain")
# What becomes of the job of Slurm that has a fatal GPU.
FATAL_JOBS = ("leave", "signal", "requeue")
REPAIRS = ("reset_gpu", "reboot")
# The kinds of steps: on Mesos, on Slurm, and on both.
KINDS = (
    *("deactivate", "drain", "reactivate", "order", "withdraw", "settle"),
    *("guard", "hold", "cancel", "unguard", "signal", "requeue", "drain_node", "resume"),
    "close",
)
# Kinds of steps after which a node takes no job, or none for a GPU: of Mesos, and of Slurm.
FENCES = ("deactivate", "guard", "drain_node")


@dataclass(frozen=True)
class Policy:
    """What the site wants. Times are in seconds; see `problems` for what each may be."""

    mode: str = "dry-run"
    # What becomes of the jobs on a node that was fenced: they may finish, or end after `grace_s`.
    jobs: str = "finish"
    grace_s: float = 3600.0
    # Between SIGTERM and SIGKILL of a drain.
    kill_s: int = 60
    # How long a GPU must have been well before it is given out again.
    settle_s: float = 60.0
    # After how long a node that fell silent may be fenced, if it is to be fenced at all.
    suspect_s: float = 900.0
    silent: str = "watch"
    gpu_fence: str = "hold"
    fatal_job: str = "leave"
    breaker_share: float = 0.2
    breaker_count: int = 2
    breaker_window_s: float = 300.0
    # What may be done to a GPU by itself, and how often before the next is tried.
    repairs: tuple[str, ...] = ()
    resets: int = 1
    reboots: int = 2
    # After how long a repair that held is forgotten.
    forget_s: float = 7 * 86400.0
    # How long a repaired GPU has until it must be well; what comes next in the ladder waits for that.
    proof_s: float = 300.0
    # After how long a step that failed is tried again.
    retry_s: float = 60.0

    def problems(self) -> list[str]:
        """What is wrong with it, each with the remedy."""
        found = []
        words = {"mode": MODES, "jobs": JOBS, "silent": SILENT, "gpu_fence": GPU_FENCES, "fatal_job": FATAL_JOBS}
        for name, known in words.items():
            value = getattr(self, name)
            if value not in known:
                found.append(f"{name} is {value!r}: give one of {', '.join(known)}")
        found += [f"repairs has {name!r}: give of {', '.join(REPAIRS)}" for name in self.repairs if name not in REPAIRS]
        if not 0 < self.breaker_share <= 1:
            found.append(f"breaker_share is {self.breaker_share:g}: give more than 0, up to 1")
        if self.breaker_count < 1:
            found.append(f"breaker_count is {self.breaker_count}: give 1 or more")
        for name in (
            "grace_s",
            "kill_s",
            "settle_s",
            "suspect_s",
            "breaker_window_s",
            "resets",
            "reboots",
            "forget_s",
            "proof_s",
            "retry_s",
        ):
            if getattr(self, name) < 0:
                found.append(f"{name} is {getattr(self, name):g}: give 0 or more")
        return found


@dataclass(frozen=True)
class Node:
    """What is seen of a node now.

    `verdict` is what its GPU agent publishes (see reconciler/gpus.py), None without a session. `agent` is a row of
    mesos_operator.agent_of with `tasks`, the ids of those that hold resources; None without a registered one.
    `scheduled`: the machine is in the maintenance schedule. `problem` says why what it publishes, or what is known of
    it, cannot be used; it is then left as it is.
    """

    host: str
    verdict: Mapping[str, Any] | None = None
    agent: Mapping[str, Any] | None = None
    scheduled: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Step:
    """One thing to do: `kind` is one of KINDS."""

    kind: str
    why: str
    agent_id: str = ""
    order: Mapping[str, Any] | None = None
    grace_s: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)
    # What somebody else had done to the agent that this one took the place of.
    for_others: bool = False
    # Mesos has no agent of this node.
    unregistered: bool = False
    # Of a step on Slurm: jobs, positions of GPUs and how many holders.
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What a later reconciler reads again it takes for damaged where it does not know the kind.
        if self.kind not in KINDS:
            raise ValueError(f"no kind of step: {self.kind}")

    def told(self) -> dict[str, Any]:
        """As the journal and the log have it."""
        row: dict[str, Any] = {"kind": self.kind, "why": self.why, "evidence": dict(self.evidence)}
        row["for_others"] = self.for_others
        if self.agent_id:
            row["agent_id"] = self.agent_id
        if self.order is not None:
            row["order"] = dict(self.order)
        if self.details:
            row["details"] = dict(self.details)
        if self.kind == "drain":
            row["grace_s"] = self.grace_s
        return row


@dataclass(frozen=True)
class Decision:
    """A step, or none; `why` says what is waited for, and is empty where nothing is wrong. `soon`: it takes moments."""

    step: Step | None = None
    why: str = ""
    soon: bool = False
