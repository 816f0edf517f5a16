# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of Kubernetes as the reconciler sees it, and the steps that there are on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import KINDS as CORE_KINDS
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Step

KINDS = ("hold", "release", "cordon", "uncordon", "evict", *CORE_KINDS)
FENCES = ("hold", "cordon")


@dataclass(frozen=True)
class Pod:
    """A pod that a drain is about: none of a DaemonSet, none of the node's own, none that has ended.

    :ivar name: namespace/name.
    :ivar gpus: their UUIDs; None where it has some, and kubelet does not tell which.
    :ivar controller: the kind of what has made it, such as Job; empty for a pod that nothing makes again.
    :ivar ends: whether it was told to end.
    """

    name: str
    uid: str
    gpus: frozenset[str] | None
    controller: str = ""
    ends: bool = False

    @property
    def moves(self) -> bool:
        """Whether it goes on elsewhere: a Job's pod begins anew, and one without a controller is gone."""
        return self.controller not in ("", "Job")


@dataclass(frozen=True)
class KubernetesNode:
    """`ours`: we have cordoned it; `theirs`: an operator has, before or since. `held` are the GPUs that we have its
    node withhold, with the code of each. `pods` is None where nothing was asked of them. `faults` is what
    `plan.faults_of` makes of the verdict."""

    id: str
    is_ready: bool
    is_cordoned: bool
    ours: bool
    theirs: bool
    held: Mapping[str, str]
    pods: tuple[Pod, ...] | None
    faults: Mapping[str, Any]

    @property
    def takes_jobs(self) -> bool:
        return self.is_ready and not self.is_cordoned


@dataclass(frozen=True)
class KubernetesStep(Step):
    # GPUs to be held, the code of a taint, pods.
    details: Mapping[str, Any] = field(default_factory=dict)

    KINDS: ClassVar[tuple[str, ...]] = KINDS

    @property
    def fences(self) -> bool:
        return self.kind in FENCES

    def told(self) -> dict[str, Any]:
        return {**super().told(), **({"details": dict(self.details)} if self.details else {})}
