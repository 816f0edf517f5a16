# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is given and what it gives back: policy, node, step and decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

MODES = ("dry-run", "record", "act")
JOBS = ("finish", "kill")
SILENT = ("watch", "deactivate")
# What Slurm does about a bad GPU: a job of the operator's holds it, or its node is drained.
GPU_FENCES = ("hold", "drain")
# What becomes of the job of Slurm that has a fatal GPU.
FATAL_JOBS = ("leave", "signal", "requeue")
REPAIRS = ("reset_gpu", "reboot")
# The kinds of steps that the driver takes itself; a scheduler has its own besides.
KINDS = ("order", "withdraw", "settle", "close")


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


class Row(Protocol):
    """What a scheduler has of a node; each scheduler has a type of its own."""

    @property
    def id(self) -> str:
        """Its name there."""

    @property
    def takes_jobs(self) -> bool:
        """Whether new jobs may start on it."""


@dataclass(frozen=True)
class Node:
    """What is seen of a node now.

    `verdict` is what its GPU agent publishes (see core/gpus.py), None without a session. `row` is what the scheduler
    has of it; None where it does not know the node. `scheduled`: others have planned maintenance for the machine.
    `problem` says why what it publishes, or what is known of it, cannot be used; it is then left as it is.
    """

    host: str
    verdict: Mapping[str, Any] | None = None
    row: Any = None
    scheduled: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Step:
    """One thing to do: `kind` is one of KINDS, or of the scheduler's own."""

    kind: str
    why: str
    order: Mapping[str, Any] | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    KINDS: ClassVar[tuple[str, ...]] = KINDS

    def __post_init__(self) -> None:
        # What a later reconciler reads again it takes for damaged where it does not know the kind.
        if self.kind not in self.KINDS:
            raise ValueError(f"no kind of step: {self.kind}")

    @property
    def fences(self) -> bool:
        """Whether the node takes no job after it, or none for a GPU, for a reason of ours."""
        return False

    def told(self) -> dict[str, Any]:
        """As the journal and the log have it."""
        row: dict[str, Any] = {"kind": self.kind, "why": self.why, "evidence": dict(self.evidence)}
        if self.order is not None:
            row["order"] = dict(self.order)
        return row


@dataclass(frozen=True)
class Decision:
    """A step, or none; `why` says what is waited for, and is empty where nothing is wrong. `soon`: it takes moments.
    `fails`: the node may take jobs that a fault would harm, so it counts for the fleet breaker."""

    step: Step | None = None
    why: str = ""
    soon: bool = False
    fails: bool = False
